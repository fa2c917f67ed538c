"""One kernel on its way: what has to be compiled (Order) and what was compiled (Artifact)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mlagen import settings
from mlagen.cache_entry import Entry
from mlagen.cache_key import Key, make_key
from mlagen.errors import ToolchainError
from mlagen.fingerprint import Fingerprint, own_digest
from mlagen.log import warn_once
from mlagen.options import options
from mlagen.plan import make_plan
from mlagen.plan.model import Plan
from mlagen.recipe import recipe_of, recipe_of_text
from mlagen.spec import KernelSpec

if TYPE_CHECKING:
    from mlagen.nvrtc import CompileResult


class Artifact(NamedTuple):
    """A kernel that is ready to be loaded.

    Attributes:
        name: kernel name, also the symbol of the main entry.
        spec: what it was built for.
        cubin: machine code.
        ptx: PTX text, for the emulator; it is never given to a driver.
        source: the rendered source.
        log: compiler log.
        manifest: numbers of the compilation and all parts of the cache key; `seconds` is empty for a kernel
            from a bundle, which holds nothing that differs from run to run.
        folder: where it was read from; None if it was compiled just now.
        entry: as it lies in a cache folder.
    """

    name: str
    spec: KernelSpec
    cubin: bytes
    ptx: bytes
    source: str
    log: str
    manifest: dict[str, Any]
    folder: Path | None
    entry: Entry


@dataclass(frozen=True)
class Order:
    """Everything that one compilation needs, settled before it starts. The source is rendered when it is
    asked for: finding a kernel does not need it.
    """

    spec: KernelSpec
    plan: Plan
    options: tuple[str, ...]
    key: Key
    override: str | None

    @cached_property
    def source(self) -> str:
        """The complete source text.

        Raises:
            ToolchainError: the template engine is not installed.
        """
        if self.override is not None:
            return self.override
        from mlagen.render import render

        return render(self.plan)


def order(spec: KernelSpec, tools: Fingerprint | None = None) -> Order:
    """Plan, options and key of a spec.

    Args:
        spec: the kernel.
        tools: compiler and headers in place, None where they are not installed.

    Raises:
        SpecError, BudgetError: the spec cannot be built.
    """
    plan = make_plan(spec)
    text = _overridden(spec)
    recipe = recipe_of(plan) if text is None else recipe_of_text(text)
    chosen = options(spec.arch)
    own = own_digest() if tools is None else tools.own
    return Order(spec, plan, chosen, make_key(recipe, chosen, spec.arch, own, tools), text)


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
    """The cache entry of a compilation; its key names the compiler and headers that were really used.

    Raises:
        ToolchainError: templates or printing code changed since the order was settled.
    """
    if task.override is None and recipe_of(task.plan) != task.key.recipe:
        raise ToolchainError(f"{task.spec.name}: templates changed while it was compiled; compile again")
    used = result.fingerprint
    key = make_key(task.key.recipe, task.options, task.spec.arch, used.own, used)
    info = {
        "spec": spec_dict(task.spec),
        "smem_bytes": task.plan.smem_bytes,
        "registers": result.registers,
        "spill_stores": result.spill_stores,
        "spill_loads": result.spill_loads,
        "stack": result.stack,
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
    manifest = {"seconds": {}, **entry.info, "key": entry.key.parts, "digest": entry.key.digest}
    return Artifact(
        name=entry.name,
        spec=spec,
        cubin=entry.files["kernel.cubin"],
        ptx=entry.files["kernel.ptx"],
        source=entry.files["kernel.cu"].decode(),
        log=entry.files["kernel.log"].decode(),
        manifest=manifest,
        folder=folder,
        entry=entry,
    )
