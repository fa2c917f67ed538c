"""Names for reports: which barrier, region or role an address or warp is. Names change no result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlagen.plan.model import Plan


@dataclass(frozen=True, slots=True)
class Region:
    """Named bytes of dynamic shared memory; `itemsize` bytes make one element."""

    name: str
    offset: int
    size: int
    itemsize: int
    indexed: bool


@dataclass(slots=True)
class Names:
    """What a plan calls things. dynamic_base is set by the machine: where dynamic shared memory starts.

    roles: (name, first warp, warps). named_barriers: hardware barrier id -> name. arrivers: barrier name ->
    who arrives.
    """

    regions: tuple[Region, ...] = ()
    roles: tuple[tuple[str, int, int], ...] = ()
    named_barriers: dict[int, str] = field(default_factory=dict)
    arrivers: dict[str, str] = field(default_factory=dict)
    dynamic_base: int = 0

    @classmethod
    def from_plan(cls, plan: Plan) -> Names:
        """The names of a plan's tables."""
        regions = tuple(
            Region(r.name, r.offset, r.nbytes, max(r.itemsize, 1), r.count > 1) for r in plan.smem
        )
        return cls(
            regions=regions,
            roles=tuple((r.name, r.first_warp, r.warps) for r in plan.roles),
            named_barriers={b.id: b.name for b in plan.named_barriers},
            arrivers={b.name: b.producer for b in plan.mbarriers},
        )

    def shared(self, offset: int) -> str:
        """`kv_full[1]`, `probs+0x40`, or `shared+0x1234`."""
        relative = offset - self.dynamic_base
        for region in self.regions:
            if region.offset <= relative < region.offset + region.size:
                inside = relative - region.offset
                if region.itemsize == 8 and inside % 8 == 0 and region.name in self.arrivers:
                    return f"{region.name}[{inside // 8}]" if region.indexed else region.name
                return f"{region.name}+0x{inside:x}"
        return f"shared+0x{offset:x}"

    def producer(self, offset: int) -> str:
        """The role that arrives on the mbarrier at an offset, or an empty string."""
        return self.arrivers.get(self.shared(offset).split("[")[0], "")

    def role(self, warp: int) -> str:
        """The role of a warp, or an empty string."""
        for name, first, count in self.roles:
            if first <= warp < first + count:
                return name
        return ""

    def warp(self, cta: int, warp: int) -> str:
        """`CTA 0 warp 3 (load)`."""
        role = self.role(warp)
        return f"CTA {cta} warp {warp}" + (f" ({role})" if role else "")

    def named_barrier(self, number: int) -> str:
        """`named barrier 2 (probs_ready)`."""
        name = self.named_barriers.get(number, "__syncthreads" if number == 0 else "")
        return f"named barrier {number}" + (f" ({name})" if name else "")

    def warps_of(self, role: str) -> set[int]:
        """Warp numbers of a role; a number names itself."""
        if role.isdigit():
            return {int(role)}
        return {w for name, first, count in self.roles if name == role for w in range(first, first + count)}
