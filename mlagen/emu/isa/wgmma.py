"""Warpgroup matrix multiplication of sm_90a: `wgmma.mma_async`, `wgmma.fence`, `commit_group`, `wait_group`.

An instruction is one operation of four warps: it is issued when the last of them executes it, runs in the
order of its warpgroup, and is done for a warp only after that warp's `wait_group`. Until then its
accumulators and A registers may not be touched. Registers that anything else wrote must be followed by a
`wgmma.fence` before a wgmma uses them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import fragments
from mlagen.emu.descriptors import MatrixDescriptor, decode_sm90, operand_addresses, touched_words
from mlagen.emu.interfaces import (
    Array,
    AsyncOp,
    Binder,
    Bound,
    EmulatorError,
    Instruction,
    Stamp,
    Vec,
    Wait,
    Warp,
    Warpgroup,
    instruction,
)
from mlagen.emu.lanes import all_true, any_true
from mlagen.emu.mma_numerics import SM90_8BIT, SM90_16BIT, Accumulation, multiply_accumulate

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_ROWS = 64
_WARPS = 4
_MODELS = {
    "bf16": SM90_16BIT,
    "f16": SM90_16BIT,
    "e4m3": SM90_8BIT,
    "e5m2": SM90_8BIT,
    "tf32": Accumulation(8, 25),
}
_NO_HALF = {"bf16", "tf32"}  # no f16 accumulators


@dataclass(frozen=True, slots=True)
class WgmmaForm:
    """What the text of a wgmma.mma_async says. accumulators, a_slots: register slots. a_sign, b_sign: 1 or
    -1.
    """

    name: str
    n: int
    k: int
    a_type: str
    b_type: str
    accumulators: tuple[int, ...]
    a_slots: tuple[int, ...]
    a_sign: int
    b_sign: int
    a_mn_major: bool
    b_mn_major: bool
    half: bool = False

    @property
    def element_size(self) -> int:
        """Bytes of an operand element."""
        return fragments.OPERAND_TYPES[self.a_type][0]


@dataclass(slots=True)
class Operation:
    """One wgmma of a warpgroup: what each warp gave, and whether it ran."""

    form: WgmmaForm
    a: tuple[int, MatrixDescriptor | None]
    b: int
    accumulate: bool
    fragments: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    stamp: Stamp | None = None
    done: bool = False


@dataclass(slots=True)
class _WarpState:
    """One warp's view: operations issued, the boundaries of its committed groups, operations it has not
    waited for.
    """

    issued: int = 0
    groups: list[int] = field(default_factory=list)
    pending: dict[int, Operation] = field(default_factory=dict)
    fenced: list[Array] | None = None


class WarpgroupState:
    """The wgmmas of a warpgroup that are not yet issued by all four warps, by sequence number."""

    def __init__(self) -> None:
        self.operations: dict[int, Operation] = {}
        self.warps: dict[int, _WarpState] = {}


def _state(group: Warpgroup) -> WarpgroupState:
    found: WarpgroupState | None = group.scratch.get("wgmma")
    if found is None:
        found = group.scratch["wgmma"] = WarpgroupState()
    return found


def _warp_state(warp: Warp) -> _WarpState:
    return _state(warp.warpgroup).warps.setdefault(warp.id, _WarpState())


# ---------------------------------------------------------------- wgmma.mma_async
# blocking: a basic block of its own, so that the touch check also sees what follows it directly
@instruction("wgmma.mma_async", section="9.7.15.5.2 wgmma.mma_async", blocking=True)
def mma_async(ins: Instruction, bind: Binder) -> Bound:
    """D = A B + D (or A B) on 64 x n, A from shared memory or registers, B from shared memory."""
    form = _form(ins, bind)
    a, b, scale_d = ins.operands[1:4]
    a_reads = tuple(bind.value(r, "b32") for r in a.items) if isinstance(a, Vec) else (bind.value(a, "b64"),)
    reads = (bind.value(scale_d, "pred"), bind.value(b, "b64"), *a_reads)
    return Bound(run=partial(run_mma, form), reads=reads)


def _form(ins: Instruction, bind: Binder) -> WgmmaForm:
    """Decode and check the modifiers and immediates."""
    shape = next((m for m in map(_SHAPE.fullmatch, ins.modifiers) if m), None)
    if shape is None or ins.has("sp"):
        raise EmulatorError(f"{ins.name}: dense shapes m64nNkK are emulated")
    n, k = int(shape[1]), int(shape[2])
    d_type, a_type, b_type = ins.modifiers[-3:]
    half = d_type == "f16"
    known = _MODELS.keys() - (_NO_HALF if half else set())
    if d_type not in ("f16", "f32") or a_type not in known or b_type not in known:
        raise EmulatorError(
            f"{ins.name}: .f32 accumulators with {', '.join(_MODELS)} operands are emulated, and "
            f".f16 ones without {', '.join(sorted(_NO_HALF))}"
        )
    size = fragments.OPERAND_TYPES[a_type][0]
    if k * size != 32 or n % 8 or not 8 <= n <= 256 or size != fragments.OPERAND_TYPES[b_type][0]:
        raise EmulatorError(
            f"{ins.name}: no such shape; K is {32 // size} and N a multiple of 8 from 8 to 256"
        )
    d, a = ins.operands[:2]
    accumulators = tuple(bind.slot(r) for r in d.items) if isinstance(d, Vec) else ()
    count = n // 4 if half else n // 2
    if len(accumulators) != count or len(set(accumulators)) != count:
        raise EmulatorError(
            f"{ins.name}: {len(accumulators)} accumulators given; N={n} takes {count} different ones"
        )
    a_slots = tuple(bind.slot(r) for r in a.items) if isinstance(a, Vec) else ()
    if a_slots and len(a_slots) != 4:
        raise EmulatorError(f"{ins.name}: {len(a_slots)} registers of A given; it takes 4")
    signs, majors = _immediates(ins, bind, size, bool(a_slots))
    return WgmmaForm(
        f"wgmma (line {ins.line})", n, k, a_type, b_type, accumulators, a_slots, *signs, *majors, half
    )


def _immediates(
    ins: Instruction, bind: Binder, size: int, registers: bool
) -> tuple[tuple[int, int], tuple[bool, bool]]:
    """The signs of A and B, and whether they are M- and N-major."""
    values = [bind.immediate(x) for x in ins.operands[4:]]
    want = 2 if size != 2 else 3 if registers else 4
    if (
        len(values) != want
        or any(v not in (1, -1) for v in values[:2])
        or any(v not in (0, 1) for v in values[2:])
    ):
        raise EmulatorError(
            f"{ins.name}: immediates {values}; {want} are needed: signs of 1 or -1, then transposes of 0 or 1"
        )
    majors = [bool(v) for v in values[2:]]
    majors = [False] * (2 - len(majors)) + majors
    return (values[0], values[1]), (majors[0], majors[1])


def run_mma(
    form: WgmmaForm, warp: Warp, lanes: npt.NDArray[np.bool_], accumulate: Array, b: Array, *a: Array
) -> None:
    """One warp's part; the fourth one issues the operation."""
    _check_aligned(warp, lanes, form.name)
    for what, value in (
        ("scale-d", accumulate),
        ("descriptor of B", b),
        *((("descriptor of A", a[0]),) if not form.a_slots else ()),
    ):
        if any_true(value != value[0]):
            raise EmulatorError(f"{form.name}: the {what} differs between lanes")
    state, own = _state(warp.warpgroup), _warp_state(warp)
    _check_fence(form, warp, own, bool(accumulate[0]))
    a_bits = 0 if form.a_slots else int(a[0][0])
    operation = Operation(
        form, (a_bits, None if form.a_slots else decode_sm90(a_bits)), int(b[0]), bool(accumulate[0])
    )
    number, own.issued = own.issued, own.issued + 1
    operation = _same_operation(state, number, operation)
    operation.fragments[warp.id] = a if form.a_slots else ()
    own.pending[number] = operation
    warp.inflight |= set(form.accumulators)
    warp.inflight_read |= set(form.a_slots)
    warp.on_touch = report_touch
    _declare_reads(warp, operation)
    warp.warpgroup.actor.acquire(warp.actor.release())
    if len(operation.fragments) == _WARPS:
        del state.operations[number]
        _issue(warp, operation)


def _declare_reads(warp: Warp, operation: Operation) -> None:
    """A warp may run its part as soon as it issues the operation: what that reads (its rows of A, all
    of B) must be ordered before by this warp alone.
    """
    form, checks, cta = operation.form, warp.machine.checks, warp.cta
    size, name = form.element_size, f"{form.name}, this warp's part"
    if operation.a[1] is not None:
        first = 16 * (warp.id % _WARPS)
        rows = operand_addresses(operation.a[1], _ROWS, form.k, size, form.a_mn_major)[first : first + 16]
        checks.shared_read(cta, rows, size, warp.actor, f"A of {name}")
    words = touched_words(decode_sm90(operation.b), form.n, form.k, size, form.b_mn_major)
    checks.shared_read(cta, words, 4, warp.actor, f"B of {name}")


def _check_aligned(warp: Warp, lanes: npt.NDArray[np.bool_], name: str) -> None:
    if not all_true(lanes):
        raise EmulatorError(f"{name}: {int(lanes.sum())} of 32 lanes execute it; .sync.aligned needs all")
    if len(warp.warpgroup.warps) != _WARPS:
        raise EmulatorError(f"{name}: the CTA has no complete warpgroup around warp {warp.id}")


def _same_operation(state: WarpgroupState, number: int, mine: Operation) -> Operation:
    """The operation that other warps of the group began, which must be the same; mine if this is the first
    warp.
    """
    found = state.operations.setdefault(number, mine)
    if found is not mine and (found.form, found.a[0], found.b, found.accumulate) != (
        mine.form,
        mine.a[0],
        mine.b,
        mine.accumulate,
    ):
        raise EmulatorError(
            "the warps of a warpgroup issue different wgmmas: "
            f"{found.form.name} with A {found.a[0]:#x} B {found.b:#x}, "
            f"{mine.form.name} with A {mine.a[0]:#x} B {mine.b:#x}"
        )
    return found


def _check_fence(form: WgmmaForm, warp: Warp, own: _WarpState, accumulate: bool) -> None:
    """Registers must not have changed since the last wgmma.fence, but for what wgmmas themselves wrote.

    Accumulators that the operation does not read are a lint only: compilers move their initialisation, which
    has no effect.
    """
    fenced = own.fenced
    if fenced is None:
        warp.report("wgmma", f"{form.name}: no wgmma.fence before the first wgmma")
        own.fenced = list(warp.registers)
        return
    read = warp.unfenced.intersection(form.accumulators)
    if read:
        warp.report("wgmma", f"{form.name}: {len(read)} accumulators were read after the last wgmma.fence")
        warp.unfenced -= read
    changed = [s for s in form.accumulators + form.a_slots if warp.registers[s] is not fenced[s]]
    if changed:
        kind = "accumulators" if changed[0] in form.accumulators else "A registers"
        dead = not accumulate and all(s in form.accumulators for s in changed)
        warp.report(
            "strict" if dead else "wgmma",
            f"{form.name}: {len(changed)} registers ({kind}) were written after the last wgmma.fence",
        )
        for slot in changed:
            fenced[slot] = warp.registers[slot]


def report_touch(warp: Warp, slots: frozenset[int]) -> Wait:
    """A block touches registers of unfinished wgmmas: report it, and wait for them as compiled code would."""
    kind = "accumulator" if slots & warp.inflight else "A operand"
    warp.report(
        "wgmma", f"{len(slots)} {kind} registers of an unfinished wgmma are used before its wgmma.wait_group"
    )
    pending = list(_warp_state(warp).pending.values())
    return Wait(
        lambda: all(op.done for op in pending),
        lambda: None,
        lambda: "waits for wgmmas whose registers it uses",
    )


def _issue(warp: Warp, operation: Operation) -> None:
    """Declare the reads of shared memory and queue the operation."""
    form, cta, group = operation.form, warp.cta, warp.warpgroup
    checks, size = warp.machine.checks, form.element_size
    if operation.a[1] is not None:
        words = touched_words(operation.a[1], _ROWS, form.k, size, form.a_mn_major)
        checks.shared_read(cta, words, 4, group.actor, f"A of {form.name}")
    words = touched_words(decode_sm90(operation.b), form.n, form.k, size, form.b_mn_major)
    checks.shared_read(cta, words, 4, group.actor, f"B of {form.name}")
    operation.stamp = group.actor.release()
    queue = ("wgmma", cta.index, group.warps[0].id)
    warp.machine.post(AsyncOp(f"{form.name} of CTA {cta.index}", partial(_execute, warp, operation), queue))


def _execute(warp: Warp, operation: Operation) -> None:
    """Multiply: A (64, k), B (n, k), and the accumulators of four warps."""
    form, shared, warps = operation.form, warp.cta.shared, warp.warpgroup.warps
    if operation.a[1] is None:
        a = np.concatenate([fragments.a_matrix(operation.fragments[w.id], form.a_type) for w in warps])
    else:
        addresses = operand_addresses(operation.a[1], _ROWS, form.k, form.element_size, form.a_mn_major)
        a = shared.gather(addresses, form.element_size)
    addresses = operand_addresses(
        decode_sm90(operation.b), form.n, form.k, form.element_size, form.b_mn_major
    )
    b = shared.gather(addresses, form.element_size)
    if operation.accumulate:
        gather = fragments.half_accumulator_matrix if form.half else fragments.accumulator_matrix
        c = np.concatenate([gather([w.registers[s] for s in form.accumulators]) for w in warps])
    else:
        c = np.zeros((_ROWS, form.n), np.float32)
    a_values, b_values = fragments.to_float(a, form.a_type), fragments.to_float(b, form.b_type)
    if form.a_sign * form.b_sign < 0:
        a_values = -a_values
    model = _MODELS[form.a_type] if warp.machine.exact else None
    d = multiply_accumulate(a_values, b_values, c, model)
    scatter = fragments.half_accumulator_registers if form.half else fragments.accumulator_registers
    for i, target in enumerate(warps):
        fenced = _warp_state(target).fenced
        for slot, values in zip(form.accumulators, scatter(d[16 * i : 16 * i + 16]), strict=True):
            target.registers[slot] = values
            if fenced is not None:
                fenced[slot] = values
    operation.done = True


# ---------------------------------------------------------------- fence, commit, wait
@instruction("wgmma.fence", section="9.7.15.7.1 wgmma.fence")
def fence(ins: Instruction, bind: Binder) -> Bound:
    """Order register accesses before the wgmmas that follow."""
    return Bound(run=run_fence)


def run_fence(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """Remember which values the registers hold."""
    _check_aligned(warp, lanes, "wgmma.fence")
    _warp_state(warp).fenced = list(warp.registers)
    warp.unfenced.clear()


@instruction("wgmma.commit_group", section="9.7.15.7.2 wgmma.commit_group")
def commit_group(ins: Instruction, bind: Binder) -> Bound:
    """The uncommitted wgmmas of the warp become a group."""
    return Bound(run=run_commit)


def run_commit(warp: Warp, lanes: npt.NDArray[np.bool_]) -> None:
    """Remember the boundary."""
    _check_aligned(warp, lanes, "wgmma.commit_group")
    own = _warp_state(warp)
    own.groups.append(own.issued)


@instruction("wgmma.wait_group", section="9.7.15.7.3 wgmma.wait_group", blocking=True)
def wait_group(ins: Instruction, bind: Binder) -> Bound:
    """Wait until at most N groups of the warpgroup are pending."""
    return Bound(run=partial(run_wait, bind.immediate(ins.operands[0])))


def run_wait(newest: int, warp: Warp, lanes: npt.NDArray[np.bool_]) -> Wait:
    """Sleep until the operations of the older groups, to which all four warps contribute, are done."""
    _check_aligned(warp, lanes, "wgmma.wait_group")
    own = _warp_state(warp)
    older = own.groups[: len(own.groups) - newest] if newest else own.groups
    boundary = older[-1] if older else 0
    operations = [op for number, op in own.pending.items() if number < boundary]

    def ready() -> bool:
        return all(op.done for op in operations)

    def finish() -> None:
        own.groups = own.groups[len(older) :]
        for number in [n for n in own.pending if n < boundary]:
            warp.actor.acquire(warp.machine.checks.product_done(warp, own.pending.pop(number).stamp))
        warp.inflight = {s for op in own.pending.values() for s in op.form.accumulators}
        warp.inflight_read = {s for op in own.pending.values() for s in op.form.a_slots}

    def describe() -> str:
        missing = sum(len(op.fragments) < _WARPS for op in operations)
        text = f"wgmma.wait_group {newest}: {sum(not op.done for op in operations)} wgmmas are not done"
        return text + (f", {missing} of them not yet issued by all four warps" if missing else "")

    return Wait(ready, finish, describe)
