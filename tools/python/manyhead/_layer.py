"""Multi-head attention with its projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._arrays import FloatArray, bits, floats, is_bfloat16, logit_inputs, of_type, single
from ._cache import KvCache
from ._plan import AttentionArgs, KvTypeName, Result, attention_params
from ._rope import RopeConfig

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: float32, float16 or bfloat16 [outputs, inputs], or (GGUF's type name, its bytes [outputs, n]).
Weight = ArrayLike | tuple[str, NDArray[np.uint8]]


def _projection(weight: Weight, bias: ArrayLike | None, name: str) -> _core.Projection:
    if bias is not None:
        bias = np.ascontiguousarray(single(floats(bias, f"bias of {name}", (1,))))
    if isinstance(weight, tuple):
        kind, data = weight
        return _core.Projection(kind, np.ascontiguousarray(data), bias)
    array = np.ascontiguousarray(floats(weight, name, (2,)))
    kind = "BF16" if is_bfloat16(array) else {4: "F32", 2: "F16"}[array.itemsize]
    return _core.Projection(kind, bits(array).view(np.uint8), bias)


class MultiHeadAttention:
    """out = W_o concat_h(head_h) + b_o, head_h = attention of W_q x + b_q, W_k x + b_k, W_v x + b_v.

    Weights are read where they are: do not change them while the layer lives.

    Args:
        query: W_q ``[H D, d_model]``; float32, float16, bfloat16, or a tuple of a GGUF type's name
            ("Q8_0", "Q4_K", ...) and its bytes ``[outputs, bytes of a row]``.
        key: W_k ``[K D, M]``, M = memory_dim or, without one, d_model.
        value: W_v ``[K Dv, M]``.
        output: W_o ``[d_model, H Dv]``.
        query_bias, key_bias, value_bias, output_bias: ``[outputs]`` or None.
        num_heads: H.
        d_model: None selects that of the query weight, which tells it unless its type is GGUF's.
        num_kv_heads: K; None selects num_heads.
        head_dim: D; None selects d_model / num_heads.
        head_dim_v: Dv; None selects head_dim.
        max_q_len: most tokens of one call.
        max_kv_len: most tokens that a call attends to; None selects max_q_len.
        memory_dim: for cross attention, the elements of a memory's tokens.
        rope: a RopeConfig, which turns queries and keys.
        math: 'exact', or 'fast': int8 activations where weights are low-bit and rows few.
        sequential: computes one head after the other: the same but for the order of the heads' sum.
        incremental: the layer has a cache of its own, for ``append``, of k_type and v_type.
        **options: causal, scale, softcap, window, alibi_slopes, sinks, num_sink_tokens, threads, isa as
            in ``manyhead.attention``.
    """

    def __init__(self, query: Weight, key: Weight, value: Weight, output: Weight, *, num_heads: int,
                 query_bias: ArrayLike | None = None, key_bias: ArrayLike | None = None,
                 value_bias: ArrayLike | None = None, output_bias: ArrayLike | None = None,
                 d_model: int | None = None, num_kv_heads: int | None = None,
                 head_dim: int | None = None, head_dim_v: int | None = None, max_q_len: int = 512,
                 max_kv_len: int | None = None, memory_dim: int | None = None,
                 rope: RopeConfig | None = None, math: Literal["exact", "fast"] = "exact",
                 sequential: bool = False, incremental: bool = False, k_type: KvTypeName = "f32",
                 v_type: KvTypeName = "f32", **options: Unpack[AttentionArgs]) -> None:
        if d_model is None:
            if isinstance(query, tuple):
                raise ValueError("d_model is None; expected a number beside weights of a GGUF type")
            d_model = floats(query, "query", (2,)).shape[1]
        self._core = _core.MultiHeadAttention(
            attention=attention_params(
                num_heads=num_heads, num_kv_heads=num_kv_heads or 0, head_dim=head_dim or 0,
                head_dim_v=head_dim_v or 0, max_q_len=max_q_len, max_kv_len=max_kv_len or 0,
                **options),
            d_model=d_model, memory_dim=memory_dim or 0, query=_projection(query, query_bias, "query"),
            key=_projection(key, key_bias, "key"), value=_projection(value, value_bias, "value"),
            output=_projection(output, output_bias, "output"),
            rope=None if rope is None else rope._core, math=math, sequential=sequential,
            own_cache=incremental, k_type=k_type, v_type=v_type)
        self._check_shapes(query, key, value, output, memory_dim or d_model)

    def __repr__(self) -> str:
        core = self._core
        return (f"<manyhead.MultiHeadAttention d_model {core.d_model}, {core.num_heads}/"
                f"{core.num_kv_heads} heads of {core.head_dim}/{core.head_dim_v}>")

    def _check_shapes(self, query: Weight, key: Weight, value: Weight, output: Weight,
                      memory_dim: int) -> None:
        """The library counts bytes, of which a transposed weight has as many."""
        core = self._core
        heads_dim, heads_dim_v = core.num_heads * core.head_dim, core.num_heads * core.head_dim_v
        keys_dim, values_dim = (core.num_kv_heads * n for n in (core.head_dim, core.head_dim_v))
        for name, weight, letters, expected in (
                ("query", query, "[H D, d_model]", [heads_dim, core.d_model]),
                ("key", key, "[K D, M]", [keys_dim, memory_dim]),
                ("value", value, "[K Dv, M]", [values_dim, memory_dim]),
                ("output", output, "[d_model, H Dv]", [core.d_model, heads_dim_v])):
            if not isinstance(weight, tuple) and list(np.shape(weight)) != expected:
                raise ValueError(f"{name} has shape {list(np.shape(weight))}; expected {letters} = "
                                 f"{expected}")

    def forward(self, x: ArrayLike, memory: ArrayLike | None = None, *, bias: ArrayLike | None = None,
                mask: ArrayLike | None = None, head_outputs: bool = False) -> Result:
        """The layer over whole sequences, each from position 0; calling the layer is the same.

        Args:
            x: ``[B, T, d_model]`` or ``[T, d_model]``; float32, float16 or bfloat16.
            memory: ``[B, S, M]`` or ``[S, M]`` of cross attention.
            bias, mask: broadcastable to ``[B, H, T, S]``, as in ``manyhead.attention``.
            head_outputs: also return each head ``[B, H, T, Dv]`` and its term, head_h W_h,
                ``[B, H, T, d_model]``: the terms and the output's bias add up to the result.

        Returns ``[B, T, d_model]`` in x's type, or a tuple of it and the two float32 arrays; without B
        where x has none.
        """
        x = floats(x, "x", (2, 3))
        memories = None if memory is None else floats(memory, "memory", (x.ndim,))
        if memories is not None and x.ndim == 3 and memories.shape[0] != x.shape[0]:
            raise ValueError(f"memory has a batch of {memories.shape[0]}; expected that of x = "
                             f"{x.shape[0]}")
        rows = None if memories is None else _batched(memories)

        def run(index: int, **arrays: Any) -> None:
            self._core.forward(memory=None if rows is None else rows[index], **arrays)

        kv_len = x.shape[-2] if memories is None else memories.shape[-2]
        return self._call(run, x, kv_len, bias, mask, head_outputs)

    __call__ = forward

    def append(self, x: ArrayLike, *, bias: ArrayLike | None = None, mask: ArrayLike | None = None,
               head_outputs: bool = False) -> Result:
        """The layer over the next tokens ``[T, d_model]`` of an incremental layer's sequence, which
        attend to all before; S of bias and mask is the length with them. Returns as ``forward``."""
        x = floats(x, "x", (2,))

        def run(index: int, **arrays: Any) -> None:
            self._core.append(**arrays)

        return self._call(run, x, self.length + x.shape[0], bias, mask, head_outputs)

    def attend(self, cache: KvCache, layer: int, sequence: int, x: ArrayLike, *,
               bias: ArrayLike | None = None, mask: ArrayLike | None = None,
               head_outputs: bool = False) -> Result:
        """The layer over the last tokens ``[T, d_model]`` of a sequence of a cache, for which room was
        reserved: writes their keys and values there and attends to all. Returns as ``forward``."""
        x = floats(x, "x", (2,))

        def run(index: int, **arrays: Any) -> None:
            self._core.forward_cache(cache=cache._live, layer=layer, sequence=sequence, **arrays)

        return self._call(run, x, cache.length(sequence), bias, mask, head_outputs)

    def truncate(self, length: int) -> None:
        """Drops an incremental layer's tokens from position `length` on."""
        self._core.truncate(length)

    @property
    def length(self) -> int:
        """Tokens that an incremental layer holds."""
        return self._core.length

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """The layer of a KvCache that can serve this one: (num_kv_heads, head_dim, head_dim_v)."""
        return self._core.num_kv_heads, self._core.head_dim, self._core.head_dim_v

    def _call(self, run: Callable[..., None], x: FloatArray, kv_len: int, bias: ArrayLike | None,
              mask: ArrayLike | None, head_outputs: bool) -> Result:
        rows = _batched(x)
        batch, q_len = rows.shape[:2]
        core = self._core
        shape = (batch, core.num_heads, q_len, kv_len)
        inputs = logit_inputs(bias, mask, shape)
        results = [np.empty((batch, q_len, core.d_model), np.float32)]
        if head_outputs:
            results.append(np.empty((batch, core.num_heads, q_len, core.head_dim_v), np.float32))
            results.append(np.empty((batch, core.num_heads, q_len, core.d_model), np.float32))
        for b in range(batch):
            out, heads, terms = (*(array[b] for array in results), None, None)[:3]
            run(b, x=rows[b], out=out, heads=heads, terms=terms,
                **{name: array if array is None else array[b:b + 1] for name, array in inputs.items()})
        if x.ndim == 2:
            results = [array[0] for array in results]
        results[0] = of_type(results[0], x.dtype)
        return tuple(results) if head_outputs else results[0]


def _batched(x: FloatArray) -> NDArray[np.float32]:
    return np.ascontiguousarray(single(x if x.ndim == 3 else x[np.newaxis]))
