"""Attention of fixed sizes, made once and run often."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._arrays import (FloatArray, bits, floats, integers, logit_inputs, of_type, same_rank, single,
                      vector)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._cache import KvCache

KvTypeName = Literal["f32", "f16", "bf16", "int8", "int4"]
Stage = Literal["scores", "capped", "biased", "probs"]
Window = int | tuple[int | None, int | None]
Result = Any  # an array, or a tuple of it and what was asked for besides


class AttentionArgs(TypedDict, total=False):
    """Names the arguments of attention besides its sizes; see ``manyhead.attention`` and AttentionPlan."""

    causal: bool
    scale: float | None
    softcap: float
    window: Window
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    num_sink_tokens: int
    threads: int
    isa: str | None
    strict: bool


_WIDEST = 1 << 62  # replaces a number beyond int64
_FAR = 1 << 40  # beyond any position: a side of a window that is unbounded


def _window_sides(window: Window) -> tuple[int, int | None]:
    """`window` as the library's pair: tokens to the left with the query itself (0: all), to the right."""
    if not isinstance(window, (tuple, list)):
        return min(index(window), _WIDEST), None
    if len(window) != 2:
        raise ValueError(f"window has {len(window)} entries; expected W or (left, right)")
    left, right = (-1 if side is None else min(index(side), _WIDEST) for side in window)
    if left < -1 or right < -1:
        raise ValueError(f"window = {(left, right)}; expected -1 (unbounded) or more on each side")
    return left + 1, _FAR if right == -1 else right


def attention_params(*, num_heads: int, num_kv_heads: int, head_dim: int, head_dim_v: int,
                     max_q_len: int, max_kv_len: int, causal: bool = False,
                     scale: float | None = None, softcap: float = 0.0, window: Window = 0,
                     alibi_slopes: ArrayLike | None = None, sinks: ArrayLike | None = None,
                     num_sink_tokens: int = 0, threads: int = 0, isa: str | None = None,
                     strict: bool = False) -> _core.AttentionParams:
    left, right = _window_sides(window)
    return _core.AttentionParams(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, head_dim_v=head_dim_v,
        max_q_len=max_q_len, max_kv_len=max_kv_len, scale=scale or 0.0, softcap=softcap, causal=causal,
        window=left, window_right=right, num_sink_tokens=num_sink_tokens,
        alibi_slopes=vector(alibi_slopes, "alibi_slopes"), sinks=vector(sinks, "sinks"),
        threads=threads, isa=isa, strict=strict)


class AttentionPlan:
    """Attention of fixed head counts and sizes, made once and run often.

    A plan owns the scratch memory of its runs; ``manyhead.attention`` makes one for each call. Runs of
    one plan from several threads wait for each other; plans are independent.

    Args:
        num_heads: H, query heads; a multiple of num_kv_heads.
        num_kv_heads: K, key/value heads: H = MHA, 1 = MQA, between = GQA.
        head_dim: D, elements of a query or key head, 1 to 1024.
        head_dim_v: Dv, elements of a value head; None selects head_dim.
        max_q_len: most query tokens of one run, over its whole batch.
        max_kv_len: most key/value tokens of one request.
        **options: causal, scale, softcap, window, alibi_slopes, sinks, num_sink_tokens, threads, isa as
            in ``manyhead.attention``; and strict: True raises UnsupportedError where a faster kernel has
            to be refused, instead of taking a slower one (``explain`` says which and why).
    """

    def __init__(self, *, num_heads: int, num_kv_heads: int, head_dim: int,
                 head_dim_v: int | None = None, max_q_len: int, max_kv_len: int,
                 **options: Unpack[AttentionArgs]) -> None:
        self._core = _core.AttentionPlan(attention_params(
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            head_dim_v=head_dim_v or 0, max_q_len=max_q_len, max_kv_len=max_kv_len, **options))

        self._sizes = (num_heads, num_kv_heads, head_dim, head_dim_v or head_dim, max_q_len, max_kv_len)

    def __repr__(self) -> str:
        heads, kv_heads, dim, dim_v, q_len, kv_len = self._sizes
        return (f"<manyhead.AttentionPlan {heads}/{kv_heads} heads of {dim}/{dim_v}, up to {q_len} "
                f"queries and {kv_len} keys>")

    def run(self, q: ArrayLike, k: ArrayLike, v: ArrayLike, *, bias: ArrayLike | None = None,
            mask: ArrayLike | None = None, kv_lens: ArrayLike | None = None,
            query_start: ArrayLike | None = None, return_lse: bool = False,
            return_weights: Stage | None = None) -> Result:
        """Attention over arrays, as ``manyhead.attention`` with what the plan was made for."""
        q, k, v = (floats(x, name, (3, 4)) for x, name in ((q, "q"), (k, "k"), (v, "v")))
        same_rank(q, k, v)
        rank, dtype = q.ndim, q.dtype
        q, k, v = (x if rank == 4 else x[np.newaxis] for x in (q, k, v))
        batch, heads, q_len = q.shape[:3]
        shape = (batch, heads, q_len, k.shape[2])
        inputs: dict[str, Any] = {
            "kv_lens": integers(kv_lens, "kv_lens", batch),
            "query_start": integers(query_start, "query_start", batch),
            **logit_inputs(bias, mask, shape),
        }
        q, k, v = single(q), bits(k), bits(v)
        out = np.empty((batch, heads, q_len, v.shape[3]), np.float32)
        lse = np.empty((batch, heads, q_len), np.float32)
        wants_lse = return_lse or return_weights is not None
        self._core.run(q=q, k=k, v=v, out=out, lse=lse if wants_lse else None, **inputs)
        results: list[NDArray[Any]] = [of_type(out, dtype)]
        if return_lse:
            results.append(lse)
        if return_weights is not None:
            weights = np.empty(shape, np.float32)
            self._core.weights(stage=return_weights, q=q, k=k, lse=lse, weights=weights, **inputs)
            results.append(of_type(weights, dtype))
        results = [x if rank == 4 else x[0] for x in results]
        return results[0] if len(results) == 1 else tuple(results)

    def attend(self, cache: KvCache, layer: int, sequences: int | Sequence[int], q: ArrayLike, *,
               qo_indptr: ArrayLike | None = None, bias: ArrayLike | None = None,
               mask: ArrayLike | None = None, return_lse: bool = False) -> Result:
        """Attention of the last tokens of sequences over one layer of a cache; see KvCache.attend."""
        q = floats(q, "q", (3, 4))
        ids = [sequences] if isinstance(sequences, (int, np.integer)) else list(sequences)
        indptr, rows = _ragged(q, len(ids), qo_indptr)
        queries = max((int(n) for n in np.diff(indptr)), default=0)
        shape = (len(ids), q.shape[-3], queries, max((cache.length(i) for i in ids), default=0))
        out = np.empty((*rows.shape[:2], self._core.head_dim_v), np.float32)
        lse = np.empty(rows.shape[:2], np.float32) if return_lse else None
        self._core.run_cache(
            cache=cache._live, layer=layer, sequences=ids, qo_indptr=indptr,
            q=np.ascontiguousarray(single(rows)), out=out, lse=lse,
            **logit_inputs(bias, mask, shape))
        result = of_type(_unrag(out, q), q.dtype)
        return result if lse is None else (result, _unrag(lse, q))

    def explain(self, q_len: int, kv_len: int, k_type: KvTypeName = "f32",
                v_type: KvTypeName | None = None) -> _core.AttentionExplanation:
        """Explains how a run of one request of these lengths over a cache of these types is done.

        ``str()`` of the result has one line per entry; ``refused`` lists faster choices and why they
        were not taken.
        """
        return self._core.explain(k_type=k_type, v_type=v_type or k_type, q_len=q_len, kv_len=kv_len)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory the plan owns."""
        return self._core.scratch_bytes


def _ragged(q: FloatArray, batch: int,
            qo_indptr: ArrayLike | None) -> tuple[NDArray[np.int64], FloatArray]:
    """The prefix sums of a batch's queries, and q as rows [T, H, D] of all of them."""
    if qo_indptr is not None:
        if q.ndim != 3:
            raise ValueError(f"q has {q.ndim} dimensions; expected [H, T, D] with qo_indptr")
        indptr = integers(qo_indptr, "qo_indptr", batch + 1)
        assert indptr is not None
        return indptr, q.transpose(1, 0, 2)
    rows = q[np.newaxis] if q.ndim == 3 else q
    if rows.shape[0] != batch:
        raise ValueError(f"q has a batch of {rows.shape[0]}; expected that of sequences = {batch}")
    q_len = rows.shape[2]
    indptr = np.arange(batch + 1, dtype=np.int64) * q_len
    return indptr, rows.transpose(0, 2, 1, 3).reshape(batch * q_len, rows.shape[1], rows.shape[3])


def _unrag(rows: NDArray[Any], q: FloatArray) -> NDArray[Any]:
    """Rows [T, H, ...] in the order of q."""
    if q.ndim == 3:
        return rows.swapaxes(0, 1)
    batch, _, q_len = q.shape[:3]
    return rows.reshape(batch, q_len, *rows.shape[1:]).swapaxes(1, 2)
