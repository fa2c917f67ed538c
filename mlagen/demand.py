"""Which kernels a deployment calls: from a model, its rank size and its serving numbers to specs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlagen import heuristics
from mlagen.errors import SpecError
from mlagen.model import ModelShape
from mlagen.spec import Arch, DType, KernelSpec


@dataclass(frozen=True, slots=True)
class Demand:
    """One deployment.

    Attributes:
        model: what is served.
        tp: tensor-parallel sizes to build for.
        page_size: tokens of a page of the cache.
        mtp: tokens that are drafted ahead (multi-token prediction); a step then has 1..mtp+1 new tokens a
            row.
        arch: architectures; () for all that have a table of measurements.
        dtype: of queries and cache, in place of the model's.
    """

    model: ModelShape
    tp: tuple[int, ...] = (1,)
    page_size: int = 64
    mtp: int = 0
    arch: tuple[Arch, ...] = ()
    dtype: DType | None = None

    def specs(self) -> tuple[KernelSpec, ...]:
        """Exactly the kernels that `mla_decode` picks for these calls, each once.

        Raises:
            SpecError: heads that do not divide, or numbers that no family serves.
        """
        dtype = self.dtype or self.model.dtype or DType.BF16
        found = []
        for arch in self.arch or measured():
            for tp in self.tp:
                heads = self.model.heads_per_rank(tp)
                check(arch, dtype, heads, self.page_size)
                for s_q in range(1, self.mtp + 2):
                    found.append(heuristics.pick(arch, "", dtype, heads, self.page_size, s_q).spec)
        return tuple(dict.fromkeys(found))


def measured() -> tuple[Arch, ...]:
    """Architectures for which the choice of a kernel has been measured."""
    return tuple(dict.fromkeys(table.arch for table in heuristics.tables()))


def check(arch: Arch, dtype: DType, heads: int, page_size: int) -> None:
    """Refuses numbers that no kernel serves, before a table is asked for them.

    Raises:
        SpecError: the message of the family names limit and nearest value.
    """
    from mlagen.plan import make_plan

    make_plan(KernelSpec(arch, dtype, dtype, heads, page_size, 1, 1))


def arches(names: Iterable[str]) -> tuple[Arch, ...]:
    """Architectures by name.

    Raises:
        SpecError: one that does not exist.
    """
    found = []
    for name in names:
        try:
            found.append(Arch(name))
        except ValueError:
            choices = ", ".join(arch.value for arch in Arch)
            raise SpecError(f"arch={name!r} is not known. Choices: {choices}") from None
    return tuple(found)
