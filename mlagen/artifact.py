"""One kernel on its way: what has to be compiled (Order) and what was compiled (Artifact)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlagen import settings, toolchain
from mlagen.cache import store_entry
from mlagen.cache_entry import Entry, Root
from mlagen.cache_key import Key, key_of_parts, make_key
from mlagen.compile import CompileResult, options
from mlagen.errors import CacheError
from mlagen.log import warn_once
from mlagen.plan import make_plan
from mlagen.plan.model import Plan
from mlagen.render import render
from mlagen.spec import KernelSpec


@dataclass(frozen=True, slots=True)
class Artifact:
    """A kernel that is ready to be loaded.

    Attributes:
        name: kernel name, also the symbol of the main entry.
        spec: what it was built for.
        cubin: machine code.
        ptx: PTX text, for the emulator; it is never given to a driver.
        source: the rendered source.
        log: compiler log.
        manifest: numbers of the compilation and all parts of the cache key.
        folder: where it was read from; None if it was compiled just now.
    """

    name: str
    spec: KernelSpec
    cubin: bytes
    ptx: bytes
    source: str
    log: str
    manifest: dict[str, Any]
    folder: Path | None


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that one compilation needs, settled before it starts."""

    spec: KernelSpec
    plan: Plan
    source: str
    options: tuple[str, ...]
    key: Key


def order(spec: KernelSpec, tools: toolchain.Fingerprint | None = None) -> Order:
    """Plan, source, options and key of a spec.

    Args:
        spec: the kernel.
        tools: compiler and headers in place, None where they are not installed.

    Raises:
        SpecError, BudgetError: the spec cannot be built.
    """
    plan = make_plan(spec)
    source = _overridden(spec) or render(plan)
    chosen = options(spec.arch)
    key = make_key(source, chosen, spec.arch, toolchain.own_digest(), tools)
    return Order(spec, plan, source, chosen, key)


def _overridden(spec: KernelSpec) -> str | None:
    folder = settings.read().override_dir
    path = None if folder is None else folder / f"{spec.name}.cu"
    if path is None or not path.is_file():
        return None
    warn_once(f"{spec.name}: source taken from {path} in place of the rendered one")
    return path.read_text(encoding="utf-8")


def spec_dict(spec: KernelSpec) -> dict[str, Any]:
    """A spec as JSON values."""
    return {
        **asdict(spec),
        "arch": str(spec.arch),
        "q_dtype": str(spec.q_dtype),
        "kv_dtype": str(spec.kv_dtype),
    }


def entry_of(task: Order, result: CompileResult) -> Entry:
    """The cache entry of a compilation; its key names the compiler and headers that were really used."""
    key = make_key(task.source, task.options, task.spec.arch, result.fingerprint.own, result.fingerprint)
    info = {
        "spec": spec_dict(task.spec),
        "registers": result.registers,
        "spill_stores": result.spill_stores,
        "spill_loads": result.spill_loads,
        "stack": result.stack,
        "smem_bytes": task.plan.smem_bytes,
        "static_smem": result.smem,
        "functions": [asdict(row) for row in result.functions],
        "seconds": asdict(result.seconds),
    }
    files = {
        "kernel.cu": task.source.encode(),
        "kernel.ptx": result.ptx,
        "kernel.cubin": result.cubin,
        "kernel.log": result.log.encode(),
    }
    return Entry(task.spec.name, key, files, info)


def artifact_of(spec: KernelSpec, entry: Entry, folder: Path | None) -> Artifact:
    """The artifact that an entry holds."""
    manifest = {**entry.info, "key": entry.key.parts, "digest": entry.key.digest}
    return Artifact(
        name=entry.name,
        spec=spec,
        cubin=entry.files["kernel.cubin"],
        ptx=entry.files["kernel.ptx"],
        source=entry.files["kernel.cu"].decode(),
        log=entry.files["kernel.log"].decode(),
        manifest=manifest,
        folder=folder,
    )


def export(artifact: Artifact, folder: Path) -> Path:
    """Puts a kernel into a folder of prebuilt kernels, to be named in MLAGEN_CACHE_PATH elsewhere.

    Raises:
        CacheError: the folder does not take it.
    """
    info = {name: value for name, value in artifact.manifest.items() if name not in ("key", "digest")}
    key = key_of_parts(artifact.manifest["key"])
    files = {
        "kernel.cu": artifact.source.encode(),
        "kernel.ptx": artifact.ptx,
        "kernel.cubin": artifact.cubin,
        "kernel.log": artifact.log.encode(),
    }
    root = Root(folder, private=True)
    if not store_entry(root, Entry(artifact.name, key, files, info), key.source_digest):
        raise CacheError(f"{artifact.name} could not be written to {folder}")
    return root.entry(artifact.name, key.source_digest)
