"""Rotary position embedding."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._arrays import FloatArray, floats, of_type, single, vector

Scaling = Literal["none", "linear", "ntk", "yarn", "llama3", "factors"]


class RopeConfig:
    """Parameters of rotary embedding (arXiv:2104.09864).

    Args:
        base: angles per token are base ** (-2 i / rotary_dim).
        rotary_dim: leading elements of a head that are turned, even; 0 for all.
        interleaved: pairs (2i, 2i + 1); otherwise (i, i + rotary_dim / 2).
        scaling: how frequencies are stretched beyond the trained context: 'linear' divides positions by
            factor; 'ntk' raises the base; 'yarn' (arXiv:2309.00071), which also takes original_context,
            attention_factor, beta_fast, beta_slow; 'llama3', which takes original_context,
            low_freq_factor, high_freq_factor; 'factors' divides each frequency by its own of factors
            ``[rotary_dim / 2]``.
    """

    def __init__(self, *, base: float = 10000.0, rotary_dim: int = 0, interleaved: bool = False,
                 scaling: Scaling = "none", factor: float = 1.0, original_context: int = 0,
                 attention_factor: float = 1.0, beta_fast: float = 32.0, beta_slow: float = 1.0,
                 low_freq_factor: float = 1.0, high_freq_factor: float = 4.0,
                 factors: ArrayLike | None = None) -> None:
        self._core = _core.RopeConfig(
            rotary_dim=rotary_dim, interleaved=interleaved, base=base, scaling=scaling, factor=factor,
            original_context=original_context, attention_factor=attention_factor, beta_fast=beta_fast,
            beta_slow=beta_slow, low_freq_factor=low_freq_factor, high_freq_factor=high_freq_factor,
            factors=vector(factors, "factors"))


def rope(x: ArrayLike, positions: ArrayLike | None = None, config: RopeConfig | None = None, *,
         cos: ArrayLike | None = None, sin: ArrayLike | None = None, interleaved: bool | None = None,
         isa: str | None = None) -> FloatArray:
    """Turns the pairs of every head by angles that grow with the token's position.

    (a, b) becomes (a cos - b sin, a sin + b cos); angles, cosines and sines are computed in double, so
    that position 1,000,000 is as exact as position 1.

    Args:
        x: ``[B, H, T, D]`` or ``[H, T, D]``; float32, float16 or bfloat16.
        positions: the position of the first token, or ``[T]``, or ``[B, T]`` ints; None counts from 0.
        config: a RopeConfig; None selects base 10000, whole heads, half-split pairs.
        cos, sin: tables of your own instead of config: ``[N, R / 2]``, whose rows positions choose, or
            without positions ``[T, R / 2]`` or ``[B, T, R / 2]``; the first R elements are turned.
        interleaved: pairs (2i, 2i + 1), for tables; a config has its own.
        isa: as in ``manyhead.attention``.

    Returns a new array of x's shape and type.
    """
    heads = floats(x, "x", (3, 4))
    out = np.array(heads if heads.ndim == 4 else heads[np.newaxis], np.float32, order="C")
    batch, q_len = out.shape[0], out.shape[2]
    if (cos is None) != (sin is None):
        raise ValueError("cos and sin: one is None; expected both or none")
    if cos is not None and config is not None:
        raise ValueError("config and cos are both given; expected one of them")
    if config is not None and interleaved is not None:
        raise ValueError("config and interleaved are both given; expected one of them, as a config has "
                         "its own")
    if cos is not None and sin is not None:
        tables = [_table(table, name, positions, batch, q_len)
                  for table, name in ((cos, "cos"), (sin, "sin"))]
        for index in range(batch):
            _core.rotate_by_table(x=out[index], interleaved=bool(interleaved), cos=tables[0][index],
                                  sin=tables[1][index], isa=isa)
    else:
        if interleaved is not None:
            config = RopeConfig(interleaved=interleaved)
        turn = _core.Rope((config or RopeConfig())._core, out.shape[3], isa)
        rows = _positions(positions, batch, q_len)
        for index in range(batch):
            turn.apply(x=out[index], positions=rows[index])
    return of_type(out if heads.ndim == 4 else out[0], heads.dtype)


def _positions(positions: ArrayLike | None, batch: int, q_len: int) -> NDArray[np.int64]:
    """[B, T] positions."""
    array = np.asarray(0 if positions is None else positions)
    if array.dtype.kind not in "iu" and array.size > 0:
        raise ValueError(f"positions has dtype {array.dtype}; expected integers")
    if array.ndim == 0:
        array = array + np.arange(q_len)
    if array.shape not in ((q_len,), (batch, q_len)):
        raise ValueError(f"positions has shape {list(array.shape)}; expected [T] = [{q_len}] or "
                         f"[B, T] = [{batch}, {q_len}]")
    return np.array(np.broadcast_to(array, (batch, q_len)), dtype=np.int64, order="C")


def _table(table: ArrayLike, name: str, positions: ArrayLike | None, batch: int,
           q_len: int) -> NDArray[np.float32]:
    """[B, T, R / 2] of a table of cosines or sines."""
    array = single(floats(table, name, (2, 3)))
    if positions is not None:
        rows = _positions(positions, batch, q_len)
        if array.ndim != 2:
            raise ValueError(f"{name} has {array.ndim} dimensions; expected [N, R / 2] with positions")
        outside = rows[(rows < 0) | (rows >= array.shape[0])]
        if outside.size > 0:
            raise ValueError(f"positions has {outside[0]}; expected 0 to {array.shape[0] - 1}, the rows "
                             f"of {name}")
        array = array[rows]
    if array.shape[:-1] not in ((q_len,), (batch, q_len)):
        raise ValueError(f"{name} has shape {list(array.shape)}; expected [T, R / 2] or [B, T, R / 2] "
                         f"with T = {q_len} and B = {batch}")
    return np.ascontiguousarray(np.broadcast_to(array, (batch, q_len, array.shape[-1])))
