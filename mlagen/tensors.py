"""What is read from a tensor: shape, strides, dtype, device, address. Any object that has them will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlagen.errors import InputError

ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4, "uint8": 1}


# What an argument must have to count as a tensor; shape, stride() and data_ptr() as in torch.
_NEEDED = ("shape", "dtype", "device", "stride", "data_ptr")


@dataclass(frozen=True, slots=True)
class Meta:
    """One argument without its address.

    Attributes:
        name: argument name, for messages.
        shape: extents.
        strides: in elements; the stride of an extent of 1 or less is what a contiguous tensor would have.
        dtype: name without prefix, e.g. "bfloat16".
        device: e.g. "cuda:0".
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 0 for a dtype that no argument takes."""
        return ITEMSIZE.get(self.dtype, 0)

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to behind the last element (strides are not negative)."""
        if 0 in self.shape:
            return 0
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * self.itemsize


def fingerprint(tensor: Any) -> tuple[Any, ...]:
    """Everything about a tensor but its address, cheap to make and hashable: the key of what was already
    checked.
    """
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def require_tensor(name: str, value: object) -> None:
    """Checks that an argument is a tensor at all.

    Raises:
        InputError: it lacks what a tensor has.
    """
    for attribute in _NEEDED:
        if not hasattr(value, attribute):
            raise InputError(
                f"{name} is a {type(value).__name__}; a tensor is needed (it has no {attribute!r})"
            )


def describe(name: str, tensor: Any) -> Meta:
    """Reads a tensor.

    Raises:
        InputError: not a tensor.
    """
    require_tensor(name, tensor)
    shape = tuple(int(extent) for extent in tensor.shape)
    strides = tuple(int(stride) for stride in tensor.stride())
    dtype = str(tensor.dtype).rsplit(".", 1)[-1]
    return Meta(name, shape, _settle(shape, strides), dtype, str(tensor.device))


def _settle(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Gives dimensions that are never stepped over the stride of a contiguous tensor."""
    settled = list(strides)
    inner = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] <= 1:
            settled[axis] = inner
        inner = max(inner, settled[axis] * max(shape[axis], 1))
    return tuple(settled)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a fresh tensor, in elements."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)
