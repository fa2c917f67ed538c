"""Layout: the rules about shapes, strides, dtypes and devices of a call, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlagen.errors import InputError
from mlagen.spec import DType, KernelSpec
from mlagen.tensors import Meta, contiguous_strides, describe

D_QK = 576
D_LATENT = 512
D_ROPE = 64
INT32_MAX = 2**31 - 1
MAX_TMA_STRIDE_BYTES = 2**40
STRIDE_UNIT_BYTES = 16
WRITTEN = ("out", "lse", "workspace")
DTYPES = {"bfloat16": DType.BF16, "float16": DType.FP16}


@dataclass(frozen=True, slots=True)
class CacheView:
    """Latent or rope part of the cache, as TMA sees it.

    Attributes:
        tensor: argument whose address it starts from.
        byte_offset: bytes from that address to the first element of the part.
        row_bytes, page_bytes: strides.
    """

    tensor: str
    byte_offset: int
    row_bytes: int
    page_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Checked shapes and strides of one call. Strides are in elements unless they say bytes.

    Attributes:
        batch, s_q, h_q: extents of q.
        dtype: element type of q, cache and output.
        device: ordinal of the GPU.
        pages, page_size, width: of the cache and of the block table.
        max_len: width * page_size, the most keys that a row can have.
        q_nope, q_pe: (tensor name, offset in bytes) where the two parts of q start.
        latent, rope: the two parts of the cache.
        strides: stride fields of the kernel's parameters, by name.
        base_alignment: (tensor name, bytes) for every address that has to be aligned.
        workspace_bytes: size of a given workspace, 0 without one.
        metas: every argument, by name.
        spans: bytes from the first to behind the last element of every argument, in the order of the
            arguments.
        written: positions of out, lse and workspace in that order.
    """

    batch: int
    s_q: int
    h_q: int
    dtype: DType
    device: int
    pages: int
    page_size: int
    width: int
    max_len: int
    q_nope: tuple[str, int]
    q_pe: tuple[str, int]
    latent: CacheView
    rope: CacheView
    strides: dict[str, int]
    base_alignment: tuple[tuple[str, int], ...]
    workspace_bytes: int
    metas: dict[str, Meta]
    spans: tuple[tuple[int, bool], ...]

    def may_overlap(self, a: str, a_pointer: int, b: str, b_pointer: int) -> bool:
        """Whether two arguments whose spans meet can share a byte.

        Exact for views of one buffer that have the same outer strides; True when it cannot be told.
        """
        first, second = self.metas[a], self.metas[b]
        if first.strides[-1] != 1 or second.strides[-1] != 1:
            return True
        a_steps = tuple(stride * first.itemsize for stride in first.strides[:-1])
        b_steps = tuple(stride * second.itemsize for stride in second.strides[:-1])
        if not a_steps or a_steps != b_steps:
            return True
        period = min(a_steps)
        if period <= 0 or any(step % period for step in a_steps):
            return True
        a_first, a_bytes = a_pointer % period, first.shape[-1] * first.itemsize
        b_first, b_bytes = b_pointer % period, second.shape[-1] * second.itemsize
        low, low_bytes, high, high_bytes = (
            (a_first, a_bytes, b_first, b_bytes)
            if a_first <= b_first
            else (b_first, b_bytes, a_first, a_bytes)
        )
        return not (low + low_bytes <= high and high + high_bytes <= low + period)


def check_layout(tensors: dict[str, Any], device_type: str = "cuda") -> Layout:
    """Checks everything that does not depend on addresses and returns the numbers.

    Args:
        tensors: by argument name: q or q_nope and q_pe, kv_cache or ckv and k_pe, block_table, cache_seqlens,
            and those given of num_splits, out, lse, workspace.
        device_type: where they must be.

    Raises:
        InputError: the first rule that is broken.
    """
    metas = {name: describe(name, tensor) for name, tensor in tensors.items()}
    device = _check_devices(metas, device_type)
    batch, s_q, h_q, q_strides = _check_q(metas)
    dtype = _check_dtypes(metas)
    pages, page_size, latent, rope = _check_cache(metas, batch)
    width = _check_tables(metas, batch)
    max_len = width * page_size
    if max_len > INT32_MAX:
        raise InputError(
            f"block_table has {width} columns of {page_size} keys: {max_len} keys a row, "
            f"{max_len - INT32_MAX} above the limit of {INT32_MAX}. Narrow block_table to the pages in use"
        )
    _check_num_splits(metas, batch)
    strides = {"block_table_stride": metas["block_table"].strides[0], **q_strides}
    strides |= _check_output(metas, "out", (batch, s_q, h_q, D_LATENT))
    strides |= _check_output(metas, "lse", (batch, s_q, h_q), "float32")
    paired_q = "q_nope" in metas
    return Layout(
        batch=batch,
        s_q=s_q,
        h_q=h_q,
        dtype=dtype,
        device=device,
        pages=pages,
        page_size=page_size,
        width=width,
        max_len=max_len,
        q_nope=("q_nope", 0) if paired_q else ("q", 0),
        q_pe=("q_pe", 0) if paired_q else ("q", D_LATENT * 2),
        latent=latent,
        rope=rope,
        strides=strides,
        base_alignment=tuple(
            (name, 4 if meta.dtype == "int32" else _base_align(name)) for name, meta in metas.items()
        ),
        workspace_bytes=_check_workspace(metas),
        metas=metas,
        spans=tuple((meta.span_bytes, name in WRITTEN) for name, meta in metas.items()),
    )


def _base_align(name: str) -> int:
    return 4 if name == "lse" else STRIDE_UNIT_BYTES


def _check_devices(metas: dict[str, Meta], device_type: str) -> int:
    first = next(iter(metas.values()))
    for meta in metas.values():
        if meta.device.partition(":")[0] != device_type:
            raise InputError(
                f"{meta.name} is on device {meta.device!r}; a {device_type.upper()} tensor is needed. "
                f"Move it with .to({device_type!r})"
            )
        if meta.device != first.device:
            raise InputError(
                f"{meta.name} is on {meta.device}, {first.name} is on {first.device}; "
                f"all tensors of a call must be on one GPU. Move {meta.name} to {first.device}"
            )
    _, _, index = first.device.partition(":")
    return int(index or 0)


def _check_dtypes(metas: dict[str, Meta]) -> DType:
    first = next(iter(metas.values()))
    if first.dtype not in DTYPES:
        raise InputError(f"{first.name} has dtype {first.dtype}; {' or '.join(DTYPES)} is needed")
    for name in ("q_pe", "kv_cache", "ckv", "k_pe", "out"):
        if name in metas and metas[name].dtype != first.dtype:
            raise InputError(
                f"{name} has dtype {metas[name].dtype}, {first.name} has {first.dtype}; they must be the same"
            )
    for name in ("block_table", "cache_seqlens", "num_splits"):
        if name in metas and metas[name].dtype != "int32":
            raise InputError(
                f"{name} has dtype {metas[name].dtype}; int32 is needed (convert it once, outside the loop)"
            )
    return DTYPES[first.dtype]


def _expect_shape(meta: Meta, wanted: tuple[int | None, ...], text: str) -> None:
    fits = len(meta.shape) == len(wanted) and all(
        w is None or w == s for s, w in zip(meta.shape, wanted, strict=True)
    )
    if not fits:
        raise InputError(f"{meta.name} has shape {list(meta.shape)}; {text} is needed")


def _check_strides(meta: Meta, unit_bytes: int = STRIDE_UNIT_BYTES) -> None:
    """Last dimension contiguous, other strides not negative and multiples of `unit_bytes`."""
    if meta.shape[-1] > 1 and meta.strides[-1] != 1:
        raise InputError(
            f"{meta.name} has stride {meta.strides[-1]} in its last dimension; 1 is needed (contiguous "
            f"elements). "
            "Pass a tensor laid out that way; no hidden copy is made"
        )
    for axis, stride in enumerate(meta.strides[:-1]):
        nbytes = stride * meta.itemsize
        if stride < 0 or nbytes % unit_bytes:
            raise InputError(
                f"{meta.name} has stride {stride} elements ({nbytes} B) in dimension {axis}; multiples of "
                f"{unit_bytes} B "
                f"are needed, {nbytes % unit_bytes} B too many. Pad the dimension inside it; no hidden copy "
                f"is made"
            )


def _check_q(metas: dict[str, Meta]) -> tuple[int, int, int, dict[str, int]]:
    if "q" in metas:
        nope = pe = metas["q"]
        _expect_shape(nope, (None, None, None, D_QK), f"[b, s_q, h_q, {D_QK}], or the pair (q_nope, q_pe),")
    else:
        nope, pe = metas["q_nope"], metas["q_pe"]
        _expect_shape(nope, (None, None, None, D_LATENT), f"[b, s_q, h_q, {D_LATENT}]")
        _expect_shape(pe, (*nope.shape[:3], D_ROPE), f"{[*nope.shape[:3], D_ROPE]} (as q_nope)")
    batch, s_q, h_q = nope.shape[:3]
    if not 1 <= h_q <= 128:
        raise InputError(f"{nope.name} has h_q={h_q} heads; 1..128 are possible on one GPU")
    if s_q < 1 and batch:
        raise InputError(f"{nope.name} has s_q={s_q} query tokens a row; at least 1 is needed (b may be 0)")
    if s_q * h_q > INT32_MAX // D_LATENT:
        raise InputError(
            f"{nope.name} has s_q={s_q} tokens of {h_q} heads a row; at most {INT32_MAX // D_LATENT // h_q} "
            f"tokens fit"
        )
    _check_strides(nope)
    _check_strides(pe)
    strides = {}
    for part, meta in (("q_nope", nope), ("q_pe", pe)):
        for axis, letter in enumerate("bsh"):
            strides[f"{part}_stride_{letter}"] = meta.strides[axis]
    return batch, s_q, h_q, strides


def _check_cache(metas: dict[str, Meta], batch: int) -> tuple[int, int, CacheView, CacheView]:
    if "kv_cache" in metas:
        fused = _page_meta(metas["kv_cache"], D_QK)
        parts = [("kv_cache", fused, 0), ("kv_cache", fused, D_LATENT * fused.itemsize)]
    else:
        ckv, k_pe = _page_meta(metas["ckv"], D_LATENT), _page_meta(metas["k_pe"], D_ROPE)
        if ckv.shape[:2] != k_pe.shape[:2]:
            raise InputError(
                f"ckv holds {list(ckv.shape[:2])} [pages, page_size], k_pe {list(k_pe.shape[:2])}; they "
                f"must be equal"
            )
        parts = [("ckv", ckv, 0), ("k_pe", k_pe, 0)]
    pages, page_size = parts[0][1].shape[:2]
    if page_size not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise InputError(
            f"{parts[0][0]} has pages of {page_size} tokens; 1, 2, 4, 8, 16, 32, 64 or 128 are possible"
        )
    if batch and not 1 <= pages <= INT32_MAX:
        raise InputError(
            f"{parts[0][0]} has {pages} pages; 1..{INT32_MAX} are needed (block_table holds int32 numbers)"
        )
    views = []
    for name, meta, offset in parts:
        row, page = meta.strides[1] * meta.itemsize, meta.strides[0] * meta.itemsize
        _check_page_strides(meta, row, page)
        views.append(CacheView(name, offset, row, page))
    return pages, page_size, views[0], views[1]


def _page_meta(meta: Meta, columns: int) -> Meta:
    """[pages, page_size, columns], from that or from [pages, page_size, 1, columns]."""
    text = f"[pages, page_size, {columns}] or [pages, page_size, 1, {columns}]"
    if len(meta.shape) == 4:
        _expect_shape(meta, (None, None, 1, columns), text)
        drop = (0, 1, 3)
        meta = Meta(
            meta.name,
            tuple(meta.shape[axis] for axis in drop),
            tuple(meta.strides[axis] for axis in drop),
            meta.dtype,
            meta.device,
        )
    _expect_shape(meta, (None, None, columns), text)
    _check_strides(meta)
    return meta


def _check_page_strides(meta: Meta, row: int, page: int) -> None:
    pages, page_size, columns = meta.shape
    least_row = columns * meta.itemsize
    if page_size > 1 and row < least_row:
        raise InputError(
            f"{meta.name}: rows are {row} B apart and {least_row} B long, they overlap by {least_row - row} B"
        )
    least_page = (page_size - 1) * row + least_row
    if pages > 1 and page < least_page:
        raise InputError(
            f"{meta.name}: pages are {page} B apart and {least_page} B long, they overlap by "
            f"{least_page - page} B"
        )
    if max(row, page) >= MAX_TMA_STRIDE_BYTES:
        raise InputError(
            f"{meta.name}: a stride of {max(row, page)} B; TMA takes less than {MAX_TMA_STRIDE_BYTES} B"
        )


def _check_tables(metas: dict[str, Meta], batch: int) -> int:
    table, lens = metas["block_table"], metas["cache_seqlens"]
    _expect_shape(table, (batch, None), f"[b, width] with b={batch} rows")
    _check_strides(table, unit_bytes=table.itemsize)
    _check_vector(lens, batch)
    return table.shape[1]


def _check_vector(meta: Meta, batch: int) -> None:
    _expect_shape(meta, (batch,), f"[b] with b={batch}")
    if batch > 1 and meta.strides[0] != 1:
        raise InputError(
            f"{meta.name} has stride {meta.strides[0]}; contiguous elements (stride 1) are needed"
        )


def _check_num_splits(metas: dict[str, Meta], batch: int) -> None:
    if "num_splits" in metas:
        _check_vector(metas["num_splits"], batch)


def _check_output(
    metas: dict[str, Meta], name: str, shape: tuple[int, ...], dtype: str = ""
) -> dict[str, int]:
    """Strides b, s and h of an output, given or fresh."""
    strides = contiguous_strides(shape)
    if name in metas:
        meta = metas[name]
        _expect_shape(meta, shape, f"{list(shape)}")
        if dtype and meta.dtype != dtype:
            raise InputError(f"{name} has dtype {meta.dtype}; {dtype} is needed")
        if name == "out":
            _check_strides(meta)
        strides = meta.strides
        _check_no_self_overlap(meta)
    return {f"{name}_stride_{letter}": strides[axis] for axis, letter in enumerate("bsh")}


def _check_no_self_overlap(meta: Meta) -> None:
    """Sorted by stride, each dimension must step past all that the smaller ones cover."""
    covered = 1
    for stride, extent in sorted(zip(meta.strides, meta.shape, strict=True)):
        if extent <= 1:
            continue
        if stride < covered:
            raise InputError(
                f"{meta.name} has strides {list(meta.strides)} for shape {list(meta.shape)}: several "
                f"elements share an "
                "address. Pass a tensor whose elements are distinct (not an expanded one)"
            )
        covered = stride * (extent - 1) + covered


def _check_workspace(metas: dict[str, Meta]) -> int:
    meta = metas.get("workspace")
    if meta is None:
        return 0
    if meta.dtype != "uint8":
        raise InputError(f"workspace has dtype {meta.dtype}; a one-dimensional uint8 tensor is needed")
    _expect_shape(meta, (None,), "one dimension, [bytes],")
    if meta.shape[0] > 1 and meta.strides[0] != 1:
        raise InputError(f"workspace has stride {meta.strides[0]}; contiguous bytes are needed")
    return meta.shape[0]


def check_work(layout: Layout, spec: KernelSpec, groups: int, teams: int) -> None:
    """Checks that the line on which the kernel lays out all work fits its 32-bit arithmetic.

    Args:
        layout: the call.
        spec: the kernel.
        groups, teams: of the launch shape.

    Raises:
        InputError: batch times table width is too large for one launch.
    """
    blocks = -(-layout.max_len // 64)
    row = 2 * (blocks + spec.tuning.piece_cost * max(1, min(spec.max_split, blocks)))
    line = max(layout.batch * groups, teams) * row + teams
    if line >= 2**31:
        raise InputError(
            f"b={layout.batch} rows of up to {layout.max_len} keys (block_table is {layout.width} pages "
            f"wide) may "
            f"need {line} units of work in one launch, {line - 2**31 + 1} above the limit of {2**31 - 1}. "
            "Narrow block_table to the pages in use, or split the batch"
        )
