"""Bundles: nothing but the driver is needed, hosts agree, damage is found, merges are safe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sandbox
from test_store import make_entry

from mlagen import log
from mlagen.bundle import Writer, check, make_wheel, merge
from mlagen.bundle_index import INDEX
from mlagen.cache import Cache
from mlagen.cache_entry import FILES, Entry
from mlagen.errors import CacheError
from mlagen.spec import KernelSpec

INFO = {
    "spec": {},
    "registers": 168,
    "spill_stores": 0,
    "spill_loads": 0,
    "stack": 0,
    "smem_bytes": 1,
    "seconds": {"cpu": 3.1},
}
# Hides compiler, headers and template engine from a process: to import one of them is an error.
NOTHING_BUT_THE_DRIVER = (
    "import sys\nfrom importlib import metadata\nreal = metadata.distribution\n"
    "def distribution(name):\n"
    "    if name.startswith('nvidia-'):\n        raise metadata.PackageNotFoundError(name)\n"
    "    return real(name)\n"
    "metadata.distribution = distribution\n"
    "for name in ('jinja2', 'cuda.pathfinder', 'cuda.bindings.nvrtc', 'click', 'rich', 'numpy'):\n"
    "    sys.modules[name] = None\n"
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLAGEN_CACHE_DIR", "MLAGEN_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    log.warn_once.cache_clear()


def entry(text: str = "kernel", nvrtc: str = "13.0.88", **info: object) -> Entry:
    return make_entry(text, nvrtc)._replace(info={**INFO, **info})


def bundle(folder: Path, *entries: Entry) -> Path:
    writer = Writer(folder)
    for item in entries:
        writer.add(item)
    assert writer.finish() == len(list(folder.rglob("kernel.json")))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def build(env: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "mlagen", "build", *words, "--json"]
    subprocess.run(command, env=env, check=True, capture_output=True, cwd="/")


@pytest.fixture(scope="module")
def real_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one kernel, built from its rendered source."""
    folder = tmp_path_factory.mktemp("real")
    build(sandbox.environment(folder / "cache"), sandbox.SPEC.name, "--output", str(folder / "kit"))
    return folder / "kit"


def test_a_bundle_loads_with_nothing_but_the_driver(real_bundle: Path, tmp_path: Path) -> None:
    """The kernel is found and planned without template engine, headers or compiler."""
    script = NOTHING_BUT_THE_DRIVER + sandbox.LOAD + "assert mlagen.make_plan(spec).launch.threads\n"
    user = sandbox.environment(tmp_path / "other", MLAGEN_CACHE_PATH=str(real_bundle), MLAGEN_DISABLE_JIT="1")
    assert sandbox.python(script, user).split()[:2] == ["0", "1"]
    assert not list((tmp_path / "other").rglob("kernel.cubin"))


def test_a_bundle_holds_no_path_and_no_time(real_bundle: Path) -> None:
    for name, data in content(real_bundle).items():
        assert str(sandbox.ROOT).encode() not in data and b"site-packages" not in data, name
        assert b"Compile time" not in data and b"seconds" not in data, name


def test_two_hosts_make_the_same_bytes(tmp_path: Path) -> None:
    """Other paths, caches, hash seeds, locales, times and numbers of processes."""
    second = KernelSpec("sm_90a", "bf16", "bf16", 8, 64, 16, 1)  # type: ignore[arg-type]
    override = sandbox.small_kernels(tmp_path / "src", sandbox.SPEC, second)
    names = (sandbox.SPEC.name, second.name)
    one = sandbox.environment(tmp_path / "a", override, PYTHONHASHSEED="1", LC_ALL="C")
    build(one, *names, "--output", str(tmp_path / "one"), "--jobs", "1")
    home = sandbox.copy_package(tmp_path / "a b" / "é'x")
    (home / "mlagen" / "cli").symlink_to(sandbox.ROOT / "mlagen" / "cli")
    two = sandbox.environment(tmp_path / "c d", override, PYTHONHASHSEED="2", PYTHONPATH=str(home))
    build(two, *reversed(names), "--output", str(tmp_path / "two"), "--jobs", "2")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    text = b"".join(content(tmp_path / "one").values())
    for word in (str(tmp_path), str(sandbox.ROOT), os.uname().nodename):
        assert word.encode() not in text or len(word) < 5


def test_merging_adds_what_is_missing_in_any_order(tmp_path: Path) -> None:
    a, b = bundle(tmp_path / "a", entry("1"), entry("2")), bundle(tmp_path / "b", entry("2"), entry("3"))
    assert merge(tmp_path / "ab", [a, b]) == (3, 3)
    assert merge(tmp_path / "ba", [b, a]) == (3, 3)
    assert merge(tmp_path / "ab", [b]) == (0, 3)
    assert content(tmp_path / "ab") == content(tmp_path / "ba")
    assert check(tmp_path / "ab").faults == []


def test_times_do_not_make_bundles_differ_but_bytes_under_one_digest_do(tmp_path: Path) -> None:
    a = bundle(tmp_path / "a", entry(seconds={"cpu": 1.0}))
    b = bundle(tmp_path / "b", entry(seconds={"cpu": 9.0}))
    assert content(a) == content(b)
    other = entry()
    forged = other._replace(files={**other.files, "kernel.cubin": b"other"})
    c = bundle(tmp_path / "c", forged)
    with pytest.raises(CacheError, match=r"two kernels that differ in kernel\.cubin"):
        merge(a, [c])
    assert content(a) == content(b)


def test_kernels_of_two_compilers_live_side_by_side_and_the_own_one_is_preferred(tmp_path: Path) -> None:
    old, new = entry(nvrtc="13.0.88"), entry(nvrtc="13.5.37")
    kit = bundle(tmp_path / "kit", old, new)
    cache = Cache(tmp_path / "cache", first=(kit,))
    for mine in (old, new):
        hit = cache.lookup(mine.name, mine.key)
        assert hit is not None and hit.entry.key == mine.key
    for unknown in (None, "13.9.9"):
        hit = cache.lookup(old.name, old.key._replace(nvrtc=unknown))
        assert hit is not None and hit.entry.key.portable == old.key.portable
    assert cache.lookup(old.name, entry("other").key) is None


@pytest.mark.parametrize("file", [*FILES, "kernel.json", INDEX])
def test_damage_is_found_by_check_and_skipped_by_lookups(tmp_path: Path, file: str) -> None:
    kit = bundle(tmp_path / "kit", entry("1"), entry("2"))
    path = sorted(kit.rglob(file))[0]
    path.write_bytes(path.read_bytes().replace(b"1", b"3", 1)[:-3])
    try:
        assert len(check(kit).faults) == 1
    except CacheError as error:
        assert file == INDEX and "cannot be used" in str(error)
    with pytest.raises(CacheError):
        merge(tmp_path / "target", [kit])
    cache = Cache(tmp_path / "cache", first=(kit,))
    hits = [cache.lookup(item.name, item.key) for item in (entry("1"), entry("2"))]
    assert hits.count(None) == (0 if file == INDEX else 1), "without its manifest a digest is still found"
    assert path.exists(), "a bundle is never written to"


def test_a_row_too_many_a_missing_kernel_and_no_bundle_are_named(tmp_path: Path) -> None:
    kit = bundle(tmp_path / "kit", entry("1"), entry("2"))
    victim = sorted(kit.rglob("kernel.json"))[0].parent
    for path in victim.iterdir():
        path.unlink()
    victim.rmdir()
    assert victim.name in check(kit).faults[0]
    (tmp_path / "none").mkdir()
    with pytest.raises(CacheError, match=r"not a bundle.*mlagen build --output"):
        check(tmp_path / "none")
    with pytest.raises(CacheError, match="cannot be written"):
        Writer(Path("/dev/null/kit"))


def test_half_a_copy_is_written_again(tmp_path: Path) -> None:
    kit = bundle(tmp_path / "kit", entry())
    whole = content(kit)
    next(iter(kit.rglob("kernel.ptx"))).unlink()
    bundle(kit, entry())
    assert content(kit) == whole


def test_kernels_with_lines_of_this_machine_do_not_go_into_a_bundle(tmp_path: Path) -> None:
    item = entry()
    item = item._replace(key=item.key._replace(options=(*item.key.options, "-lineinfo")))
    with pytest.raises(CacheError, match="MLAGEN_LINEINFO"):
        Writer(tmp_path / "kit").add(item)


def test_others_can_read_a_bundle(tmp_path: Path) -> None:
    kit = bundle(tmp_path / "kit", entry())
    for path in kit.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_an_installed_wheel_is_found_without_a_setting(tmp_path: Path) -> None:
    """And the same bundle gives the same wheel."""
    override = sandbox.small_kernels(tmp_path / "src")
    kit = tmp_path / "kit"
    build(sandbox.environment(tmp_path / "cache", override), sandbox.SPEC.name, "--output", str(kit))
    wheel = make_wheel(kit, tmp_path, "v3")
    assert wheel.read_bytes() == make_wheel(kit, tmp_path / "again", "v3").read_bytes()
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--quiet",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    path = f"{tmp_path / 'site'}{os.pathsep}{sandbox.ROOT}"
    user = sandbox.environment(tmp_path / "other", override, PYTHONPATH=path, MLAGEN_DISABLE_JIT="1")
    assert sandbox.python(NOTHING_BUT_THE_DRIVER + sandbox.LOAD, user).split()[:2] == ["0", "1"]


def test_a_build_killed_at_any_time_goes_on_where_it_was(tmp_path: Path) -> None:
    specs = [KernelSpec("sm_90a", "bf16", "bf16", h, 64, 16, 1) for h in range(1, 9)]  # type: ignore[arg-type]
    override = sandbox.small_kernels(tmp_path / "src", *specs)
    names = [spec.name for spec in specs]
    for cache in (tmp_path / "cache", Path("/dev/null/none")):  # also where only the bundle keeps kernels
        kit = tmp_path / f"kit-{cache.name}"
        command = [
            sys.executable,
            "-m",
            "mlagen",
            "build",
            *names,
            "--output",
            str(kit),
            "--jobs",
            "1",
            "--json",
        ]
        env = sandbox.environment(cache, override)
        process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        while len(list(kit.rglob("kernel.json"))) < 2 and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        status = [row["status"] for row in json.loads(done.stdout)]
        assert status.count("cached") >= 2 and set(status) <= {"cached", "compiled"}
        assert len(check(kit).entries) == len(specs) and check(kit).faults == []
