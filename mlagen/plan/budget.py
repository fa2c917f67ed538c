"""Fitting a plan into an SM: shared memory and registers. Refusals name the need, the limit and the knobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlagen.errors import BudgetError
from mlagen.hardware import Hardware
from mlagen.plan.model import Mbarrier, NamedBarrier, SmemRegion, TmemRegion, WarpRole

MBARRIER_BYTES = 8


def align_up(value: int, align: int) -> int:
    """The smallest multiple of `align` that is at least `value`."""
    return -(-value // align) * align


def lay_out_smem(
    regions: Sequence[SmemRegion],
    mbarriers: Sequence[Mbarrier],
    limit: int,
    knobs: str,
    *,
    mbarrier_type: str = "uint64_t",
) -> tuple[tuple[SmemRegion, ...], int]:
    """Gives every region its offset, in the given order, then the mbarriers in the order of their table.

    Args:
        regions: data regions without offsets.
        mbarriers: rings of 8-byte barriers.
        limit: bytes that one block can have.
        knobs: what a caller could change, for the message, e.g. "kv_stages=2".
        mbarrier_type: C++ type of one barrier.

    Returns:
        The regions with offsets, and the total in bytes (a multiple of the largest alignment, as sizeof is).

    Raises:
        BudgetError: the total is above the limit.
    """
    rings = tuple(
        SmemRegion(ring.name, mbarrier_type, ring.stages, MBARRIER_BYTES, MBARRIER_BYTES, ring.meaning)
        for ring in mbarriers
    )
    offset = 0
    placed: list[SmemRegion] = []
    for region in (*regions, *rings):
        offset = align_up(offset, region.align)
        placed.append(replace(region, offset=offset))
        offset += region.nbytes
    total = align_up(offset, max((region.align for region in placed), default=1))
    if total > limit:
        largest = max(placed, key=lambda region: region.nbytes)
        raise BudgetError(
            f"shared memory: {total} B needed, {limit} B is the limit, {total - limit} B too many. "
            f"Largest region: {largest.name} with {largest.nbytes} B. Knobs: {knobs}"
        )
    return tuple(placed), total


def lay_out_tmem(regions: Sequence[TmemRegion], limit: int, knobs: str) -> tuple[tuple[TmemRegion, ...], int]:
    """Gives every region of tensor memory its first column, in the given order.

    Returns:
        The regions with columns, and the columns to allocate: a power of two from 32 up.

    Raises:
        BudgetError: more columns than an SM has.
    """
    column = 0
    placed: list[TmemRegion] = []
    for region in regions:
        placed.append(replace(region, first_column=column))
        column += region.columns
    allocated = max(32, 1 << max(column - 1, 0).bit_length())
    if column > limit:
        raise BudgetError(
            f"tensor memory: {column} columns needed, {limit} is the limit, {column - limit} too many. "
            f"Knobs: {knobs}"
        )
    return tuple(placed), allocated


def check_registers(roles: Sequence[WarpRole], hardware: Hardware) -> int:
    """Checks that the roles fill the block without gaps and that their registers fit.

    Returns:
        Registers per thread at launch: what the compiler must report for a kernel that redistributes them.

    Raises:
        BudgetError: gaps, a count that setmaxnreg cannot take, or a sum above the register file.
    """
    warp = 0
    for role in sorted(roles, key=lambda role: role.first_warp):
        if role.first_warp != warp:
            raise BudgetError(
                f"role {role.name} starts at warp {role.first_warp}; the roles before it end at {warp - 1}"
            )
        warp += role.warps
        if role.registers and (role.registers % hardware.register_unit or not 24 <= role.registers <= 256):
            raise BudgetError(
                f"role {role.name} asks for {role.registers} registers; "
                f"setmaxnreg takes multiples of {hardware.register_unit} from 24 to 256"
            )
    threads = warp * 32
    if not 0 < threads <= hardware.max_threads:
        raise BudgetError(f"{threads} threads in a block; 1..{hardware.max_threads} are possible")
    unit = hardware.register_unit
    at_launch = min(hardware.registers // threads // unit * unit, hardware.max_registers_per_thread)
    used = sum(role.threads * (role.registers or at_launch) for role in roles)
    # setmaxnreg hands registers round inside the block's own pool, which is what the launch allocated: asking
    # for more than that waits for ever, even if the SM has registers left.
    pool = threads * at_launch
    if used > pool:
        table = ", ".join(f"{role.name} {role.threads} x {role.registers or at_launch}" for role in roles)
        raise BudgetError(
            f"registers: {used} needed, {pool} is the limit ({threads} threads x {at_launch} at launch), "
            f"{used - pool} too many ({table})"
        )
    return at_launch


def check_named_barriers(barriers: Sequence[NamedBarrier], hardware: Hardware) -> None:
    """Checks numbers and thread counts of the named barriers.

    Raises:
        BudgetError: a number outside 1..15, one used twice, or a thread count that is no multiple of a warp.
    """
    seen: dict[int, str] = {}
    for barrier in barriers:
        if not 1 <= barrier.id < hardware.named_barriers:
            raise BudgetError(
                f"named barrier {barrier.name} has number {barrier.id}; "
                f"1..{hardware.named_barriers - 1} are free"
            )
        if barrier.id in seen:
            raise BudgetError(
                f"named barriers {seen[barrier.id]} and {barrier.name} share number {barrier.id}"
            )
        if barrier.threads % 32 or not 0 < barrier.threads <= hardware.max_threads:
            raise BudgetError(
                f"named barrier {barrier.name} counts {barrier.threads} threads; whole warps are needed"
            )
        seen[barrier.id] = barrier.name
