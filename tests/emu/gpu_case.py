"""What a recorded launch is (`Case`), and what fills the global memory of a whole kernel's launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Case:
    """One launch of the kernel `k`.

    Attributes:
        name: unique.
        ptx: module text.
        inputs: arrays, uploaded before the launch.
        output: shape and dtype of the output, zero before the launch.
        args: one per parameter: "in0" (an input), "out" (the output), "map" (the tensor map, over in0) or a
            number.
        block, grid, cluster, dynamic_shared: launch configuration; x extents, bytes.
        map: arguments of `encode_tiled` without the address.
        ulps: how far fp32 results may be from the recorded ones, in units of the last place; 0 asks for equal
            bits.
        absolute: a distance that also is near enough.
        floats: "f32", "f16x2" or "bf16x2" where the low 32 bits of each 64-bit output are such values: all
            NaNs count as equal, since the PTX ISA leaves their payload open.
    """

    name: str
    ptx: str
    inputs: list[np.ndarray]
    output: tuple[tuple[int, ...], Any]
    args: list[str | int]
    block: int = 128
    grid: int = 1
    cluster: int = 1
    dynamic_shared: int = 65536
    map: dict[str, Any] = field(default_factory=dict)
    ulps: int = 0
    absolute: float = 0.0
    floats: str = ""


_NAN_BITS = {"f16x2": (0x7C00, 0x7FFF), "bf16x2": (0x7F80, 0x7FFF)}


def canonical(case: Case, out: np.ndarray) -> np.ndarray:
    """The output with the NaN of an H200 (0x7FFFFFFF, 0x7FFF) in place of each NaN."""
    if not case.floats:
        return out
    out = out.copy()
    if case.floats == "f32":
        low = out.view(np.uint32)[::2]
        low[(low & 0x7FFFFFFF) > 0x7F800000] = 0x7FFFFFFF
    else:
        infinity, nan = _NAN_BITS[case.floats]
        halves = out.view(np.uint16).reshape(-1, 4)[:, :2]
        halves[(halves & 0x7FFF) > infinity] = nan
    return out


def normal(seed: int, count: int, scale: float, dtype: str) -> np.ndarray:
    """uint16 bits of nearly normal numbers, the same everywhere: sums of four bytes of a PCG64 stream."""
    octets = np.random.Generator(np.random.PCG64(seed)).bytes(4 * count)
    sums = np.frombuffer(octets, np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.int32) - 510
    values = sums.astype(np.float32) * np.float32(scale / 147.8)
    if dtype == "fp16":
        return values.astype(np.float16).view(np.uint16)
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def fill(image: np.ndarray, recipe: Sequence[dict[str, Any]]) -> None:
    """Write the steps of a recipe to uint8 memory, in order."""
    for step in recipe:
        at, view = step["at"], image[step["at"] :]
        if "hex" in step:
            data = np.frombuffer(bytes.fromhex(step["hex"]), np.uint8)
        elif "byte" in step:
            data = np.full(step["count"], step["byte"], np.uint8)
        else:
            data = normal(step["seed"], step["count"], step["scale"], step["dtype"]).view(np.uint8)
        assert at + data.size <= image.size
        view[: data.size] = data
