"""tcgen05.mma for one and two CTAs, kinds f16, tf32 and f8f6f4, with and without `.ws`, and tcgen05.commit.

Products run in the order in which a CTA issues them. How sm_100 rounds is not known: results are fp32 matrix
products, and tests use `mma_numerics.accumulation_error` as the tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mlagen.emu import bulk, fragments, tensor_memory, tmem_layouts
from mlagen.emu.descriptors import (
    InstructionDescriptor,
    check_shape,
    decode_instruction,
    decode_sm100,
    operand_addresses,
    touched_words,
)
from mlagen.emu.interfaces import (
    SHARED_OFFSET_BITS,
    Array,
    AsyncOp,
    Binder,
    Bound,
    Cta,
    EmulatorError,
    Instruction,
    Mbarrier,
    Mem,
    Operand,
    Stamp,
    Vec,
    Warp,
    instruction,
)
from mlagen.emu.mma_numerics import multiply_accumulate
from mlagen.emu.numerics import Float32, f32_to_fp16, fp16_to_f32
from mlagen.emu.tmem_layouts import Block

_REFUSED = ("sp", "block_scale", "ashift")


@dataclass(frozen=True, slots=True)
class MmaForm:
    """What the text of a tcgen05.mma says. scale: of scale-input-d."""

    name: str
    kind: str
    group: int
    ws: bool
    a_in_tmem: bool
    scale: int


@dataclass(frozen=True, slots=True)
class Product:
    """One executed tcgen05.mma: addresses and descriptors as numbers."""

    form: MmaForm
    shape: InstructionDescriptor
    d: int
    a: int
    b: int
    accumulate: bool
    disabled: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of D in one CTA."""
        return self.shape.m // self.form.group

    @property
    def layout(self) -> str:
        """The letter of the data-path layout of D."""
        return tmem_layouts.layout_of(self.shape.m, self.form.group, self.form.ws)

    def blocks(self) -> tuple[Block, ...]:
        """The blocks of D."""
        lane, _ = tmem_layouts.split_address(self.d)
        return tmem_layouts.accumulator_blocks(self.layout, self.shape.n, lane)

    @property
    def a_columns(self) -> int:
        """Columns of tensor memory that A takes."""
        return self.shape.k * self.shape.element_size // 4


# ---------------------------------------------------------------- tcgen05.mma
@instruction("tcgen05.mma", section="9.7.16.10.9 tcgen05.mma")
def mma(ins: Instruction, bind: Binder) -> Bound:
    """D = A B + D (or A B) in tensor memory; one thread issues it."""
    refused = [m for m in ins.modifiers if m in _REFUSED]
    if refused:
        raise EmulatorError(f"{ins.name}: .{refused[0]} has no emulation")
    kind = next((m[6:] for m in ins.modifiers if m.startswith("kind::")), "")
    d, a, b, idesc, *rest = ins.operands
    masks: tuple[Operand, ...] = ()
    if rest and isinstance(rest[0], Vec):
        masks, rest = rest[0].items, rest[1:]
    group, ws, in_tmem = tensor_memory.cta_group(ins), ins.has("ws"), isinstance(a, Mem)
    if masks and (ws or len(masks) != 4 * group):
        raise EmulatorError(
            f"{ins.name}: {len(masks)} registers of disabled lanes; it takes {0 if ws else 4 * group}"
        )
    # the last operand scales D, or with .ws masks columns of B
    last = bind.immediate(rest[1]) if len(rest) == 2 else 0
    if not 1 <= len(rest) <= 2 or (ws and last):
        raise EmulatorError(f"{ins.name}: operands {rest[1:]} after enable-input-d have no emulation")
    form = MmaForm(f"tcgen05.mma (line {ins.line})", kind, group, ws, in_tmem, last)
    reads = (
        bind.address(d, "tmem"),
        bind.address(a, "tmem") if in_tmem else bind.value(a, "b64"),
        bind.value(b, "b64"),
        bind.value(idesc, "b32"),
        bind.value(rest[0], "pred"),
        *(bind.value(m, "b32") for m in masks),
    )
    return Bound(run=partial(run_mma, form), reads=reads)


def run_mma(
    form: MmaForm,
    warp: Warp,
    lanes: npt.NDArray[np.bool_],
    d: Array,
    a: Array,
    b: Array,
    idesc: Array,
    accumulate: Array,
    *masks: Array,
) -> None:
    """Check, declare and queue one product per executing lane."""
    tensor_memory.use_group(warp.machine, form.group, form.name)
    ctas = tensor_memory.group_ctas(warp, form.group)
    if form.group == 2 and warp.cta.rank & 1:
        raise EmulatorError(
            f"{form.name}: products of two CTAs are issued by the even one, not by rank {warp.cta.rank}"
        )
    for lane in bulk.lanes_of(lanes):
        shape = decode_instruction(int(idesc[lane]), form.kind)
        check_shape(shape, form.group, form.ws, form.a_in_tmem)
        disabled = tuple(int(m[lane]) for m in masks)
        product = Product(
            form, shape, int(d[lane]), int(a[lane]), int(b[lane]), bool(accumulate[lane]), disabled
        )
        _check(product, ctas)
        warp.cta.tensor_actor.acquire(warp.actor.release())
        for cta in ctas:
            _declare(product, warp, cta)
        work = partial(_execute, product, warp, ctas)
        warp.machine.post(
            AsyncOp(f"{form.name} of CTA {warp.cta.index}", work, tensor_memory.queue_of(warp.cta))
        )


def _check(product: Product, ctas: Sequence[Cta]) -> None:
    """Ownership of D and A in tensor memory, and A's limits there."""
    form, shape = product.form, product.shape
    _, d_column = tmem_layouts.split_address(product.d)
    product.blocks()
    for cta in ctas:
        columns = tmem_layouts.accumulator_columns(product.layout, shape.n)
        tensor_memory.check_owned(cta, d_column, columns, f"{form.name}: D")
        if form.a_in_tmem:
            if shape.a_mn_major:
                raise EmulatorError(f"{form.name}: A in tensor memory is K-major only")
            _, a_column = tmem_layouts.split_address(product.a)
            tensor_memory.check_owned(cta, a_column, product.a_columns, f"{form.name}: A")


def _declare(product: Product, warp: Warp, cta: Cta) -> None:
    """Tell the checks what a product reads and writes in one CTA."""
    form, shape, checks = product.form, product.shape, warp.machine.checks
    actor, size, own = warp.cta.tensor_actor, shape.element_size, tensor_memory.tensor_pipe(warp)
    if form.a_in_tmem:
        _, column = tmem_layouts.split_address(product.a)
        columns, what = range(column, column + product.a_columns), f"A of {form.name}"
        for block in _a_blocks(product):
            tensor_memory.declare(warp, cta, block.lane_array(), columns, actor, what, write=False, own=own)
    else:
        words = touched_words(decode_sm100(product.a), product.rows, shape.k, size, shape.a_mn_major)
        checks.shared_read(cta, words, 4, actor, f"A of {form.name}")
    words = touched_words(decode_sm100(product.b), shape.n // form.group, shape.k, size, shape.b_mn_major)
    checks.shared_read(cta, words, 4, actor, f"B of {form.name}")
    _, column = tmem_layouts.split_address(product.d)
    what = f"D of {form.name}"
    for block in product.blocks():
        columns = range(column, column + block.columns.stop - block.columns.start)
        # a read of D before the write would find nothing that the write does not
        tensor_memory.declare(warp, cta, block.lane_array(), columns, actor, what, write=True, own=own)


def _a_blocks(product: Product) -> tuple[Block, ...]:
    """Where A lies in tensor memory: a copy of its own for every block of D (folded layouts multiply the copy
    in their lanes).
    """
    lane, _ = tmem_layouts.split_address(product.a)
    return tmem_layouts.accumulator_blocks(product.layout, product.shape.n, lane)


# ---------------------------------------------------------------- execution
def _execute(product: Product, warp: Warp, ctas: Sequence[Cta]) -> None:
    """Multiply for each CTA: its rows of A with all of B, which two CTAs hold by halves."""
    form, shape = product.form, product.shape
    parts = [_matrix(cta, product.b, shape.n // form.group, shape, shape.b_mn_major) for cta in ctas]
    b = fragments.to_float(np.concatenate(parts), shape.b_type)
    if shape.a_negated != shape.b_negated:
        b = -b
    for i, cta in enumerate(ctas):
        a = None
        if not form.a_in_tmem:
            bits = _matrix(cta, product.a, product.rows, shape, shape.a_mn_major)
            a = fragments.to_float(bits, shape.a_type)
        for block, copy in zip(
            product.blocks(), _a_blocks(product) if form.a_in_tmem else product.blocks(), strict=True
        ):
            mine = _a_from_tmem(product, warp, cta, copy) if a is None else a
            _accumulate(product, warp, cta, i, block, mine, b[block.columns])


def _matrix(cta: Cta, descriptor: int, rows: int, shape: InstructionDescriptor, mn_major: bool) -> Array:
    """Bits of an operand (rows, k) in shared memory."""
    addresses = operand_addresses(decode_sm100(descriptor), rows, shape.k, shape.element_size, mn_major)
    return cta.shared.gather(addresses, shape.element_size)


def _a_from_tmem(product: Product, warp: Warp, cta: Cta, block: Block) -> Float32:
    """The copy of A (rows, k) in the lanes of a block; elements are packed into 32-bit columns."""
    _, column = tmem_layouts.split_address(product.a)
    lanes, columns = block.lane_array()[:, None], np.arange(column, column + product.a_columns)[None, :]
    tensor_memory.check_written(warp, cta, lanes, columns, f"A of {product.form.name}")
    _, numpy_type = fragments.OPERAND_TYPES[product.shape.a_type]
    bits = np.ascontiguousarray(cta.tmem.data[lanes, columns]).view(numpy_type)
    return fragments.to_float(bits, product.shape.a_type)


def _accumulate(
    product: Product, warp: Warp, cta: Cta, index: int, block: Block, a: Float32, b: Float32
) -> None:
    """Update one block of D. index: which CTA of the group this is."""
    form, half = product.form, product.shape.d_type == "f16"
    _, column = tmem_layouts.split_address(product.d)
    lanes = block.lane_array()
    columns = slice(column, column + b.shape[0])
    if product.accumulate:
        tensor_memory.check_written(warp, cta, lanes, columns, f"D of {form.name}")
        c = _decode_d(cta.tmem.data[lanes, columns], half) * np.float32(2.0**-form.scale)
    else:
        c = np.zeros((len(lanes), b.shape[0]), np.float32)
    d = _encode_d(multiply_accumulate(a, b, c, None), half)
    if any(product.disabled):
        disabled = np.array(
            [product.disabled[4 * index + lane // 32] >> (lane % 32) & 1 for lane in block.lanes], np.bool_
        )
        lanes, d = lanes[~disabled], d[~disabled]
    cta.tmem.data[lanes, columns] = d
    cta.tmem.written[lanes, columns] = True


def _decode_d(bits: Array, half: bool) -> Float32:
    """fp32 of accumulator cells; f16 accumulators lie in the low halves."""
    return fp16_to_f32((bits & np.uint32(0xFFFF)).astype(np.uint16)) if half else bits.view(np.float32)


def _encode_d(values: Float32, half: bool) -> Array:
    return f32_to_fp16(values).astype(np.uint32) if half else values.view(np.uint32)


# ---------------------------------------------------------------- tcgen05.commit
@instruction("tcgen05.commit", section="9.7.16.12.1 tcgen05.commit")
def commit(ins: Instruction, bind: Binder) -> Bound:
    """Arrive on an mbarrier, or on one in each CTA of a mask, when the earlier operations of the CTA are
    done.
    """
    if not ins.has("mbarrier::arrive::one"):
        raise EmulatorError(f"{ins.name}: .mbarrier::arrive::one is needed")
    multicast = ins.has("multicast::cluster")
    if len(ins.operands) != (2 if multicast else 1):
        raise EmulatorError(
            f"{ins.name}: {len(ins.operands)} operands; a CTA mask follows exactly with .multicast::cluster"
        )
    reads = [bind.shared_address(ins.operands[0])]
    if multicast:
        reads.append(bind.value(ins.operands[1], "u16"))
    name = f"tcgen05.commit (line {ins.line})"
    return Bound(run=partial(run_commit, name, tensor_memory.cta_group(ins)), reads=tuple(reads))


def run_commit(
    name: str, group: int, warp: Warp, lanes: npt.NDArray[np.bool_], address: Array, mask: Array | None = None
) -> None:
    """Queue the arrivals behind what the CTA has issued."""
    tensor_memory.use_group(warp.machine, group, name)
    for lane in bulk.lanes_of(lanes):
        targets = _commit_targets(name, warp, int(address[lane]), None if mask is None else int(mask[lane]))
        warp.cta.tensor_actor.acquire(warp.actor.release())
        stamp = warp.cta.tensor_actor.release()
        work = partial(_arrive, targets, stamp)
        warp.machine.post(AsyncOp(f"{name} of CTA {warp.cta.index}", work, tensor_memory.queue_of(warp.cta)))


def _commit_targets(name: str, warp: Warp, address: int, mask: int | None) -> list[Mbarrier]:
    """The mbarriers of a commit."""
    if mask is None:
        return [warp.mbarrier(address, "async")]
    size = len(warp.cta.cluster)
    if mask == 0 or mask >> size:
        raise EmulatorError(f"{name}: CTA mask {mask:#x} for a cluster of {size} CTAs")
    _, offset = warp.shared(address)
    return [
        warp.mbarrier(rank << SHARED_OFFSET_BITS | offset, "async")
        for rank in range(size)
        if mask >> rank & 1
    ]


def _arrive(targets: list[Mbarrier], stamp: Stamp) -> None:
    for target in targets:
        target.arrive(1, stamp)
