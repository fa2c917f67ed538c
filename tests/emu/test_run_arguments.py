"""Arguments of kernels as text."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from mlagen.emu.emulator import Emulator, GlobalArray
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.run_arguments import Arguments
from mlagen.emu.tensormap import ElementType, Fill, Swizzle, encode_tiled
from tests.emu.small_kernels import kernel


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.zeros((8, 64), np.float16))
    Path("p.bin").write_bytes(bytes(range(32)))
    return Arguments(Emulator(kernel("")))


def test_numbers_and_arrays(arguments: Arguments) -> None:
    assert arguments.read("i32:-7") == np.int32(-7) and arguments.read("u64:0x10") == np.uint64(16)
    array = arguments.read("a.npy=out.npy")
    assert isinstance(array, GlobalArray) and arguments.read("a.npy") is array
    assert arguments.files == {Path("out.npy"): array}


def test_maps(arguments: Arguments) -> None:
    text = "map:a.npy,box=32x8,swizzle=64,type=BFLOAT16,extents=48x8,element_strides=1x2,fill=nan"
    array = arguments.read("a.npy")
    assert isinstance(array, GlobalArray)
    want = encode_tiled(
        ElementType.BFLOAT16,
        array.address,
        (48, 8),
        (128,),
        (32, 8),
        (1, 2),
        swizzle=Swizzle.B64,
        fill=Fill.NAN,
    )
    assert arguments.read(text) == want
    plain = encode_tiled(ElementType.FLOAT16, array.address, (64, 8), (128,), (64, 4))
    assert arguments.read("map:a.npy,box=64x4") == plain


def test_structs(arguments: Arguments) -> None:
    array = arguments.read("a.npy")
    assert isinstance(array, GlobalArray)
    got = arguments.read("struct:p.bin@8:a.npy@16:f32:1.5@20:i8:-1")
    want = bytes(range(8)) + struct.pack("<Qfb", array.address, 1.5, -1) + bytes(range(21, 32))
    assert got == want
    assert arguments.read("struct:16@4:u32:7") == struct.pack("<IIQ", 0, 7, 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ("a.txt", "would work"),
        ("i32:x", "i32:x"),
        ("zeros:5:f99", "no type f99"),
        ("map:a.npy", "no box"),
        ("map:a.npy,box=64x8,colour=1", "colour"),
        ("map:a.npy,box=64x8,swizzle=48", "128"),
        ("map:a.npy,box=64x8,type=BF16", "BFLOAT16"),
        ("map:a.npy,box=64x8,swizzle=64", "64"),
        ("struct:16@12:u64:1", "4 behind the struct"),
    ],
)
def test_what_cannot_be_read(arguments: Arguments, text: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        arguments.read(text)
