"""Arrays as the library takes them: without a copy wherever dtype and strides allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core

#: Any array of float32, float16 or bfloat16.
FloatArray = NDArray[Any]

_BFLOAT16 = "bfloat16"  # a dtype of the optional package ml_dtypes


class Bfloat16Array(np.ndarray[Any, np.dtype[Any]]):
    """An array of ml_dtypes.bfloat16 that other libraries read by DLPack, as NumPy's cannot be."""

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[Any, int] | None = None, copy: bool | None = None) -> Any:
        if stream is not None or (dl_device is not None and int(dl_device[0]) != 1):
            raise BufferError("a bfloat16 array lies in the CPU's memory; expected no other device")
        bits = np.asarray(self).view(np.uint16)
        bits = bits.copy() if copy else bits
        return _core.bfloat16_tensor(bits, bits)

    def __dlpack_device__(self) -> tuple[Literal[1], Literal[0]]:
        return 1, 0  # the CPU


def of_type(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """`array` in the type of an input, for whoever reads NumPy or DLPack."""
    result = array.astype(dtype, copy=False)
    return result.view(Bfloat16Array) if dtype.name == _BFLOAT16 and result.ndim > 0 else result


def from_any(value: ArrayLike, name: str) -> NDArray[Any]:
    """`value` as NumPy has it: tensors of bfloat16 by DLPack, where they lie."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    try:
        return np.asarray(value)
    except TypeError as error:  # PyTorch's, of a type that NumPy has not got
        try:
            import ml_dtypes
        except ImportError:
            raise ValueError(f"{name} is a tensor of a type that NumPy lacks; bfloat16 needs the "
                             "package ml_dtypes") from error
        try:
            return _core.bfloat16_bits(value).view(ml_dtypes.bfloat16)
        except ValueError:
            raise ValueError(f"{name} is a tensor of another type than float32, float16 and bfloat16, "
                             "or not in the CPU's memory") from error


def is_bfloat16(array: NDArray[Any]) -> bool:
    return array.dtype.name == _BFLOAT16


def _usable(array: NDArray[Any]) -> bool:
    """Whether the library can read the array where it lies: the last dimension dense, the rest free."""
    size = array.dtype.itemsize
    return (array.flags.aligned and array.dtype.isnative
            and (array.ndim == 0 or array.shape[-1] <= 1 or array.strides[-1] == size)
            and all(stride % size == 0 for stride in array.strides))


def floats(value: ArrayLike, name: str, ndim: Sequence[int]) -> FloatArray:
    """`value` as an array of one of the three types, copied only where its layout cannot be read."""
    array = from_any(value, name)
    if array.dtype.type not in (np.float32, np.float16) and not is_bfloat16(array):
        raise ValueError(f"{name} has dtype {array.dtype}; expected float32, float16 or bfloat16")
    if array.ndim not in ndim:
        raise ValueError(f"{name} has {array.ndim} dimensions; expected "
                         + " or ".join(str(rank) for rank in ndim))
    if not _usable(array):
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return array


def same_rank(q: FloatArray, k: FloatArray, v: FloatArray) -> None:
    if not q.ndim == k.ndim == v.ndim:
        raise ValueError(f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions; expected "
                         "the same number")


def bits(array: FloatArray) -> NDArray[Any]:
    """bfloat16 as uint16, which is how it passes into the extension; others as they are."""
    return array.view(np.uint16) if is_bfloat16(array) else array


def single(array: FloatArray) -> NDArray[np.float32]:
    return array.astype(np.float32, copy=False)


def vector(value: ArrayLike | None, name: str) -> list[float]:
    """[H] numbers as a list; empty for None."""
    if value is None:
        return []
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "fiu" and not is_bfloat16(array):
        raise ValueError(f"{name} has shape {list(array.shape)} and dtype {array.dtype}; "
                         "expected [H] numbers")
    return [float(number) for number in array]


def integers(value: ArrayLike | None, name: str, size: int) -> NDArray[np.int64] | None:
    """An int or [size] ints as an array of its own."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size > 0:
        raise ValueError(f"{name} has dtype {array.dtype}; expected integers")
    if array.ndim > 0 and array.shape != (size,):
        raise ValueError(f"{name} has shape {list(array.shape)}; expected [B] = [{size}]")
    most = np.iinfo(np.int64).max
    if array.size > 0 and array.max() > most:  # a number of an unsigned array would wrap
        raise ValueError(f"{name} has {array.max()}; expected at most {most}")
    return np.array(np.broadcast_to(array, (size,)), dtype=np.int64)


def logits(value: ArrayLike | None, name: str, shape: tuple[int, ...],
           dtype: type[np.generic]) -> NDArray[Any] | None:
    """A bias (float32) or mask (bool) broadcast to `shape`: only the last dimension is written out."""
    if value is None:
        return None
    array = np.asarray(value)
    if dtype is np.bool_ and array.dtype != np.bool_:
        raise ValueError(f"{name} has dtype {array.dtype}; expected bool (numbers to add go into bias)")
    if dtype is np.float32 and array.dtype.kind != "f" and not is_bfloat16(array):
        raise ValueError(f"{name} has dtype {array.dtype}; expected floating-point numbers")
    with np.errstate(over="ignore"):  # a float64 bias of -1e300 is -inf
        array = array.astype(dtype, copy=False)
    try:
        np.broadcast_shapes(array.shape, shape)
        if array.ndim == 0 or array.shape[-1] != shape[-1]:
            array = np.broadcast_to(array, (*array.shape[:-1], shape[-1]))
        if not _usable(array):
            array = np.ascontiguousarray(array)
        return np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name} has shape {list(np.asarray(value).shape)}, which does not broadcast "
                         f"to [B, H, T, S] = {list(shape)}") from None


def logit_inputs(bias: ArrayLike | None, mask: ArrayLike | None,
                 shape: tuple[int, ...]) -> dict[str, NDArray[Any] | None]:
    """bias and mask as the extension takes them, which knows bools as bytes."""
    mask = logits(mask, "mask", shape, np.bool_)
    return {"bias": logits(bias, "bias", shape, np.float32),
            "mask": None if mask is None else mask.view(np.uint8)}
