"""`python -m mlagen.emu run`, and the API for foreign PTX."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlagen.emu.__main__ import main
from mlagen.emu.emulator import Emulator
from mlagen.emu.interfaces import EmulatorError
from tests.emu.small_kernels import kernel

SAXPY = kernel(
    """
  ld.param.f32 %f1, [a];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.s32 %p1, %r5, %r1;
  @%p1 bra END;
  mul.wide.s32 %rd3, %r5, 4;
  add.s64 %rd4, %rd1, %rd3;
  add.s64 %rd5, %rd2, %rd3;
  ld.global.f32 %f2, [%rd4];
  mul.f32 %f3, %f1, %f2;
  st.global.f32 [%rd5], %f3;
END:
""",
    [".f32 a", ".u64 x", ".u64 y", ".u32 n"],
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "k.ptx").write_text(SAXPY)
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.float32))
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        "run", str(folder / "k.ptx"), "--grid", "4", "--block", "32", "--arg", "f32:2.5",
        "--arg", str(folder / "x.npy"), "--arg", f"poison:100:f32={folder / 'y.npy'}",
        "--arg", "i32:100", *more,
    ]  # fmt: skip


def test_run_writes_the_result(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(files, "--schedule", "eager", "--schedule", "random:3", "--profile")) == 0
    assert (np.load(files / "y.npy") == 2.5 * np.arange(100, dtype=np.float32)).all()
    text = capsys.readouterr().out
    assert "no findings" in text and "limit:" in text


def test_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(files, "--json")) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["same_result"] and row["instructions"] > 0 and row["findings"] == []


def test_faults_have_an_exit_status(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(files)[:-1], "i32:101"]) == 2
    assert "x.npy" in capsys.readouterr().err
    assert main(["run", str(files / "k.ptx"), "--arg", "what"]) == 2
    assert "would work" in capsys.readouterr().err


def test_arguments_are_checked() -> None:
    emulator = Emulator(SAXPY)
    x = emulator.array(np.zeros(4, np.float32))
    with pytest.raises(EmulatorError, match="takes 4 parameters"):
        emulator.launch("k", args=[x])
    with pytest.raises(EmulatorError, match="has 4 bytes, 8 were given"):
        emulator.launch("k", args=[x, x, x, 1])
    with pytest.raises(EmulatorError, match="no multiple of cluster"):
        emulator.launch("k", grid=3, cluster=2, args=[1.0, x, x, 1])
    with pytest.raises(EmulatorError, match="unknown schedule"):
        emulator.launch("k", schedule="sometimes", args=[1.0, x, x, 1])


def test_structs_torch_tensors_and_updates() -> None:
    torch: Any = pytest.importorskip("torch")
    text = kernel(
        """
  ld.param.u64 %rd1, [p+8];
  ld.param.v2.u32 {%r1, %r2}, [p];
  mov.u32 %r3, %tid.x;
  mul.wide.u32 %rd2, %r3, 4;
  add.s64 %rd1, %rd1, %rd2;
  ld.global.u32 %r4, [%rd1];
  mad.lo.u32 %r4, %r4, %r1, %r2;
  st.global.u32 [%rd1], %r4;
""",
        [".align 8 .b8 p[16]"],
    )
    data = torch.arange(32, dtype=torch.int32)
    emulator = Emulator(text)
    array = emulator.array(data, "data")
    args = [struct.pack("<IIQ", 3, 1, array.address)]
    emulator.launch("k", block=32, args=args)
    assert data.tolist() == [3 * i + 1 for i in range(32)]
    data.fill_(2)
    emulator.update()
    emulator.launch("k", block=32, args=args)
    assert data.tolist() == [7] * 32
    with pytest.raises(EmulatorError, match="contiguous"):
        emulator.array(torch.zeros(4, 4).t())
