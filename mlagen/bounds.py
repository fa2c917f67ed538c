"""Least clocks of each pipe of a Blackwell multiprocessor for 128 keys, by arithmetic on a plan.

Nothing here is measured: each rate carries its source, or the word 'assumed' and the range that is believed.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlagen.plan.model import Plan

KEYS = 128
D_QK, D_V, ELEMENT_BYTES = 576, 512, 2


@dataclass(frozen=True, slots=True)
class Rate:
    """What one multiprocessor does a clock.

    Attributes:
        low, high: ends of the range; equal where the rate is known.
        unit: what is counted.
        source: where the numbers are from.
    """

    low: float
    high: float
    unit: str
    source: str


# At 1.85 GHz, 148 multiprocessors.
TENSOR_FULL = Rate(4096, 4096, "MAC", "datasheet, 2.25 PFLOP/s dense bf16")
TENSOR_FOLDED = Rate(2048, 4096, "MAC", "assumed: M=64 `.ws` at half or full rate")
EXP = Rate(16, 16, "exp2", "as Hopper")
TMEM_READ = Rate(512, 512, "B", "assumed")
SHARED = Rate(128, 128, "B", "assumed, as Hopper")
L2 = Rate(40, 64, "B", "assumed")
HBM = Rate(29, 29, "B", "datasheet, 8 TB/s")


@dataclass(frozen=True, slots=True)
class PipeBound:
    """Work of one pipe of one multiprocessor for 128 keys of one tile.

    Attributes:
        pipe: its name.
        work: in the rate's unit.
        rate: what it does a clock.
    """

    pipe: str
    work: float
    rate: Rate

    @property
    def clocks(self) -> tuple[float, float]:
        """Least clocks at the high and at the low end of the rate."""
        return self.work / self.rate.high, self.work / self.rate.low


def pipe_bounds(plan: Plan) -> tuple[PipeBound, ...]:
    """The bounds of a plan of the tcgen05 families, largest first; empty for other families.

    Operands of products are counted as often as an instruction names them; HBM traffic once for the CTAs that
    share a tile.
    """
    if not plan.tmem:
        return ()
    constant = plan.constant
    rows, pair, columns = constant["kTileRows"], constant["kPairForm"], constant["kColumnsForm"]
    loaded = KEYS * D_QK * ELEMENT_BYTES
    probs = KEYS * rows * ELEMENT_BYTES
    query = rows * D_QK * ELEMENT_BYTES
    steps = KEYS / constant["kStepKeys"]
    if pair:
        copied = (KEYS // 2 * D_QK + KEYS * D_V // 2) * ELEMENT_BYTES
        operands = query * steps + copied + 2 * probs
    elif columns:
        copied = loaded
        operands = query * steps + loaded + KEYS * D_V * ELEMENT_BYTES + 4 * probs
    else:
        copied = loaded
        operands = query * steps + loaded + KEYS * D_V * ELEMENT_BYTES + 2 * probs
    found = (
        PipeBound("tensor", KEYS * rows * (D_QK + D_V), TENSOR_FULL if pair or columns else TENSOR_FOLDED),
        PipeBound("exp", KEYS * rows, EXP),
        PipeBound("tensor memory", KEYS * rows * 4, TMEM_READ),
        PipeBound("shared memory", copied + operands + probs, SHARED),
        PipeBound("L2 to shared memory", copied, L2),
        PipeBound("HBM", loaded / (2 if pair else 1), HBM),
    )
    return tuple(sorted(found, key=lambda row: -row.clocks[1]))


def limiters(bounds: tuple[PipeBound, ...]) -> tuple[str, str]:
    """The pipe that limits when every uncertain rate is at its high end, and at its low end."""
    return (
        max(bounds, key=lambda row: row.clocks[0]).pipe,
        max(bounds, key=lambda row: row.clocks[1]).pipe,
    )
