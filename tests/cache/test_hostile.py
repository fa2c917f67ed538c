"""What happens to machines: kill -9, full disks, other users, links, clocks, other disks, fork and spawn."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sandbox
from test_store import NAME, folder_of, make_entry

from mlagen import cache as cache_module
from mlagen import cache_entry, log
from mlagen.cache import Cache
from mlagen.cache_entry import FILES, MANIFEST
from mlagen.fingerprint import Fingerprint

# The calls that change the disk while an entry is stored: after each of them the process may die.
CHANGES = ("mkdir", "open", "write", "fsync", "rename", "rmdir", "unlink")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("MLAGEN_CACHE_DIR", "MLAGEN_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    log.warn_once.cache_clear()
    yield
    log.warn_once.cache_clear()


def die_after(folder: Path, steps: int) -> bool:
    """Stores in a child that kills itself with SIGKILL before a change of the disk; whether it lived."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
        return status == 0
    left = [steps]

    def step(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in CHANGES:
        setattr(os, name, step(getattr(os, name)))
    try:
        os._exit(0 if Cache(folder).store(make_entry()) else 1)
    finally:
        os._exit(2)


def test_kill_9_at_every_step_of_a_store_leaves_a_whole_entry_or_none(tmp_path: Path) -> None:
    """Whatever it leaves, the next process stores and finds the entry, and nothing else is ever read."""
    entry, steps = make_entry(), 0
    while not die_after(root := tmp_path / str(steps), steps):
        cache = Cache(root)
        hit = cache.lookup(NAME, entry.key)
        assert hit is None or hit.entry == entry
        assert cache.get_or_build(NAME, entry.key, make_entry)[0] == entry
        assert (found := cache.lookup(NAME, entry.key)) is not None and found.entry == entry
        cache.collect_garbage(older_than=-10)
        assert not list((root / "v2" / "tmp").iterdir())
        steps += 1
    assert steps >= 3 * len(FILES), "every file is made, written and synced"


def test_kill_9_of_the_holder_frees_the_lock(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from mlagen.lock import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 1):\n    print('held', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")],
        env=sandbox.environment(None),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(TimeoutError), cache_module.exclusive(tmp_path / "lock", 0.1):
        pass
    holder.kill()
    holder.wait()
    with cache_module.exclusive(tmp_path / "lock", 1):
        pass
    holder.stdout.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_at_any_write_costs_a_warning_not_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    real, entry = cache_entry.write_synced, make_entry()
    for fails_at in range(len(FILES) + 1):
        written: list[Path] = []

        def write(path: Path, data: bytes, limit: int = fails_at, done: list[Path] = written) -> None:
            if len(done) == limit:
                path.write_bytes(data[: len(data) // 2])
                raise OSError(code, os.strerror(code))
            done.append(path)
            real(path, data)

        monkeypatch.setattr(cache_module, "write_synced", write)
        root = tmp_path / str(fails_at)
        log.warn_once.cache_clear()
        with caplog.at_level(logging.WARNING, "mlagen"):
            for _ in range(2):
                assert Cache(root).get_or_build(NAME, entry.key, make_entry) == (entry, None)
        assert "is not kept" in caplog.text and os.strerror(code) in caplog.text
        assert Cache(root).names() == {} and not list((root / "v2" / "tmp").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(place), b"tmpfs", 0, b"size=256k,mode=0700"):
        pytest.skip(f"a tmpfs cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    yield place
    libc.umount2(os.fsencode(place), 2)


def test_a_really_full_disk_costs_a_warning_and_clears_up(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entry, cache = make_entry(), Cache(small_disk)
    assert cache.store(entry)
    (small_disk / "ballast").write_bytes(bytes(small_disk.stat().st_blksize))
    big = entry._replace(
        key=make_entry("big").key, files={**entry.files, "kernel.cubin": os.urandom(300 * 1024)}
    )
    with caplog.at_level(logging.WARNING, "mlagen"):
        assert cache.get_or_build(NAME, big.key, lambda: big) == (big, None)
    assert "is not kept" in caplog.text
    assert cache.lookup(NAME, big.key) is None and cache.lookup(NAME, entry.key) is not None
    assert not list((small_disk / "v2" / "tmp").iterdir()), "what was written of it is gone"


@pytest.mark.parametrize("file", [*FILES, MANIFEST])
def test_every_truncation_and_flipped_bit_is_a_miss(tmp_path: Path, file: str) -> None:
    """Sampled over the whole length of each file, ends included."""
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)
    path = folder_of(cache, entry) / file
    whole = path.read_bytes()
    cuts = sorted({0, 1, len(whole) // 2, len(whole) - 1})
    flips = sorted({0, len(whole) // 3, len(whole) // 2, len(whole) - 1})
    damaged = [whole[:cut] for cut in cuts]
    for place in flips:
        for bit in (1, 32):
            damaged.append(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
    damaged.append(whole + b"\n")
    for data in damaged:
        if not path.parent.exists():
            assert cache.store(entry)
        path.write_bytes(data)
        assert cache.lookup(NAME, entry.key) is None, data[:40]
    assert cache.get_or_build(NAME, entry.key, lambda: entry)[0] == entry
    assert cache.lookup(NAME, entry.key) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_two_users_of_one_machine_do_not_meet(tmp_path: Path) -> None:
    """Another user gets nothing out of our folder and a folder of his own elsewhere; ours stays as it is."""
    tmp_path.chmod(0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    ours = Cache(shared / "cache")
    assert ours.store(make_entry())
    child = os.fork()
    if child == 0:
        try:
            os.chdir(shared)  # a path from here: the folders above may be closed to him
            os.setgid(12345)
            os.setuid(12345)
            his = Cache(Path("his"))
            refused = Cache(Path("cache")).private is None and his.private is not None
            fine = refused and his.store(make_entry()) and his.lookup(NAME, make_entry().key) is not None
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert (shared / "his" / "v2").stat().st_uid == 12345
    assert ours.lookup(NAME, make_entry().key) is not None
    assert Cache(shared / "his").private is None, "and we take no code from him"


def test_a_read_only_package_and_a_read_only_cache_still_give_kernels(tmp_path: Path) -> None:
    """Root passes over modes, so the read-only cache is one that nobody can make: below a file."""
    home = sandbox.copy_package(tmp_path / "site")
    for path in (*home.rglob("*"), home):
        path.chmod(0o555 if path.is_dir() else 0o444)
    override = sandbox.small_kernels(tmp_path / "src")
    (tmp_path / "file").write_text("")
    env = sandbox.environment(tmp_path / "cache", override, PYTHONPATH=str(home))
    assert sandbox.load(env)[0] == 1
    assert sandbox.load(env | {"MLAGEN_CACHE_DIR": str(tmp_path / "file" / "x")})[0] == 1
    assert not list(home.rglob("*.pyc"))


def test_a_home_behind_links_is_one_cache(tmp_path: Path) -> None:
    override = sandbox.small_kernels(tmp_path / "src")
    (tmp_path / "real" / "home").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    env = sandbox.environment(None, override, HOME=str(tmp_path / "link" / "home"))
    env.pop("XDG_CACHE_HOME", None)
    assert sandbox.load(env)[0] == 1
    assert sandbox.load(env | {"HOME": str(tmp_path / "real" / "home")})[0] == 0
    cache = tmp_path / "real" / "home" / ".cache" / "mlagen"
    cache.rename(tmp_path / "elsewhere")
    cache.symlink_to(tmp_path / "elsewhere")
    assert sandbox.load(env)[:2] == (0, 1)


def test_temp_on_another_file_system_does_not_matter(tmp_path: Path) -> None:
    """Entries are written beside their place, so no rename crosses a border; the cache may lie on a tmpfs."""
    override = sandbox.small_kernels(tmp_path / "src")
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    env = sandbox.environment(tmp_path / "cache", override, TMPDIR=str(other))
    assert sandbox.load(env)[0] == 1 and sandbox.load(env)[0] == 0
    cache = other / f"mlagen-{os.getpid()}"
    try:
        env = sandbox.environment(cache, override)
        assert sandbox.load(env)[0] == 1 and sandbox.load(env)[0] == 0
    finally:
        shutil.rmtree(cache)


@pytest.mark.parametrize("moment", [1, 2**33])
def test_a_clock_that_jumps_changes_nothing_but_what_gc_takes(tmp_path: Path, moment: int) -> None:
    """Files from 1970 or from the year 2242: found all the same, and gc never takes what is in use."""
    cache, entry = Cache(tmp_path), make_entry()
    cache.store(entry)
    for path in tmp_path.rglob("*"):
        os.utime(path, (moment, moment))
    assert cache.lookup(NAME, entry.key) is not None
    cache.collect_garbage()
    assert cache.lookup(NAME, entry.key) is not None
    assert cache.get_or_build(NAME, entry.key, pytest.fail)[0] == entry


def test_the_wait_for_a_lock_does_not_follow_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with cache_module.exclusive(tmp_path / "lock", 1):
        started = time.monotonic()
        with pytest.raises(TimeoutError), cache_module.exclusive(tmp_path / "lock", 0.2):
            pass
        assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize(
    "change",
    [
        lambda tools: tools._replace(nvrtc="13.9.1"),
        lambda tools: tools._replace(toolkit="0" * 32 + tools.toolkit[32:]),
        lambda tools: tools._replace(own="0" * 64),
    ],
    ids=["compiler", "header package", "own headers"],
)
def test_an_upgrade_of_each_part_of_the_toolchain_is_a_miss_and_the_way_back_a_hit(
    tmp_path: Path, change: Callable[[Fingerprint], Fingerprint]
) -> None:
    from mlagen.cache_key import make_key
    from mlagen.options import options
    from mlagen.spec import Arch

    tools = Fingerprint("13.0.88", "a" * 98, "b" * 64)
    keys = [make_key("r", options(Arch.SM_90A), Arch.SM_90A, "", item) for item in (tools, change(tools))]
    cache, entry = Cache(tmp_path), make_entry()
    old, new = (entry._replace(key=key) for key in keys)
    cache.store(old)
    assert cache.lookup(NAME, new.key) is None
    cache.store(new)
    assert cache.lookup(NAME, old.key) is not None and cache.lookup(NAME, new.key) is not None


def test_fork_and_spawn_children_find_what_the_parent_built(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "def work(number):\n"
        "    import mlagen\n"
        "    before = mlagen.stats().compiles\n"
        "    mlagen.build.load_artifact(mlagen.KernelSpec.from_name(sys.argv[2]))\n"
        "    return mlagen.stats().compiles - before\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    with context.Pool(2) as pool:\n        cold = pool.map(work, range(4))\n"
        "    first = work(0)\n"
        "    with context.Pool(2) as pool:\n        print(sum(cold), first, sum(pool.map(work, range(4))))\n"
    )
    override = sandbox.small_kernels(tmp_path / "src")
    for method in ("fork", "spawn"):
        env = sandbox.environment(tmp_path / method, override)
        command = [sys.executable, str(script), method, sandbox.SPEC.name]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.stdout.split() == ["1", "0", "0"], done.stderr


def test_a_fork_while_another_thread_holds_a_lock_does_not_hang(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with cache_module.exclusive(tmp_path / "lock", 5):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(5)
    child = os.fork()
    if child == 0:
        time.sleep(1)  # it has a copy of the descriptor, and lives on
        os._exit(0)
    leave.set()
    thread.join()
    with cache_module.exclusive(tmp_path / "lock", 0.5):
        pass
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_remembered_of_the_toolchain_is_never_believed_wrongly(tmp_path: Path) -> None:
    """Two runs agree; a damaged memory is read anew, a touched header too; a changed one is seen."""
    script = (
        "import json, sys\nfrom pathlib import Path\nfrom mlagen import known_tools, toolchain\n"
        "from mlagen.cache import private_root\n"
        "real, calls = toolchain.toolkit_digest, []\n"
        "toolchain.toolkit_digest = lambda tools: calls.append(1) or real(tools)\n"
        "known_tools.SETTLED_NS = int(sys.argv[1])\n"
        "found = known_tools.fingerprint(private_root())\n"
        "print(json.dumps([found.toolkit, len(calls)]))"
    )

    def run(settled: int = 0) -> tuple[str, int]:
        command = [sys.executable, "-c", script, str(settled)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return tuple(json.loads(done.stdout))  # type: ignore[return-value]

    site = tmp_path / "site"
    package = site / "nvidia_cutlass-4.2.0.0.dist-info"
    include = site / "cutlass_library" / "source" / "include"
    text = "".join(path.read_text() for path in (sandbox.ROOT / "templates").rglob("*.cuh"))
    name = re.findall(r"#include <(cute/[^>]+)>", text)[0]
    header, other = include / name, include / "cute" / "config.hpp"  # the other one is reached by nothing
    header.parent.mkdir(parents=True)
    package.mkdir()
    header.write_text("// one\n")
    other.write_text("// other\n")
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass\nVersion: 4.2.0.0\n")
    prefix = "cutlass_library/source/include"
    (package / "RECORD").write_text(f"{prefix}/{name},,\n{prefix}/cute/config.hpp,,\n")
    env = sandbox.environment(tmp_path / "cache", PYTHONPATH=f"{site}{os.pathsep}{sandbox.ROOT}")
    digest, _ = run(settled=10**18)
    assert run() == (digest, 1), "what has just changed was not remembered"
    assert run() == (digest, 0)
    (memory,) = (tmp_path / "cache" / "v2" / "tools").iterdir()
    for data in (b"", memory.read_bytes()[:-20], memory.read_bytes().replace(digest[:8].encode(), b"0" * 8)):
        memory.write_bytes(data)
        assert run() == (digest, 1)
        assert run() == (digest, 0)
    os.utime(other, (5, 5))
    assert run() == (digest, 0), "a header that no kernel reaches"
    os.utime(header, (5, 5))
    assert run() == (digest, 1)
    assert run() == (digest, 0)
    (include / "cuda_bf16.h").write_text("// in front of another\n")
    assert run()[1] == 1
    header.write_text("// two\n")
    os.utime(header, (5, 5))
    assert run()[0] != digest


def test_the_reachable_headers_hold_all_that_the_compiler_opens(tmp_path: Path) -> None:
    """Copies of nothing but them compile every family's kernel to the same bytes."""
    from mlagen import nvrtc, paths, toolchain
    from mlagen.include_closure import closure
    from mlagen.plan import make_plan
    from mlagen.render import render

    tools = toolchain.locate()
    roots = [folder for _, folder in tools.includes]
    own = [path for path in paths.include_root().rglob("*") if path.is_file()]
    files = [f"{item.folder}/{name}" for item in tools.headers for name in item.files]
    reached = closure(own, roots, files)
    assert reached is not None and len(own) < len(reached) < len(files) / 2
    moved = {}
    for place, root in enumerate(roots[1:]):
        for file in reached:
            if Path(file).is_relative_to(root):
                copy = tmp_path / str(place) / Path(file).relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(Path(file).read_bytes())
        moved[str(root)] = tmp_path / str(place)
    source = render(make_plan(sandbox.SPEC))
    whole = nvrtc.compile_source(source, sandbox.SPEC.arch, name="probe")
    symbolic = tuple(
        f"-I{moved[str(dict(tools.includes)[option[3:-1]])]}"
        if option.startswith("-I<") and option != "-I<mlagen>"
        else option
        for option in whole.options
    )
    part = nvrtc.compile_source(source, sandbox.SPEC.arch, name="probe", symbolic=symbolic)
    assert (part.cubin, part.ptx) == (whole.cubin, whole.ptx)


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ('#include "b.h"', ["a/b.h", "b.h"]),
        ("#  include <b.h>", ["a/b.h", "b.h"]),
        ("#if 0\n#include_next <c/d.h>\n#endif", ["c/d.h"]),
        ("#include HEADER(d.h)", None),
        ("#include HEADER(e)", ["c/e", "e"]),
        ("#include MACRO", None),
        ("int include;", []),
    ],
)
def test_include_lines_reach_all_that_they_could_mean(
    tmp_path: Path, line: str, reached: list[str] | None
) -> None:
    from mlagen.include_closure import closure

    files = ["a/b.h", "b.h", "c/d.h", "c/e", "e"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "a" / "own.cuh").write_text(f"{line}\n")
    found = closure([tmp_path / "a" / "own.cuh"], [tmp_path], [f"{tmp_path}/{name}" for name in files])
    wanted = None if reached is None else [f"{tmp_path}/{name}" for name in reached]
    assert found == wanted
