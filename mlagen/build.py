"""Many specs -> compiled kernels and a report: the one way to a kernel, for JIT and for offline builds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlagen import known_tools, settings
from mlagen.artifact import Artifact, Order, artifact_of, entry_of, order
from mlagen.cache import Cache
from mlagen.cache_entry import Entry
from mlagen.errors import CacheError, CompileError, MlagenError, ToolchainError
from mlagen.fingerprint import Fingerprint
from mlagen.log import logger, warn_once
from mlagen.spec import KernelSpec

if TYPE_CHECKING:
    from mlagen.bundle import Writer
    from mlagen.report import Report, Row
    from mlagen.worker import Pool

__all__ = ["Artifact", "Stats", "build", "load_artifact", "on_compile", "stats"]


class Stats(NamedTuple):
    """Counts of this process since its start: compilations, cache hits, wall seconds of compiling."""

    compiles: int = 0
    hits: int = 0
    seconds: float = 0.0


_STATS = Stats()
_STATS_LOCK = threading.Lock()
_CALLBACKS: list[Callable[[str, str, float], None]] = []
# Kernels that no folder would take, by digest, so that they are compiled once a process.
_UNSAVED: dict[str, Entry] = {}


def stats() -> Stats:
    """The counts of this process until now."""
    return _STATS


def _count(*, compiles: int = 0, hits: int = 0, seconds: float = 0.0) -> None:
    global _STATS
    with _STATS_LOCK:
        _STATS = Stats(_STATS.compiles + compiles, _STATS.hits + hits, _STATS.seconds + seconds)


def on_compile(callback: Callable[[str, str, float], None]) -> Callable[[], None]:
    """Calls `callback(name, digest, seconds)` after every compilation of this process.

    Returns:
        A function that ends it.
    """
    _CALLBACKS.append(callback)
    return lambda: _CALLBACKS.remove(callback)


def tools_for(cache: Cache) -> Fingerprint | None:
    """The toolchain in place, None where kernels can only be read."""
    try:
        return known_tools.fingerprint(None if settings.read().override_dir else cache.private)
    except ToolchainError:
        return None


def _refuse(task: Order, cache: Cache) -> CacheError:
    digest = task.key.digest or task.key.portable
    folders = ", ".join(map(str, cache.folders)) or "none"
    return CacheError(
        f"{task.spec.name} is not built and MLAGEN_DISABLE_JIT forbids compiling it now. "
        f"Digest {digest}. Folders searched: {folders}. "
        f"Build it with `mlagen build {task.spec.name}`, or add the folder that has it to MLAGEN_CACHE_PATH"
    )


def _require_compiler(task: Order, cache: Cache) -> None:
    from mlagen import toolchain

    try:
        toolchain.locate()
    except ToolchainError as error:
        folders = ", ".join(map(str, cache.folders)) or "none"
        raise ToolchainError(
            f"{task.spec.name} is in no folder ({folders}), and {error}; "
            "or add a bundle that has it to MLAGEN_CACHE_PATH"
        ) from error


def _check_spills(task: Order, entry: Entry) -> None:
    info = entry.info
    if not settings.read().spill_check or not (info["spill_stores"] or info["spill_loads"] or info["stack"]):
        return
    raise CompileError(
        f"{task.spec.name}: {info['spill_stores']} B spill stores, {info['spill_loads']} B spill loads, "
        f"{info['stack']} B of stack; MLAGEN_SPILL_CHECK allows none",
        spec=task.spec,
        options=task.options,
        log=entry.files["kernel.log"].decode(),
    )


def _make(task: Order, pool: Pool | None) -> Entry:
    """Compiles one order in a worker, and tells the log, the counters and the callbacks."""
    from mlagen.worker import Job, Pool

    if pool is None:
        with Pool(1) as single:
            return _make(task, single)
    name = task.spec.name
    logger().info("compiling %s", name)
    started = time.perf_counter()
    result = pool.compile(Job(task.spec, task.source, task.options))
    seconds = time.perf_counter() - started
    entry = entry_of(task, result)
    logger().info("compiled %s in %.1f s (%s)", name, seconds, entry.key.digest)
    _count(compiles=1, seconds=seconds)
    for callback in tuple(_CALLBACKS):
        callback(name, entry.key.digest or "", seconds)
    return entry


def _obtain(task: Order, cache: Cache, pool: Pool | None, *, force: bool = False) -> Artifact:
    """The artifact of an order: from memory, a cache folder, or the compiler.

    Raises:
        CacheError, ToolchainError, CompileError: see `load_artifact`.
    """
    digest = task.key.digest
    saved = _UNSAVED.get(digest or "")
    hit = None if force else cache.lookup(task.spec.name, task.key)
    if hit is not None:
        entry, folder = hit.entry, hit.folder
    elif saved is not None and not force:
        entry, folder = saved, None
    elif settings.read().disable_jit:
        raise _refuse(task, cache)
    else:
        _require_compiler(task, cache)
        entry, folder = _compile_once(task, cache, pool, force=force)
    if hit is not None or saved is not None:
        _count(hits=1)
    _check_spills(task, entry)
    artifact = artifact_of(task.spec, entry, folder)
    _dump(artifact)
    return artifact


def _compile_once(task: Order, cache: Cache, pool: Pool | None, *, force: bool) -> tuple[Entry, Path | None]:
    if force:
        entry = _make(task, pool)
        cache.replace(entry)
        return entry, None
    entry, folder = cache.get_or_build(task.spec.name, task.key, lambda: _make(task, pool))
    if cache.private is None and entry.key.digest is not None:
        _UNSAVED[entry.key.digest] = entry
    return entry, folder


def _dump(artifact: Artifact) -> None:
    """Copies everything about a kernel to MLAGEN_DUMP_DIR, for reading."""
    folder = settings.read().dump_dir
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / artifact.name
    stem.with_name(f"{artifact.name}.cu").write_text(artifact.source, encoding="utf-8")
    stem.with_name(f"{artifact.name}.ptx").write_bytes(artifact.ptx)
    stem.with_name(f"{artifact.name}.cubin").write_bytes(artifact.cubin)
    stem.with_name(f"{artifact.name}.log").write_text(artifact.log, encoding="utf-8")
    from mlagen.sass import disassemble

    try:
        stem.with_name(f"{artifact.name}.sass").write_text(disassemble(artifact.cubin), encoding="utf-8")
    except ToolchainError as error:
        warn_once(f"no SASS in {folder}: {error}")


def load_artifact(spec: KernelSpec) -> Artifact:
    """One kernel, from a cache folder or compiled now.

    Args:
        spec: the kernel.

    Raises:
        SpecError: the spec cannot be built.
        CacheError: it is in no folder and MLAGEN_DISABLE_JIT is set.
        ToolchainError: it is in no folder and the compiler is not installed.
        CompileError: the compiler refused the source, or MLAGEN_SPILL_CHECK found spills.
    """
    cache = Cache()
    return _obtain(order(spec, tools_for(cache)), cache, None)


def row_of(artifact: Artifact) -> Row:
    """What a report says about one kernel."""
    from mlagen.report import Row

    info = artifact.manifest
    return Row(
        name=artifact.name,
        status="compiled" if artifact.folder is None else "cached",
        registers=info["registers"],
        spill_stores=info["spill_stores"],
        spill_loads=info["spill_loads"],
        stack=info["stack"],
        smem_bytes=info["smem_bytes"],
        cubin_bytes=len(artifact.cubin),
        seconds=info["seconds"],
        digest=info["digest"] or "",
        folder="" if artifact.folder is None else str(artifact.folder),
    )


def _one(
    spec: KernelSpec,
    *,
    tools: Fingerprint | None,
    cache: Cache,
    pool: Pool,
    force: bool,
    bundle: Writer | None,
) -> Row:
    """Obtains one kernel of a build, puts it into the bundle, and says how it went."""
    from mlagen.report import Row

    try:
        artifact = _obtain(order(spec, tools), cache, pool, force=force)
        if bundle is not None:
            bundle.add(artifact.entry)
        return row_of(artifact)
    except MlagenError as error:
        return Row(name=spec.name, status="failed", error=str(error))


def build(
    specs: Iterable[KernelSpec],
    *,
    jobs: int | None = None,
    output: Path | None = None,
    force: bool = False,
    progress: Callable[[Row], None] | None = None,
) -> Report:
    """Builds every spec that is in no cache folder yet.

    Args:
        specs: kernels, in any order; each is built once.
        jobs: compiler processes at a time; by default MLAGEN_JOBS, else all cores that the free memory
            serves.
        output: also put every kernel into this bundle, a folder.
        force: compile even what is cached.
        progress: called in the caller's thread with the row of each kernel as it is done.

    Returns:
        A report. A kernel that fails is a row of it; the others are built all the same. A build that was
        killed goes on where it was: every kernel is kept as soon as it is done.

    Raises:
        CacheError: the output folder cannot be written.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    from mlagen.bundle import Writer
    from mlagen.report import Report
    from mlagen.worker import Pool, default_jobs

    wanted = list(dict.fromkeys(specs))
    started = time.perf_counter()
    size = max(1, min(jobs or settings.read().jobs or default_jobs(), len(wanted)))
    bundle = None if output is None else Writer(output)
    cache = Cache(first=() if output is None else (output,))
    tools = tools_for(cache)
    rows: dict[KernelSpec, Row] = {}

    with Pool(size) as pool, ThreadPoolExecutor(size) as threads:
        one = partial(_one, tools=tools, cache=cache, pool=pool, force=force, bundle=bundle)
        pending = {threads.submit(one, spec): spec for spec in wanted}
        try:
            for future in as_completed(pending):
                row = rows[pending[future]] = future.result()
                if progress is not None:
                    progress(row)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            pool.close()
            raise
    if bundle is not None:
        bundle.finish()
    return Report(tuple(rows[spec] for spec in wanted), round(time.perf_counter() - started, 3))
