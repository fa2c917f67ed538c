"""Arguments of a kernel as text, for `python -m mlagen.emu run`.

    i32:7  u64:9  f32:1.5               a number
    x.npy                               an array; the kernel gets its address
    zeros:512:f32                       a zeroed array; `poison:512:f32` one that counts as never written
    ...=y.npy                           after an array: write it to a file when the kernel has ended
    map:a.npy,box=64x64,swizzle=128     a tensor map over an array, innermost dimension first; also
                                        type=BFLOAT16, extents=64x512, strides=128 (bytes, without the
                                        innermost), fill=nan
    struct:params.bin                   the bytes of a by-value struct; `struct:160` is 160 zeros
    struct:160@0:map:...@128:x.npy      with other arguments at byte offsets of it

An array that is named twice is one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlagen.emu.emulator import Argument, Emulator, GlobalArray, argument_bytes
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.tensormap import ElementType, Fill, Swizzle, encode_tiled

TYPES: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_SWIZZLES = {"0": Swizzle.NONE, "32": Swizzle.B32, "64": Swizzle.B64, "128": Swizzle.B128}
_MAP_OPTIONS = ("box", "swizzle", "type", "extents", "strides", "element_strides", "fill")


class Arguments:
    """Reads argument texts for one emulator.

    Attributes:
        files: arrays that are to be written to files afterwards.
    """

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.files: dict[Path, GlobalArray] = {}
        self._arrays: dict[str, GlobalArray] = {}

    def read(self, text: str) -> Argument:
        """One argument.

        Raises:
            EmulatorError: it cannot be read; the message says what would work.
            OSError: a file cannot be read.
        """
        kind, _, rest = text.partition(":")
        try:
            if kind in TYPES:
                value: Any = TYPES[kind](float(rest) if kind[0] == "f" else int(rest, 0))
                return value  # type: ignore[no-any-return]
            if kind == "struct":
                return self._struct(rest)
            if kind == "map":
                return self._map(rest)
            return self._array(text)
        except ValueError as error:
            if isinstance(error, EmulatorError):
                raise
            raise EmulatorError(f"--arg {text}: {error}") from None

    def _array(self, text: str) -> GlobalArray:
        name, _, target = text.partition("=")
        array = self._arrays.get(name)
        if array is None:
            kind, _, rest = name.partition(":")
            if kind in ("zeros", "poison"):
                count, _, dtype = rest.partition(":")
                if (dtype or "f32") not in TYPES:
                    raise EmulatorError(f"--arg {text}: no type {dtype}; {', '.join(TYPES)} would work")
                data = np.zeros(int(count), TYPES[dtype or "f32"])
            elif name.endswith(".npy"):
                data = np.ascontiguousarray(np.load(name))
            else:
                raise EmulatorError(
                    f"--arg {text}: a type (i32:7), a .npy file, zeros:N:TYPE, poison:N:TYPE, map:... or "
                    "struct:... would work"
                )
            array = self._arrays[name] = self.emulator.array(data, name, written=kind != "poison")
        if target:
            self.files[Path(target)] = array
        return array

    def _struct(self, text: str) -> bytes:
        first, *parts = text.split("@")
        data = bytearray(int(first)) if first.isdigit() else bytearray(Path(first).read_bytes())
        for part in parts:
            offset, _, inner = part.partition(":")
            value = self.read(inner)
            piece = argument_bytes(value, 8)
            end = int(offset) + len(piece)
            if end > len(data):
                raise EmulatorError(
                    f"--arg struct:{text}: {inner} ends at byte {end}, {end - len(data)} behind the struct"
                )
            data[int(offset) : end] = piece
        return bytes(data)

    def _map(self, text: str) -> bytes:
        name, *options = text.split(",")
        given = dict(option.partition("=")[::2] for option in options)
        unknown = sorted(set(given) - set(_MAP_OPTIONS))
        if unknown or "box" not in given:
            raise EmulatorError(
                f"--arg map:{text}: {'no box' if not unknown else f'unknown {unknown}'}; "
                f"{', '.join(_MAP_OPTIONS)} would work"
            )
        array = self._array(name)
        data = array.data
        extents = _numbers(given["extents"]) if "extents" in given else data.shape[::-1]
        strides = _numbers(given["strides"]) if "strides" in given else data.strides[::-1][1:]
        return encode_tiled(
            _element(given.get("type", ""), data.dtype),
            array.address,
            extents,
            strides,
            _numbers(given["box"]),
            _numbers(given["element_strides"]) if "element_strides" in given else None,
            swizzle=_swizzle(given.get("swizzle", "0")),
            fill=Fill.NAN if given.get("fill") == "nan" else Fill.ZERO,
        )


def _numbers(text: str) -> Sequence[int]:
    return tuple(int(part) for part in text.split("x"))


def _swizzle(text: str) -> Swizzle:
    if text not in _SWIZZLES:
        raise EmulatorError(f"swizzle={text}: {', '.join(_SWIZZLES)} (bytes) would work")
    return _SWIZZLES[text]


def _element(name: str, dtype: Any) -> ElementType:
    wanted = name or str(np.dtype(dtype).name).upper()
    if wanted not in ElementType.__members__:
        raise EmulatorError(f"type={wanted}: {', '.join(ElementType.__members__)} would work")
    return ElementType[wanted]
