"""Generated code on disk: used again, never damaged, never out of date."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlagen.emu import code_cache, emulator
from mlagen.emu.codegen import Program
from tests.emu.small_kernels import THREAD, kernel, run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test alone, and short kernels kept as long ones are."""
    monkeypatch.setenv("MLAGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(emulator, "LONG", 1)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """As a new process: nothing in memory."""
    emulator._MODULES.clear()
    emulator._PROGRAMS.clear()


TEXT = kernel(
    THREAD
    + """
  setp.lt.u32 %p1, %r1, 7;
  @%p1 bra LOW;
  add.u32 %r9, %r1, 100;
  bra STORE;
LOW:
  mul.lo.u32 %r9, %r1, 3;
STORE:
  bar.sync 0;
  st.global.u32 [%rd3], %r9;
""",
    [".u64 out"],
)
EXPECTED = np.where(np.arange(32) < 7, 3 * np.arange(32), np.arange(32) + 100)


def result() -> Any:
    out = np.zeros(32, np.uint32)
    run(TEXT, [out], block=32)
    return out


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob(f"{code_cache.FOLDER}/*") if p.is_file())


def test_a_new_process_generates_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (result() == EXPECTED).all()
    assert len(entries(folder)) == 2
    forget()

    def refuse(*args: object) -> None:
        raise AssertionError("code was generated")

    monkeypatch.setattr(Program, "_execute", refuse)
    monkeypatch.setattr(emulator, "parse_module", refuse)
    assert (result() == EXPECTED).all()


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damaged_entries_count_as_missing(folder: Path, damage: bytes | None) -> None:
    result()
    for path in entries(folder):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    forget()
    assert (result() == EXPECTED).all()
    assert all(code_cache.load(p.name) is not None for p in entries(folder)), "not written anew"


def test_other_sources_of_the_emulator_have_other_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    one = code_cache.key_of("module", "x")
    assert one != code_cache.key_of("module", "y")
    monkeypatch.setattr(code_cache, "emulator_digest", lambda: b"another")
    assert one != code_cache.key_of("module", "x")


def test_what_cannot_be_written_is_only_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    assert (result() == EXPECTED).all()
    assert entries(folder) == []
    code_cache.store("key", lambda: None)


def test_writers_do_not_disturb_readers(folder: Path) -> None:
    values = [bytes([i]) * 100_000 for i in range(8)]
    seen: list[Any] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(code_cache.load("shared"))

    reader = threading.Thread(target=read)
    writers = [
        threading.Thread(target=lambda v=v: [code_cache.store("shared", v) for _ in range(20)])
        for v in values
    ]
    code_cache.store("shared", values[0])
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    reader.join()
    assert seen and all(value in values for value in seen)
    assert [p.name for p in entries(folder)] == ["shared"]
