"""Attention patterns and outputs of heads over a sequence, to look at, to export and to patch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: (layer, head), both counted from 0.
Head = tuple[int, int]


class HeadPatch(NamedTuple):
    """Values that a query head has at consecutive positions in place of what it computes there."""

    layer: int
    head: int
    #: The first position, counted in the whole sequence.
    position: int
    #: ``[n, Dv]``, one row for each position.
    values: NDArray[np.float32]


@dataclass(repr=False)
class Capture:
    """The rows of heads over the n tokens of one call, which follow `first` tokens held before.

    Attributes:
        tokens: ids of the n tokens.
        first: position of the first of them.
        heads: ``{layer: [head, ...]}``, the captured heads.
        patterns: ``{layer: [heads, n, first + n]}``, the attention weights; empty if not captured.
        outputs: ``{layer: [n, heads, Dv]}``, the weighted sums of values that W_O reads, with edits
            and patches; empty if not captured.
        logits: ``[n, vocab_size]``, or None if not captured.
    """

    tokens: list[int]
    first: int
    heads: dict[int, list[int]]
    patterns: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    outputs: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    logits: NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        heads = sum(len(of_layer) for of_layer in self.heads.values())
        kinds = [name for name in ("patterns", "outputs") if getattr(self, name)]
        return (f"<manyhead.Capture {len(self.tokens)} tokens from {self.first}, {heads} heads: "
                f"{', '.join(kinds) or 'nothing'}{'' if self.logits is None else ', logits'}>")

    def _slot(self, layer: int, head: int, kind: str) -> int:
        if layer not in getattr(self, kind) or head not in self.heads[layer]:
            raise ValueError(f"the {kind} of head {head} of layer {layer} were not captured")
        of_layer = self.heads[layer]
        return of_layer.index(head)

    def pattern(self, layer: int, head: int) -> NDArray[np.float32]:
        """The attention weights ``[n, first + n]`` of one head."""
        slot = self._slot(layer, head, "patterns")
        weights: NDArray[np.float32] = self.patterns[layer][slot]
        return weights

    def output(self, layer: int, head: int) -> NDArray[np.float32]:
        """Returns the output of one head, ``[n, Dv]``."""
        slot = self._slot(layer, head, "outputs")
        rows: NDArray[np.float32] = self.outputs[layer][:, slot]
        return rows

    def patch(self, layer: int, head: int, positions: int | slice | None = None, *,
              to: int | None = None) -> HeadPatch:
        """Returns the output of one head as a patch for another run.

        Args:
            positions: a position of the sequence, or a slice of positions without a step; None stands
                for all that were captured.
            to: the position that the first of them goes to; None: the same.
        """
        end = self.first + len(self.tokens)
        if positions is None:
            positions = slice(self.first, end)
        if isinstance(positions, slice):
            start, stop, step = positions.start, positions.stop, positions.step
            start = self.first if start is None else index(start)
            stop = end if stop is None else index(stop)
            if step not in (None, 1):
                raise ValueError(f"positions has a step of {step}; expected 1")
        else:
            start = index(positions)
            stop = start + 1
        if not self.first <= start < stop <= end:
            raise ValueError(f"positions = {start}..{stop - 1}; expected some of {self.first}.."
                             f"{end - 1}")
        values = self.output(layer, head)[start - self.first:stop - self.first]
        return HeadPatch(layer, head, start if to is None else index(to),
                         np.ascontiguousarray(values))

    def cache(self) -> dict[str, NDArray[np.float32]]:
        """The arrays under TransformerLens' names, each with a batch of 1:
        ``blocks.L.attn.hook_pattern`` ``[1, heads, n, first + n]`` and ``blocks.L.attn.hook_z``
        ``[1, n, heads, Dv]``."""
        arrays = {}
        for layer in sorted(self.heads):
            if layer in self.patterns:
                arrays[f"blocks.{layer}.attn.hook_pattern"] = self.patterns[layer][np.newaxis]
            if layer in self.outputs:
                arrays[f"blocks.{layer}.attn.hook_z"] = self.outputs[layer][np.newaxis]
        return arrays

    def save_npz(self, path: str | os.PathLike[str]) -> None:
        """Writes ``cache()`` and `tokens` to an NPZ file, which numpy.load reads. The file appears under
        its name when it is whole."""
        path = os.path.realpath(os.fspath(path))
        folder, name = os.path.split(path)
        descriptor, part = tempfile.mkstemp(dir=folder or ".", prefix=f".{name[:64]}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                arrays: dict[str, NDArray[np.generic]] = {**self.cache()}
                np.savez(file, allow_pickle=False, tokens=np.array([self.tokens], np.int64), **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, 0o666 & ~_umask())
            os.replace(part, path)
        except BaseException:
            os.unlink(part)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def head_list(heads: Sequence[Head] | None, counts: Sequence[int]) -> dict[int, list[int]]:
    """The chosen heads of each layer, in order; all for None. Heads that the model does not have are the
    library's to name."""
    if heads is None:
        return {layer: list(range(count)) for layer, count in enumerate(counts)}
    chosen: dict[int, list[int]] = {}
    for layer, head in sorted(set((index(layer), index(head)) for layer, head in heads)):
        chosen.setdefault(layer, []).append(head)
    return chosen
