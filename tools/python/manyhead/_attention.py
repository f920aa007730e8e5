"""The attention operator over NumPy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._arrays import FloatArray, floats, integers, logits, same_rank, single
from ._cache import KvCache, kv_capacity_bytes
from ._plan import AttentionPlan, KvTypeName, Result, Stage, Window


def attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, *, causal: bool = False,
              scale: float | None = None, softcap: float = 0.0, window: Window = 0,
              bias: ArrayLike | None = None, mask: ArrayLike | None = None,
              alibi_slopes: ArrayLike | None = None, sinks: ArrayLike | None = None,
              num_sink_tokens: int = 0, kv_lens: ArrayLike | None = None,
              query_start: ArrayLike | None = None, kv_type: KvTypeName | None = None,
              return_lse: bool = False, return_weights: Stage | None = None, threads: int = 0,
              isa: str | None = None) -> Result:
    """softmax(mask(bias - alibi + softcap(scale * q k^T))) v, tiled: no T x S matrix is ever stored.

    Shapes: B requests, T query tokens, S key/value tokens, H query heads, K key/value heads (H is a
    multiple of K; query head h reads head h // (H / K)), D and Dv elements of a head.

    Args:
        q: ``[B, H, T, D]``, or ``[H, T, D]`` for one request; float32, float16 or bfloat16 (of
            ml_dtypes). k and v may have another of these types. Any strides are read in place as
            long as the last dimension is dense, but for 16-bit queries, which are widened first.
        k: ``[B, K, S, D]`` or ``[K, S, D]``.
        v: ``[B, K, S, Dv]`` or ``[K, S, Dv]``.
        causal: query i sees key j iff j <= position of i. Positions: see query_start.
        scale: factor on every logit; None (or 0) selects 1 / sqrt(D).
        softcap: x becomes softcap * tanh(x / softcap); 0 is off.
        window: W, the query itself and the W - 1 tokens before it, 0 for all; or (left, right), so many
            tokens on each side besides the query itself, -1 or None for all of them.
        bias: floats broadcastable to ``[B, H, T, S]``, added after scale and soft-cap; -inf hides a
            key.
        mask: bools broadcastable to ``[B, H, T, S]``; False hides a key.
        alibi_slopes: ``[H]``; slope * distance of query and key is subtracted from the logit.
        sinks: ``[H]``, one more logit per head that joins the softmax's denominator only.
        num_sink_tokens: the first tokens of a request, which a window does not hide.
        kv_lens: an int or ``[B]`` ints, valid tokens of k and v, at most S; None selects S.
        query_start: an int or ``[B]`` ints, the position of the first query; None selects kv_len - T,
            so that the last query stands at the last token. 0 gives the upper-left causal mask of
            other libraries.
        kv_type: stores k and v in a KvCache of this type first (f32, f16, bf16, int8, int4), and
            attends over what it holds.
        return_lse: also return the natural log of each softmax denominator, sinks included.
        return_weights: also return a stage of the logits: 'scores' after the scale, of every key;
            'capped' after the soft-cap; 'biased' after bias and ALiBi, -inf where hidden; 'probs' after
            the softmax. It takes memory and time in proportion to T * S.
        threads: 0 selects ``default_threads()``.
        isa: None selects the best of ``supported_isas()``, or what MANYHEAD_ISA says.

    Returns:
        The result ``[B, H, T, Dv]`` or ``[H, T, Dv]`` in q's type. With return_lse, a tuple of it and
        the float32 ``[B, H, T]``; with return_weights, ``[B, H, T, S]`` in q's type follows. A query
        without a visible key gives zeros, and an lse of -inf; NaN in keys and values that no query sees
        changes nothing.

    Raises:
        ValueError: a bad shape, type or value; the message names it and both values.
        UnsupportedError: (a ValueError) an instruction set this CPU lacks.
    """
    q, k, v = (floats(x, name, (3, 4)) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    batch = q.shape[0] if q.ndim == 4 else 1
    plan = AttentionPlan(
        num_heads=q.shape[-3], num_kv_heads=k.shape[-3], head_dim=q.shape[-1], head_dim_v=v.shape[-1],
        max_q_len=max(1, batch * q.shape[-2]), max_kv_len=max(1, k.shape[-2]), causal=causal,
        scale=scale, softcap=softcap, window=window, alibi_slopes=alibi_slopes, sinks=sinks,
        num_sink_tokens=num_sink_tokens, threads=threads, isa=isa)
    if kv_type is not None:
        lens = integers(k.shape[-2] if kv_lens is None else kv_lens, "kv_lens", batch)
        assert lens is not None
        _check_stored(q, k, v, lens)
        cache, sequences = _stored(k, v, lens, kv_type, isa)
        # A cache's queries are its sequences' last tokens; others, and weights, need plain tensors.
        last = not causal and window == 0 or bool(np.all(lens >= q.shape[-2]))
        if query_start is None and return_weights is None and last:
            shape = (batch, *q.shape[-3:-1], k.shape[-2])
            longest = max((cache.length(sequence) for sequence in sequences), default=0)
            bias, mask = (None if x is None else x[..., :longest] for x in (
                logits(bias, "bias", shape, np.float32), logits(mask, "mask", shape, np.bool_)))
            return plan.attend(cache, 0, sequences, q, bias=bias, mask=mask, return_lse=return_lse)
        k, v = _read_back(cache, sequences, k, v)
    return plan.run(q, k, v, bias=bias, mask=mask, kv_lens=kv_lens, query_start=query_start,
                    return_lse=return_lse, return_weights=return_weights)


def _check_stored(q: FloatArray, k: FloatArray, v: FloatArray, lens: NDArray[np.int64]) -> None:
    """Makes the checks of the library for plain tensors, with its messages, before a cache takes parts."""
    same_rank(q, k, v)
    shapes = [x.shape if x.ndim == 4 else (1, *x.shape) for x in (q, k, v)]
    (batch, _, _, dim), (_, heads, tokens, _), (_, _, _, dim_v) = shapes
    for name, shape, letters, expected in (
            ("k", shapes[1], "[B, K, S, D]", (batch, heads, tokens, dim)),
            ("v", shapes[2], "[B, K, S, Dv]", (batch, heads, tokens, dim_v))):
        if shape != expected:
            raise ValueError(f"{name} has shape {list(shape)}; expected {letters} = {list(expected)}")
    for index in np.flatnonzero((lens < 0) | (lens > tokens)):
        raise ValueError(f"kv_lens[{index}] = {lens[index]}; expected 0..{tokens}")


def _stored(k: FloatArray, v: FloatArray, lens: NDArray[np.int64], kv_type: KvTypeName,
            isa: str | None) -> tuple[KvCache, list[int]]:
    """A cache of one layer that holds the valid tokens of each request."""
    k, v = (x if x.ndim == 4 else x[np.newaxis] for x in (k, v))
    layers = [(k.shape[1], k.shape[3], v.shape[3])]
    tokens = max(1, k.shape[2])
    capacity = kv_capacity_bytes(layers, sequences=max(1, len(lens)), tokens=tokens, k_type=kv_type,
                                 v_type=kv_type)
    cache = KvCache(layers, max_tokens=tokens, capacity_bytes=capacity, k_type=kv_type, v_type=kv_type,
                    isa=isa)
    sequences = []
    for keys, values, length in zip(single(k), single(v), lens):
        sequence = cache.create_sequence()
        cache.reserve(sequence, int(length))
        cache.write(sequence, 0, keys[:, :length], values[:, :length])
        sequences.append(sequence)
    return cache, sequences


def _read_back(cache: KvCache, sequences: list[int], k: FloatArray,
               v: FloatArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """k and v as the cache holds them; tokens that it does not hold are zeros."""
    keys, values = np.zeros(k.shape, np.float32), np.zeros(v.shape, np.float32)
    for index, sequence in enumerate(sequences):
        row = (index,) if k.ndim == 4 else ()
        rows = (*row, slice(None), slice(cache.length(sequence)))
        keys[rows], values[rows] = cache.read(sequence, 0)
    return keys, values


def alibi_slopes(num_heads: int) -> NDArray[np.float32]:
    """The slopes ``[H]`` of ALiBi (arXiv:2108.12409) for any number of heads, at least 1."""
    if num_heads < 1:
        raise ValueError(f"num_heads = {num_heads}; expected at least 1")
    return np.array(_core.alibi_slopes(num_heads), np.float32)


def merge_attention_states(
        out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike,
        lse_b: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Joins two results of attention over disjoint keys into the result over all of them.

    Args:
        out_a, out_b: ``[..., Dv]``, of one shape.
        lse_a, lse_b: ``[...]``, natural logs of the softmax denominators. Where sinks are used, only one
            of the two may have included them.

    Returns the joint out ``[..., Dv]`` and lse ``[...]``, float32.
    """
    outs = [single(floats(x, name, range(1, 33))) for x, name in ((out_a, "out_a"), (out_b, "out_b"))]
    lses = [single(floats(x, name, range(33))) for x, name in ((lse_a, "lse_a"), (lse_b, "lse_b"))]
    shape = outs[0].shape
    for array, name, expected in ((outs[1], "out_b", shape), (lses[0], "lse_a", shape[:-1]),
                                  (lses[1], "lse_b", shape[:-1])):
        if array.shape != expected:
            raise ValueError(f"{name} has shape {list(array.shape)}; expected {list(expected)}")
    rows = int(np.prod(shape[:-1]))
    out, lse = np.empty((rows, shape[-1]), np.float32), np.empty(rows, np.float32)
    flat = [np.ascontiguousarray(x).reshape(rows, shape[-1]) for x in outs]
    flat_lse = [np.ascontiguousarray(x).reshape(rows) for x in lses]
    _core.merge_attention_states(flat[0], flat_lse[0], flat[1], flat_lse[1], out, lse)
    return out.reshape(shape), lse.reshape(shape[:-1])
