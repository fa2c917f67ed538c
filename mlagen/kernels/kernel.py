"""One kernel as a module."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mlagen.plan import make_plan
from mlagen.spec import KernelSpec

if TYPE_CHECKING:
    from mlagen.plan.model import Plan
    from mlagen.report import Row


class Kernel(ModuleType):
    """A kernel that can be called. Only `load`, a call, `cubin_path` and `report` compile it, if need be.

    Attributes:
        spec: the choices that make it.
        plan: its build-time numbers.

    Raises:
        SpecError, BudgetError: no family can build it.
    """

    spec: KernelSpec
    plan: Plan

    def __init__(self, name: str, spec: KernelSpec) -> None:
        self.plan = make_plan(spec)
        self.spec = spec
        super().__init__(name, f"{spec.name}: MLA decode; called as mlagen.mla_decode without `spec`.")

    @property
    def source(self) -> str:
        """The complete source text.

        Raises:
            ToolchainError: the template engine is not installed.
        """
        from mlagen.artifact import order

        return order(self.spec).source

    def load(self) -> Kernel:
        """Compiles the kernel unless it is in a cache folder or bundle, and returns it.

        Raises:
            CacheError, ToolchainError, CompileError: as `mlagen.build.load_artifact`.
        """
        from mlagen.build import load_artifact

        load_artifact(self.spec)
        return self

    @property
    def cubin_path(self) -> Path | None:
        """The machine code on disk; None where no folder takes kernels. Compiles if need be."""
        from mlagen.build import load_artifact

        artifact = load_artifact(self.spec)
        if artifact.folder is None:
            artifact = load_artifact(self.spec)
        return None if artifact.folder is None else artifact.folder / "kernel.cubin"

    @property
    def report(self) -> Row:
        """Registers, spills, bytes, seconds, digest and folder. Compiles if need be."""
        from mlagen.build import load_artifact, row_of

        return row_of(load_artifact(self.spec))

    def __call__(self, q: Any, kv_cache: Any, block_table: Any, cache_seqlens: Any, **options: Any) -> Any:
        """Runs the kernel; arguments and result as `mlagen.mla_decode`, which see.

        Raises:
            As `mlagen.mla_decode`.
        """
        from mlagen.api import mla_decode

        return mla_decode(q, kv_cache, block_table, cache_seqlens, spec=self.spec, **options)

    def __repr__(self) -> str:
        return f"<mlagen kernel {self.spec.name}>"

    def __dir__(self) -> list[str]:
        return sorted({"spec", "plan", "source", "load", "cubin_path", "report", *super().__dir__()})
