"""The shipped set and its presets, read from the one data file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlagen.errors import SpecError
from mlagen.model import ModelShape, model_of
from mlagen.paths import shipped_file
from mlagen.spec import Arch, DType, KernelSpec, Tuning


@dataclass(frozen=True, slots=True)
class Preset:
    """The kernels of one model, over tensor-parallel sizes, architectures and CTA groups.

    Attributes:
        name: as given on the command line.
        title: models that it serves.
        model: its attention, from the values of its config.json.
        tp: tensor-parallel sizes.
        arch: architectures.
        dtype: element type of queries and cache.
        page_size: tokens in one page.
        max_split: static bound of splits.
        cta_group: 1, 2 or both.
    """

    name: str
    title: str
    model: ModelShape
    tp: tuple[int, ...]
    arch: tuple[Arch, ...]
    dtype: DType
    page_size: int
    max_split: int
    cta_group: tuple[int, ...]

    def specs(self, *, tp: int | None = None, arch: str | None = None) -> tuple[KernelSpec, ...]:
        """The kernels of the preset.

        Args:
            tp: only this tensor-parallel size.
            arch: only this architecture.

        Raises:
            SpecError: the preset has no such size or architecture.
        """
        sizes = self.tp if tp is None else tuple(size for size in self.tp if size == tp)
        arches = self.arch if arch is None else tuple(item for item in self.arch if item.value == arch)
        if not sizes:
            raise SpecError(f"preset {self.name}: tp={tp}; it has {', '.join(map(str, self.tp))}")
        if not arches:
            raise SpecError(f"preset {self.name}: arch={arch}; it has {', '.join(map(str, self.arch))}")
        return tuple(
            KernelSpec(
                target,
                self.dtype,
                self.dtype,
                self.model.heads_per_rank(size),
                self.page_size,
                self.max_split,
                group,
            )
            for target in arches
            for size in sizes
            for group in self.cta_group
        )


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(shipped_file().read_text(encoding="utf-8"))


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    return {
        name: Preset(
            name=name,
            title=row["title"],
            model=model_of(row["model"]),
            tp=tuple(row["tp"]),
            arch=tuple(Arch(item) for item in row["arch"]),
            dtype=DType(row["dtype"]),
            page_size=row["page_size"],
            max_split=row["max_split"],
            cta_group=tuple(row["cta_group"]),
        )
        for name, row in _data()["presets"].items()
    }


def preset(name: str) -> Preset:
    """One preset.

    Raises:
        SpecError: no preset has this name.
    """
    if name not in presets():
        raise SpecError(f"no preset {name!r}. Presets: {', '.join(presets())}")
    return presets()[name]


@cache
def shipped_specs() -> tuple[KernelSpec, ...]:
    """The whole shipped set, each kernel once: presets first, then the axes."""
    named = [spec for item in presets().values() for spec in item.specs()]
    named += [KernelSpec.from_name(name) for name in _data()["axes"]["kernels"]]
    return tuple(dict.fromkeys(named))


@cache
def generated_specs() -> tuple[KernelSpec, ...]:
    """The kernels whose rendered source is tracked in `generated/`."""
    return tuple(KernelSpec.from_name(name) for name in _data()["generated"]["kernels"])


def tunings() -> tuple[Tuning, ...]:
    """Tunings that the shipped set uses: the table through which a `_t` part of a name resolves first."""
    return tuple(dict.fromkeys(spec.tuning for spec in shipped_specs()))
