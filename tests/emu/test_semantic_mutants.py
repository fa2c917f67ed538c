"""Wrong semantics put into the emulator: every one must make some test fail, or the tests prove little.

Not caught by nature: K taken in reverse order in A and in B, which changes no product.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from mlagen.emu import (
    bulk,
    checks,
    clocks,
    descriptors,
    emulator,
    fragments,
    mbarrier,
    memory,
    numerics,
    ordering,
    tensor_memory,
    tma_boxes,
    tmem_layouts,
)
from mlagen.emu.interfaces import EmulatorError
from mlagen.emu.isa import tcgen05_mma, tma, wgmma
from mlagen.emu.tensormap import Swizzle
from tests.emu import (
    test_descriptors,
    test_lanes_and_scopes,
    test_mbarriers,
    test_sanitizers,
    test_sync,
    test_tcgen05_mma,
    test_tensormap,
    test_tma,
    test_wgmma,
)
from tests.emu.tcgen05_products import Form as Tcgen05Form
from tests.emu.test_wgmma import Form as WgmmaForm

MODULES = (bulk, descriptors, fragments, numerics, tma_boxes, tmem_layouts, tma, wgmma, tcgen05_mma)


def clear_caches() -> None:
    """Forget what was computed with other semantics."""
    for module in MODULES:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    emulator._PROGRAMS.clear()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    clear_caches()
    yield
    clear_caches()


def wgmma_k_major() -> None:
    test_wgmma.test_product(WgmmaForm(64), "lazy")


def wgmma_mn_major() -> None:
    test_wgmma.test_product(WgmmaForm(256, registers=True, b_mn=True), "eager")


def column_tiles_of_our_kernels() -> None:
    test_descriptors.test_mn_major_operand_of_column_tiles_in_row_groups(1)


def wgmma_no_swizzle() -> None:
    test_wgmma.test_product(WgmmaForm(64, sw=0), "eager")


def pair_folded() -> None:
    test_tcgen05_mma.test_product(Tcgen05Form(128, 128, "B", 2, b_mn=True), "lazy")


def pair_a_in_tmem() -> None:
    test_tcgen05_mma.test_each_half_of_the_lanes_multiplies_its_own_copy_of_a(
        Tcgen05Form(128, 64, "B", 2, a_tmem=True)
    )


def one_cta_64_rows() -> None:
    test_tcgen05_mma.test_product(Tcgen05Form(64, 64, "F"), "eager")


def tile_load() -> None:
    test_tma.test_pages_of_latent_rows_5d(2, "eager")
    test_tma.test_pages_of_latent_rows_5d(3, "eager")


def other_loads() -> None:
    test_tma.test_gather4()
    test_tma.test_pair_load_signals_the_barrier_of_the_even_cta()
    test_tma.test_multicast_writes_and_signals_every_cta_of_the_mask(0b11, (0, 1))
    test_tma.test_missing_bytes_are_a_deadlock_and_extra_ones_an_error()


def swizzle_pattern() -> None:
    for swizzle, width in ((Swizzle.NONE, 16), (Swizzle.B32, 32), (Swizzle.B64, 64), (Swizzle.B128, 128)):
        test_tensormap.test_swizzle_moves_16_byte_chunks_within_their_row(swizzle, width)


def box_of_tma_read_by_descriptor() -> None:
    """Data that a tensor map laid out, as a matrix descriptor finds it."""
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    memory = np.zeros(8192 // 2, np.uint16)
    chunks = tma_boxes.shared_chunks(0, 8192, Swizzle.B128).astype(np.int64) >> 4
    memory.view(np.uint64).reshape(-1, 2)[chunks] = values.view(np.uint64).reshape(-1, 2)
    d = descriptors.MatrixDescriptor(32, 16, 1024, Swizzle.B128)
    found = memory[descriptors.operand_addresses(d, 64, 16, 2, False) >> 1]
    np.testing.assert_array_equal(found, values[:, 16:32])


def waits() -> None:
    test_mbarriers.test_arrivals_complete_a_phase("eager")
    test_sync.test_exchange_through_a_barrier("bar.sync 0;", "lockstep")


def sanitizers() -> None:
    test_sanitizers.test_race_without_a_barrier("lockstep")
    test_sanitizers.test_race_of_a_read_and_a_later_write()
    test_sanitizers.test_missing_proxy_fence()
    test_sanitizers.test_missing_proxy_fence_before_an_overwrite()
    test_sanitizers.test_never_written_global_memory()
    test_sanitizers.test_phases_that_can_run_around_a_waiter()
    test_lanes_and_scopes.test_a_lane_reads_what_another_lane_wrote()
    test_lanes_and_scopes.test_an_arrival_of_one_lane_covers_its_warp_only_behind_a_warp_barrier()
    test_lanes_and_scopes.test_cluster_scope_reaches_the_cluster()
    test_lanes_and_scopes.test_a_wait_covers_the_warp_or_the_warpgroup(True)


DETECTORS: Sequence[Callable[[], None]] = (
    swizzle_pattern,
    box_of_tma_read_by_descriptor,
    column_tiles_of_our_kernels,
    wgmma_k_major,
    wgmma_mn_major,
    wgmma_no_swizzle,
    tile_load,
    other_loads,
    pair_folded,
    pair_a_in_tmem,
    one_cta_64_rows,
    waits,
    sanitizers,
)


def detected() -> str:
    """The first detector that fails, or an empty string."""
    for detector in DETECTORS:
        try:
            detector()
        except (AssertionError, EmulatorError, IndexError, pytest.fail.Exception):
            return detector.__name__
    return ""


def test_nothing_is_detected_without_a_mutation() -> None:
    assert detected() == ""


def wrap(function: Any, change: Callable[..., Any]) -> Any:
    """change(function, *arguments) in the place of function(*arguments)."""
    return lambda *args, **kwargs: change(function, *args, **kwargs)


def no_swizzle(original: Any, address: Any, swizzle: Swizzle) -> Any:
    return address


def swizzle_with_higher_bits(original: Any, address: Any, swizzle: Swizzle) -> Any:
    return address ^ ((address >> 4) & 0x70) if swizzle == Swizzle.B128 else original(address, swizzle)


def offsets_swapped(original: Any, d: descriptors.MatrixDescriptor, *rest: Any) -> Any:
    return original(descriptors.MatrixDescriptor(d.start, d.stride, d.leading, d.swizzle), *rest)


def stride_doubled(original: Any, d: descriptors.MatrixDescriptor, *rest: Any) -> Any:
    return original(descriptors.MatrixDescriptor(d.start, d.leading, 2 * d.stride, d.swizzle), *rest)


def start_moved(original: Any, d: descriptors.MatrixDescriptor, *rest: Any) -> Any:
    return original(descriptors.MatrixDescriptor(d.start + 16, d.leading, d.stride, d.swizzle), *rest)


def k_major_always(original: Any, d: Any, rows: int, columns: int, size: int, mn_major: bool) -> Any:
    return original(d, rows, columns, size, False)


def halves_swapped(original: Any, *args: Any) -> Any:
    blocks = original(*args)
    turned = blocks[::-1]
    return tuple(tmem_layouts.Block(b.rows, t.columns, b.lanes) for b, t in zip(blocks, turned, strict=True))


def rows_in_lane_order(original: Any, layout: str, n: int, offset: int = 0) -> Any:
    if layout != "F":
        return original(layout, n, offset)
    return (tmem_layouts.Block(slice(0, 64), slice(0, n), tuple(range(64))),)


def reversed_pair(original: Any, *args: Any) -> Any:
    return list(original(*args))[::-1]


def inverted_input(original: Any, form: Any, warp: Any, lanes: Any, *args: Any) -> Any:
    d, a, b, idesc, accumulate, *masks = args
    return original(form, warp, lanes, d, a, b, idesc, ~accumulate, *masks)


def columns_rotated(original: Any, *args: Any) -> Any:
    lanes, columns = original(*args)
    return lanes, np.roll(columns, 1, axis=0)


def first_target_only(original: Any, *args: Any) -> Any:
    return original(*args)[:1]


def own_barrier(original: Any, warp: Any, region: Any, barrier: int, mask: Any, pair: bool) -> Any:
    return original(warp, region, barrier & 0xFFFFFF | region.cta.rank << 24, mask, pair)


def nothing(original: Any, *args: Any, **kwargs: Any) -> None:
    return None


def first_cta_of_mask(original: Any, warp: Any, region: Any, barrier: int, mask: Any, pair: bool) -> Any:
    return original(warp, region, barrier, None if mask is None else mask & -mask, pair)


def filled_with_ones(original: Any, t: Any) -> Any:
    return original(t) | 1


def rows_reversed(original: Any, t: Any, column: int, rows: Sequence[int]) -> Any:
    return original(t, column, list(rows)[::-1])


def halves_of_rows_swapped(original: Any, *args: Any) -> Any:
    return np.roll(original(*args), 8, axis=0)


def first_half_of_k_twice(original: Any, registers: Sequence[Any], kind: str) -> Any:
    return original([*registers[:2], *registers[:2]], kind)


def lower_copy_of_a(original: Any, product: Any) -> Any:
    blocks = original(product)
    return tuple(tmem_layouts.Block(b.rows, b.columns, blocks[0].lanes) for b in blocks)


def truncated_to_8_bits(original: Any, a: Any, b: Any, c: Any, model: Any) -> Any:
    result = original(a, b, c, model)
    return (result.view(np.uint32) & np.uint32(0xFFFF8000)).view(np.float32)


def inverted(original: Any, *args: Any) -> bool:
    return not original(*args)


def always(original: Any, *args: Any) -> bool:
    return True


def twice(original: Any, barrier: Any, count: int, stamp: Any) -> None:
    original(barrier, 2 * count, stamp)


def of_all_lanes(original: Any, actor: Any, lanes: int = 0) -> Any:
    return original(actor)


def given_stamp(original: Any, self: Any, warp: Any, stamp: Any) -> Any:
    return stamp


MUTANTS: list[tuple[str, types.ModuleType | type, str, Callable[..., Any]]] = [
    ("TMA ignores the swizzle", tma_boxes, "swizzle_address", no_swizzle),
    ("descriptors ignore the swizzle", descriptors, "swizzle_address", no_swizzle),
    ("TMA swizzles with bits 8 to 10", tma_boxes, "swizzle_address", swizzle_with_higher_bits),
    ("descriptors swizzle with bits 8 to 10", descriptors, "swizzle_address", swizzle_with_higher_bits),
    ("MN-major offsets swapped", descriptors, "_mn_major", offsets_swapped),
    ("K-major stride doubled", descriptors, "_k_major", stride_doubled),
    ("K-major offsets swapped", descriptors, "_k_major", offsets_swapped),
    ("start address 16 bytes on", wgmma, "operand_addresses", start_moved),
    ("wgmma ignores the transpose bits", wgmma, "operand_addresses", k_major_always),
    ("tcgen05 ignores the major bits", tcgen05_mma, "operand_addresses", k_major_always),
    ("folded halves swapped", tmem_layouts, "accumulator_blocks", halves_swapped),
    ("layout F without gaps", tmem_layouts, "accumulator_blocks", rows_in_lane_order),
    ("CTAs of a pair swapped", tensor_memory, "group_ctas", reversed_pair),
    ("enable-input-d inverted", tcgen05_mma, "run_mma", inverted_input),
    ("ld and st columns rotated", tmem_layouts, "transfer_places", columns_rotated),
    ("commit reaches the first CTA only", tcgen05_mma, "_commit_targets", first_target_only),
    ("TMA signals the CTA of the data", bulk, "load_targets", own_barrier),
    ("multicast reaches the first CTA only", bulk, "load_targets", first_cta_of_mask),
    ("expect_tx ignored", mbarrier.Mbarrier, "expect_tx", nothing),
    ("out of bounds is not zero", tma_boxes, "fill_pattern", filled_with_ones),
    ("gather4 rows reversed", tma_boxes, "gather_box", rows_reversed),
    ("accumulator row halves swapped", fragments, "accumulator_matrix", halves_of_rows_swapped),
    ("A registers: second half of K ignored", fragments, "a_matrix", first_half_of_k_twice),
    ("A in TMEM: one copy for both halves", tcgen05_mma, "_a_blocks", lower_copy_of_a),
    ("wgmma sums lose bits", wgmma, "multiply_accumulate", truncated_to_8_bits),
    ("parity inverted", mbarrier.Mbarrier, "passed", inverted),
    ("one arrival counts twice", mbarrier.Mbarrier, "arrive", twice),
    ("acquire takes nothing over", clocks.Actor, "acquire", nothing),
    ("lanes never synchronise", clocks.Actor, "sync_lanes", nothing),
    ("a release covers all lanes", clocks.Actor, "release", of_all_lanes),
    ("reads leave no trace", clocks.Shadow, "read", nothing),
    ("writes leave no trace", clocks.Shadow, "write", nothing),
    ("a proxy fence does nothing", checks.Checks, "proxy_fence", nothing),
    ("nobody looks for a missing proxy fence", checks.Checks, "_proxy", nothing),
    ("never-written bytes look written", memory.ByteStore, "examine", nothing),
    ("phases may alias", mbarrier.Mbarrier, "_check_alias", nothing),
    ("every scope reaches everybody", ordering, "_reaches", always),
    ("a wait covers the warpgroup", checks.Checks, "product_done", given_stamp),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m[0])
def test_wrong_semantics_are_noticed(
    mutant: tuple[str, Any, str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, place, name, change = mutant
    monkeypatch.setattr(place, name, wrap(getattr(place, name), change))
    assert detected(), "no test noticed"
