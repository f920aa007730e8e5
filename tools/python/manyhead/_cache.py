"""Keys and values of many sequences in pages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._arrays import floats, single
from ._plan import AttentionArgs, AttentionPlan, KvTypeName, Result

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: (num_kv_heads, head_dim) or (num_kv_heads, head_dim, head_dim_v) of a layer.
LayerShape = tuple[int, int] | tuple[int, int, int]
#: What each KV head keeps, and how: a policy for all heads, or JSON, as a text or as what it stands for.
Policies = str | Mapping[str, Any]


def policies_text(policies: Policies | None, name: str) -> str:
    """As the library reads it; empty for None."""
    if policies is None:
        return ""
    if isinstance(policies, str):
        if not policies.strip():
            raise ValueError(f"{name} is an empty text; expected a policy or JSON")
        return policies
    if not isinstance(policies, Mapping):
        raise TypeError(f"{name} is a {type(policies).__name__}; expected a text or a mapping")
    return json.dumps(dict(policies))


def _shapes(layers: Sequence[LayerShape]) -> list[tuple[int, int, int]]:
    shapes = []
    for index, layer in enumerate(layers):
        if len(layer) not in (2, 3):
            raise ValueError(f"layers[{index}] has {len(layer)} entries; expected (num_kv_heads, "
                             "head_dim) or (num_kv_heads, head_dim, head_dim_v)")
        shapes.append((layer[0], layer[1], layer[2] if len(layer) == 3 else 0))
    return shapes


def kv_capacity_bytes(layers: Sequence[LayerShape], *, sequences: int, tokens: int,
                      k_type: KvTypeName = "f16", v_type: KvTypeName = "f16",
                      heads: Policies | None = None, page_size: int = 0, step: int = 0) -> int:
    """The least capacity_bytes of a KvCache that holds `sequences` sequences of `tokens` tokens each,
    appended in steps of up to `step` (0: all at once); the others as in KvCache."""
    return _core.kv_capacity_bytes(layers=_shapes(layers), k_type=k_type, v_type=v_type,
                                   heads=policies_text(heads, "heads"), page_size=page_size,
                                   sequences=sequences, tokens=tokens, step=step)


def _rows(value: ArrayLike, name: str) -> NDArray[np.float32]:
    """[K, n, D] as [n, K, D] with dense heads: without a copy where it lies like that."""
    rows = single(floats(value, name, (3,))).transpose(1, 0, 2)
    row_bytes = rows.shape[1] * rows.shape[2] * rows.itemsize
    dense = rows.strides[2] == rows.itemsize and rows.strides[1] == rows.shape[2] * rows.itemsize
    return rows if dense and rows.strides[0] >= row_bytes else np.ascontiguousarray(rows)


class KvCache:
    """Keys and values of many sequences, in pages that each belong to one sequence, layer and KV head.

    A step appends n tokens: ``reserve`` room for them on every layer, which is all that can run out of
    pages, then ``write`` each layer's rows; ``attend`` lets queries see them. After an error the cache
    is as it was. Pages that ``truncate`` and ``free_sequence`` give back leave the process's memory.

    Args:
        layers: (num_kv_heads, head_dim) or (num_kv_heads, head_dim, head_dim_v) of each layer.
        max_tokens: most tokens of one sequence.
        capacity_bytes: hard cap on the bytes of all pages; None gives room for one sequence of
            max_tokens (see ``kv_capacity_bytes``). Only pages in use take memory.
        k_type, v_type: how keys and values are stored: f32, f16, bf16, int8 or int4.
        heads: what each KV head keeps, and how, where that differs: a policy for all heads such as
            "sink(4)+recent(256)", or ``{"heads": [{"layers": [0, "2-5"], "kv_heads": [1], "k_type":
            "int8", "v_type": "int4", "policy": "window(512)"}, ...]}``, as JSON or as a dict. Policies
            are full, window(N)[+margin(R)], sink(M)+recent(N)[+margin(R)], budget(N)[+sink(M)][+recent(M)]
            and off.
        page_size: tokens of a page, a multiple of 16; 0 selects the library's default.
        isa: as in ``manyhead.attention``.

    Raises ValueError for a bad argument, UnsupportedError for an instruction set this CPU lacks.
    Python threads may share a cache.
    """

    def __init__(self, layers: Sequence[LayerShape], *, max_tokens: int,
                 capacity_bytes: int | None = None, k_type: KvTypeName = "f16",
                 v_type: KvTypeName = "f16", heads: Policies | None = None, page_size: int = 0,
                 isa: str | None = None) -> None:
        if capacity_bytes is None:
            capacity_bytes = kv_capacity_bytes(layers, sequences=1, tokens=max_tokens, k_type=k_type,
                                               v_type=v_type, heads=heads, page_size=page_size)
        self._open: _core.KvCache | None = _core.KvCache(
            layers=_shapes(layers), k_type=k_type, v_type=v_type,
            heads=policies_text(heads, "heads"), page_size=page_size,
            capacity_bytes=capacity_bytes, max_tokens=max_tokens, isa=isa)

    @property
    def _live(self) -> _core.KvCache:
        if self._open is None:
            raise ValueError("KvCache: it is closed; expected an open cache")
        return self._open

    def close(self) -> None:
        """Releases the memory; every other call raises ValueError then. Leaving a ``with`` block
        closes the cache."""
        self._open = None

    @property
    def closed(self) -> bool:
        return self._open is None

    def __enter__(self) -> KvCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<manyhead.KvCache closed>"
        usage = self.usage()
        held = usage.used_bytes + usage.table_bytes
        return (f"<manyhead.KvCache {self.num_layers} layers, {self.k_type}/{self.v_type}, "
                f"{len(self.sequences)} sequences, {held} of {usage.capacity_bytes} bytes>")

    @property
    def sequences(self) -> list[int]:
        """The ids of all sequences."""
        return self._live.sequences()

    def save(self, path: str | os.PathLike[str], sequences: Sequence[int] | None = None, *,
             fingerprint: str = "") -> None:
        """Writes sequences, None being all, to a file, which appears under its name when it is whole.

        Args:
            fingerprint: what says where keys and values come from; ``restore`` asks for the same.
        """
        ids = self.sequences if sequences is None else list(sequences)
        self._live.save(os.fsencode(path), ids, fingerprint)

    def restore(self, path: str | os.PathLike[str], *, fingerprint: str = "",
                convert_types: bool = False) -> list[int]:
        """Adds the sequences of a file and returns their ids, in the order in which they were saved.
        A file that is refused changes nothing.

        Args:
            convert_types: heads may have other types than in the file.
        """
        return self._live.restore(os.fsencode(path), fingerprint, convert_types)

    def create_sequence(self) -> int:
        """The id of a new, empty sequence."""
        return self._live.create_sequence()

    def free_sequence(self, sequence: int) -> None:
        """Gives back every page that only `sequence` holds; its id is invalid from then on."""
        self._live.free_sequence(sequence)

    def fork(self, sequence: int) -> int:
        """The id of a new sequence that holds what `sequence` does, in the same pages: nothing is
        copied before one of the two writes."""
        return self._live.fork(sequence)

    def reserve(self, sequence: int, count: int) -> None:
        """Grows `sequence` by `count` tokens on every layer, whose rows are then to be written.

        Before, heads evict what no query from the present length on may see. Raises OutOfPagesError
        when the pool or max_tokens does not suffice; nothing has changed then.
        """
        self._live.reserve(sequence, count)

    def evict(self, sequence: int) -> None:
        """Evicts what the next ``reserve`` would; after a long step it gives the pages back early."""
        self._live.evict(sequence)

    def truncate(self, sequence: int, length: int) -> bool:
        """Drops every token from position `length` on.

        Returns whether that is exact: True when the sequence is now as if those tokens had never been
        appended; False when a policy had evicted tokens that would still be held.
        """
        return self._live.truncate(sequence, length)

    def rollback(self, sequence: int, count: int) -> None:
        """Drops the last `count` tokens if that is exact, as when a speculated continuation is rejected.

        Raises ValueError where it would not be, with nothing changed. Windows go back by a margin:
        ``heads="window(512)+margin(16)"``.
        """
        self._live.rollback(sequence, count)

    def exact_length(self, sequence: int, length: int) -> int:
        """The greatest length up to `length` to which ``truncate`` would be exact."""
        return self._live.exact_length(sequence, length)

    def copy(self, source: int, begin: int, end: int, sequence: int) -> None:
        """Appends to `sequence` what `source` holds of the positions [begin, end), at the same positions
        and in the same pages; begin is at least ``length(sequence)``."""
        self._live.copy(source, begin, end, sequence)

    def drop(self, sequence: int, begin: int, end: int) -> None:
        """Drops the tokens [begin, end) from every head: no query sees them from then on. Length and all
        other positions stay."""
        self._live.drop(sequence, begin, end)

    def write(self, sequence: int, layer: int, k: ArrayLike, v: ArrayLike, *,
              position: int | None = None) -> None:
        """Stores reserved rows of one layer: k ``[K, n, D]``, v ``[K, n, Dv]``, any float type.

        They are the rows from `position` on; None stands for the last n of the sequence.
        """
        keys, values = _rows(k, "k"), _rows(v, "v")
        if position is None:
            position = self.length(sequence) - keys.shape[0]
        self._live.write(sequence, layer, position, keys, values)

    def read(self, sequence: int, layer: int, start: int = 0,
             stop: int | None = None) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The stored rows [start, stop) of one layer as float32: k ``[K, n, D]``, v ``[K, n, Dv]``."""
        num_kv_heads, head_dim, head_dim_v = self._live.layer_shape(layer)
        count = max(0, (self.length(sequence) if stop is None else stop) - start)
        k = np.empty((num_kv_heads, count, head_dim), np.float32)
        v = np.empty((num_kv_heads, count, head_dim_v), np.float32)
        self._live.read(sequence, layer, start, k, v)
        return k, v

    def attend(self, sequences: int | Sequence[int], layer: int, q: ArrayLike, *,
               qo_indptr: ArrayLike | None = None, bias: ArrayLike | None = None,
               mask: ArrayLike | None = None, return_lse: bool = False, **options: Unpack[AttentionArgs]) -> Result:
        """Attention of the last tokens of `sequences` over one layer.

        Args:
            sequences: one id, or the ids of a batch.
            q: ``[H, T, D]``, the last T tokens of one sequence; ``[B, H, T, D]``, the last T of each;
                or with qo_indptr ``[H, T, D]``, the queries of all sequences one after the other.
            qo_indptr: ``[B + 1]`` prefix sums of each sequence's queries, the first 0, the last T.
            bias, mask: broadcastable to ``[B, H, T, S]``, T and S those of the longest.
            return_lse: also return the natural log of each softmax denominator.
            **options: causal, scale, softcap, window, alibi_slopes, sinks, num_sink_tokens, threads,
                isa and strict as in ``manyhead.attention`` and AttentionPlan. An engine makes an
                AttentionPlan once instead, and calls its ``attend``.

        Returns the result ``[H, T, Dv]`` or ``[B, H, T, Dv]`` in q's type, with return_lse also the
        float32 ``[H, T]`` or ``[B, H, T]``.
        """
        q = floats(q, "q", (3, 4))
        num_kv_heads, head_dim, head_dim_v = self._live.layer_shape(layer)
        queries = q.shape[-2] * (q.shape[0] if q.ndim == 4 else 1)
        plan = AttentionPlan(num_heads=q.shape[-3], num_kv_heads=num_kv_heads, head_dim=head_dim,
                             head_dim_v=head_dim_v, max_q_len=max(1, queries),
                             max_kv_len=self.max_tokens, **options)
        return plan.attend(self, layer, sequences, q, qo_indptr=qo_indptr, bias=bias, mask=mask,
                           return_lse=return_lse)

    def length(self, sequence: int) -> int:
        """Tokens of `sequence`, held or not."""
        tokens = self._live.length(sequence)
        if tokens < 0:
            raise ValueError(f"KvCache: sequence = {sequence} is not a live sequence")
        return tokens

    def usage(self, sequence: int | None = None) -> _core.KvUsage:
        """Bytes held, by all sequences or by one: used_bytes and head_bytes of pages, table_bytes,
        capacity_bytes. A page that sequences share counts once for all, and for each of them."""
        return self._live.usage(sequence)

    def head_usage(self, sequence: int) -> list[list[_core.KvHeadUsage]]:
        """Returns what each head holds of `sequence`, ``[layer][KV head]``: tokens, pages, page_bytes."""
        return self._live.head_usage(sequence)

    def holds(self, sequence: int, layer: int, head: int, position: int) -> bool:
        """Whether the head stores the token at `position`."""
        return self._live.holds(sequence, layer, head, position)

    @property
    def heads(self) -> list[list[_core.KvHeadParams]]:
        """Types and policy of each head, ``[layer][KV head]``: k_type, v_type, policy."""
        return self._live.heads

    @property
    def num_layers(self) -> int:
        return self._live.num_layers

    @property
    def k_type(self) -> str:
        return self._live.k_type

    @property
    def v_type(self) -> str:
        return self._live.v_type

    @property
    def page_size(self) -> int:
        """Tokens of a page."""
        return self._live.page_size

    @property
    def max_tokens(self) -> int:
        """Most tokens of one sequence."""
        return self._live.max_tokens

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token takes over all layers and heads."""
        return self._live.bytes_per_token
