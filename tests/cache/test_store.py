"""Entries on disk: whole or not there, whatever happens to them."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlagen import cache as cache_module
from mlagen import log
from mlagen.cache import Cache
from mlagen.cache_entry import FILES, MANIFEST, Entry
from mlagen.cache_key import Key, make_key
from mlagen.errors import CacheError
from mlagen.fingerprint import Fingerprint
from mlagen.options import options
from mlagen.spec import Arch

NAME = "mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s16_1sm"
TOOLS = Fingerprint(nvrtc="13.0.88", toolkit="a" * 32, own="b" * 64)


def make_entry(text: str = "kernel", nvrtc: str = "13.0.88") -> Entry:
    tools = Fingerprint(nvrtc=nvrtc, toolkit=TOOLS.toolkit, own=TOOLS.own)
    key = make_key(text, options(Arch.SM_90A), Arch.SM_90A, "", tools)
    files = {name: f"{name} of {text}\n".encode() * 50 for name in FILES}
    files["kernel.cu"] = text.encode()
    return Entry(NAME, key, files, {"registers": 168})


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("MLAGEN_CACHE_DIR", "MLAGEN_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    log.warn_once.cache_clear()
    yield
    log.warn_once.cache_clear()


def folder_of(cache: Cache, entry: Entry) -> Path:
    assert cache.private is not None and entry.key.digest is not None
    return cache.private.entry(entry.name, entry.key.digest)


def test_an_entry_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    assert cache.lookup(NAME, entry.key) is None
    assert cache.store(entry)
    hit = Cache(tmp_path).lookup(NAME, entry.key)
    assert hit is not None and hit.entry == entry
    assert sorted(path.name for path in hit.folder.iterdir()) == sorted([*FILES, MANIFEST])
    assert not list((tmp_path / "v2" / "tmp").iterdir())


def test_entries_are_private(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path / "new"), make_entry()
    cache.store(entry)
    for path in (tmp_path / "new" / "v2", *folder_of(cache, entry).iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "byte flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "removed": lambda path: path.unlink(),
    "a folder": replace_by_folder,
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", [*FILES, MANIFEST])
def test_any_damage_is_a_miss_logged_once_moved_aside_and_rebuilt(
    tmp_path: Path, file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)
    DAMAGE[damage](folder_of(cache, entry) / file)
    with caplog.at_level(logging.WARNING, "mlagen"):
        assert cache.lookup(NAME, entry.key) is None
        assert cache.lookup(NAME, entry.key) is None
    assert len(caplog.records) == 1
    assert "built again" in caplog.records[0].getMessage()
    assert len(list((tmp_path / "v2" / "quarantine").iterdir())) == 1
    assert cache.get_or_build(NAME, entry.key, lambda: entry) == (entry, None)
    hit = cache.lookup(NAME, entry.key)
    assert hit is not None and hit.entry == entry


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    body = json.loads((folder / MANIFEST).read_text())
    change(body)
    (folder / MANIFEST).write_text(json.dumps(body))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["info"].update(registers=1),
        lambda body: body["key"].update(nvrtc="13.5.37"),
        lambda body: body.update(name="other"),
        lambda body: body["files"].pop("kernel.ptx"),
        lambda body: body.pop("self"),
        lambda body: body.update(schema=99),
    ],
)
def test_an_edited_manifest_is_a_miss(tmp_path: Path, change: Callable[[dict[str, object]], object]) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)
    edit(folder_of(cache, entry), change)
    assert cache.lookup(NAME, entry.key) is None


def test_an_entry_under_a_foreign_digest_or_name_is_a_miss(tmp_path: Path) -> None:
    """For example files of another architecture or compiler, copied by hand."""
    cache, entry, other = Cache(tmp_path), make_entry(), make_entry("other")
    cache.store(other)
    shutil.copytree(folder_of(cache, other), folder_of(cache, entry))
    assert cache.lookup(NAME, entry.key) is None
    wrong = cache.private.entry("mla_decode_x", other.key.digest or "")  # type: ignore[union-attr]
    shutil.copytree(folder_of(cache, other), wrong)
    assert cache.lookup("mla_decode_x", other.key) is None


def test_something_else_in_the_place_of_an_entry_is_moved_aside(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    place = folder_of(cache, entry)
    for make in (place.mkdir, lambda: place.write_text("x"), lambda: place.symlink_to("nowhere")):
        place.parent.mkdir(parents=True, exist_ok=True)
        make()
        assert cache.lookup(NAME, entry.key) is None
        assert not os.path.lexists(place)
    assert cache.store(entry)


def test_left_over_temporary_files_are_never_read_and_removed_when_old(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)
    place = folder_of(cache, entry)
    old, new = tmp_path / "v2" / "tmp" / "1-old", tmp_path / "v2" / "tmp" / "2-new"
    shutil.copytree(place, old)
    shutil.move(place, new)
    os.utime(old, (1, 1))
    assert cache.lookup(NAME, entry.key) is None
    assert cache.names() == {}
    assert cache.collect_garbage() == 1
    assert not old.exists() and new.exists()


def test_the_loser_of_a_rename_keeps_its_own_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename fails because somebody was faster, and this host does not even see the winner's folder."""
    cache, entry = Cache(tmp_path), make_entry()

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.EEXIST, "exists")

    monkeypatch.setattr(Path, "rename", fail)
    assert cache.get_or_build(NAME, entry.key, lambda: entry) == (entry, None)


def test_the_loser_leaves_the_winner_alone(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    assert cache.store(entry)
    inode = folder_of(cache, entry).stat().st_ino
    assert cache.store(entry)
    assert folder_of(cache, entry).stat().st_ino == inode
    assert not list((tmp_path / "v2" / "tmp").iterdir())


@pytest.mark.parametrize(
    "code", [errno.EBUSY, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EXDEV, errno.EIO]
)
def test_a_disk_that_refuses_costs_a_warning_not_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache, entry = Cache(tmp_path), make_entry()

    def fail(self: Path, target: Path) -> Path:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "rename", fail)
    with caplog.at_level(logging.WARNING, "mlagen"):
        assert cache.get_or_build(NAME, entry.key, lambda: entry) == (entry, None)
    assert "is not kept" in caplog.text


def test_a_tree_that_vanishes_while_storing_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    real, calls = Path.rename, []

    def vanish_once(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 1:
            shutil.rmtree(tmp_path / "v2")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", vanish_once)
    assert cache.store(entry)
    assert cache.lookup(NAME, entry.key) is not None


def test_many_threads_of_one_process_make_a_kernel_once(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    made, results = [], []
    barrier = threading.Barrier(16)

    def make() -> Entry:
        made.append(threading.get_ident())
        return entry

    def work() -> None:
        barrier.wait()
        results.append(cache.get_or_build(NAME, entry.key, make)[0])

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [entry] * 16
    assert len(made) == 1


def test_two_threads_that_store_at_the_same_moment_do_not_meet(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    barrier, stored = threading.Barrier(8), []

    def work() -> None:
        barrier.wait()
        stored.append(cache.store(entry))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored == [True] * 8
    assert cache.lookup(NAME, entry.key) is not None


def test_without_locks_the_result_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(cache_module, "exclusive", refuse)
    cache, entry = Cache(tmp_path), make_entry()
    assert cache.get_or_build(NAME, entry.key, lambda: entry)[0] == entry
    assert cache.lookup(NAME, entry.key) is not None


def test_a_lock_held_for_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0.2)
    cache, entry = Cache(tmp_path), make_entry()
    with cache._lock(entry.key):
        assert cache.get_or_build(NAME, entry.key, lambda: entry)[0] == entry


def test_a_failed_build_leaves_nothing_and_frees_the_lock(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()

    def fail() -> Entry:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.get_or_build(NAME, entry.key, fail)
    assert cache.names() == {}
    assert cache.get_or_build(NAME, entry.key, lambda: entry)[0] == entry


def test_a_key_without_compiler_is_neither_stored_nor_found_in_the_private_folder(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    key: Key = make_key("kernel", options(Arch.SM_90A), Arch.SM_90A, TOOLS.own, None)
    lone = Entry(NAME, key, entry.files, {})
    assert not cache.store(lone)
    cache.store(entry)
    assert cache.lookup(NAME, key) is None


def test_replace_puts_the_new_entry_in_place(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)
    again = Entry(NAME, entry.key, {**entry.files, "kernel.log": b"new"}, {})
    assert cache.replace(again)
    hit = cache.lookup(NAME, entry.key)
    assert hit is not None and hit.entry == again


def test_remove_takes_one_kernel_the_old_ones_or_all(tmp_path: Path) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    other = Entry(NAME.replace("h16", "h8"), make_entry("other").key, make_entry("other").files, {})
    cache.store(entry)
    cache.store(other)
    assert cache.remove([NAME]) == 1
    assert cache.lookup(NAME, entry.key) is None
    assert cache.lookup(other.name, other.key) is not None
    assert cache.remove(older_than=3600) == 0
    os.utime(folder_of(cache, other) / MANIFEST, (1, 1))
    assert cache.remove(older_than=3600) == 1
    cache.store(other)
    assert cache.remove() == 1
    assert cache.names() == {}


def test_remove_says_what_it_cannot_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(errno.EACCES, "no")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CacheError, match=str(folder_of(cache, entry))):
        cache.remove()
