"""The import finder below `mlagen.kernels`, and what it says about names that are no kernels."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import cast

from mlagen.errors import MlagenError, SpecError
from mlagen.kernels.kernel import Kernel
from mlagen.plan import FAMILIES, make_plan
from mlagen.resolve import resolve
from mlagen.shipped import shipped_specs
from mlagen.spec import KernelSpec

PREFIX = "mla_decode_"
_PACKAGE = "mlagen.kernels."


class KernelFinder(MetaPathFinder):
    """Finds `mlagen.kernels.<kernel name>`. Names that cannot be kernels are left to others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of a kernel.

        Raises:
            ImportError: says why there is no such kernel, and names the nearest ones that there are.
        """
        name = fullname.removeprefix(_PACKAGE)
        if name == fullname or "." in name or name.startswith("_"):
            return None
        try:
            spec = resolve(name)
            kernel = Kernel(fullname, spec)
        except MlagenError as error:
            nearest = ", ".join(nearest_names(name))
            raise ImportError(f"{error}\nNearest kernels: {nearest}", name=fullname) from error
        return ModuleSpec(fullname, _KernelLoader(kernel), origin=spec.name)


class _KernelLoader(Loader):
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._kernel

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the kernel is complete."""


def known_names() -> list[str]:
    """Names to offer: the shipped set, then what lies in cache folders and bundles."""
    from mlagen.cache import Cache

    return list(dict.fromkeys([spec.name for spec in shipped_specs()] + sorted(Cache().names())))


def nearest_names(name: str, count: int = 3) -> list[str]:
    """Valid kernel names like this one: the same kernel with its impossible numbers moved to the nearest
    possible ones, then similar names of the shipped set.
    """
    moved = _moved(name)
    shipped = [spec.name for spec in shipped_specs()]
    close = difflib.get_close_matches(name, shipped, n=count, cutoff=0.0)
    return list(dict.fromkeys([*([] if moved is None else [moved.name]), *close]))[:count]


def _moved(name: str) -> KernelSpec | None:
    """The nearest kernel that can be built, field by field; None if the name is no kernel name at all."""
    try:
        spec = KernelSpec.from_name(name)
    except SpecError:
        return None
    families = {family: import_module(module) for family, module in FAMILIES.items()}
    module = families.get(spec.family) or next(iter(families.values()))
    supported = cast(dict[str, tuple[object, ...]], module.SUPPORTED)
    changes: dict[str, object] = {}
    for field, allowed in supported.items():
        value = getattr(spec, field)
        if value in allowed:
            continue
        numbers = [item for item in allowed if isinstance(item, int)]
        if isinstance(value, int) and numbers:
            changes[field] = min(numbers, key=lambda item: abs(item - value))
        else:
            changes[field] = allowed[0]
    try:
        nearest = replace(spec, **changes)  # type: ignore[arg-type]
        if nearest.q_dtype != nearest.kv_dtype:
            nearest = replace(nearest, kv_dtype=nearest.q_dtype)
        make_plan(nearest)
    except SpecError:
        return None
    return nearest
