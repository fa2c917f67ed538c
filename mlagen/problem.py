"""Problem: one call, checked. Every rule about the arguments of a call is here and nowhere else.

Rules that depend only on shapes, strides, dtypes and devices are checked once for each combination and
remembered (`Layout`, see mlagen.layout); rules about addresses and scalars are checked on every call.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from mlagen.errors import InputError
from mlagen.layout import Layout, check_layout
from mlagen.spec import KernelSpec
from mlagen.tensors import fingerprint, require_tensor

BASE_ALIGN = 16
BATCH_INVARIANT = "batch_invariant"
_LAYOUTS: OrderedDict[tuple[Any, ...], Layout] = OrderedDict()
_MAX_LAYOUTS = 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """One checked call.

    Attributes:
        layout: everything about shapes, strides, dtypes and the device.
        tensors: the given tensors by argument name; a pair appears under its two names.
        pointers: their addresses, by the same names.
        softmax_scale: factor of q.k before the softmax.
        causal: whether token t of a row sees only the keys up to its own.
        uniform_splits: pieces asked for by a host int; 0 when balanced or when a device tensor is given.
        whole_rows: no row is cut, so that its result depends on nothing but the row (batch_invariant).
    """

    layout: Layout
    tensors: dict[str, Any]
    pointers: dict[str, int]
    softmax_scale: float
    causal: bool
    uniform_splits: int
    whole_rows: bool = False

    @classmethod
    def from_tensors(
        cls,
        q: Any,
        kv_cache: Any,
        block_table: Any,
        cache_seqlens: Any,
        *,
        softmax_scale: float,
        causal: bool = True,
        num_splits: Any = None,
        out: Any = None,
        lse: Any = None,
        workspace: Any = None,
        deterministic: str | None = None,
        device_type: str = "cuda",
    ) -> Problem:
        """Checks the arguments of mla_decode.

        Args: as mla_decode; device_type is where the tensors must be ("cpu" for an emulator).

        Raises:
            InputError: an argument breaks a rule; the message names it, the limit and what would work.
        """
        tensors = _name_tensors(q, kv_cache, block_table, cache_seqlens)
        scale = _check_scale(softmax_scale)
        if not isinstance(causal, bool):
            raise InputError(f"causal={causal!r} is a {type(causal).__name__}; True or False is needed")
        whole_rows = check_deterministic(deterministic)
        uniform = 1 if whole_rows else 0
        if whole_rows and num_splits is not None:
            raise InputError(
                f"num_splits is given together with deterministic={BATCH_INVARIANT!r}, which decides "
                "itself how rows are cut. Leave one of them out"
            )
        if num_splits is not None:
            if isinstance(num_splits, Integral) and not isinstance(num_splits, bool):
                uniform = _check_split_count(int(num_splits))
            else:
                tensors["num_splits"] = num_splits
        for name, value in (("out", out), ("lse", lse), ("workspace", workspace)):
            if value is not None:
                tensors[name] = value
        layout = _layout_of(tensors, device_type)
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        if layout.batch:
            _check_bases(layout, pointers)
            _check_overlaps(layout, pointers)
        return cls(layout, tensors, pointers, scale, causal, uniform, whole_rows)

    @property
    def like(self) -> Any:
        """The query tensor: device and dtype of everything that is allocated for the call."""
        return self.tensors["q"] if "q" in self.tensors else self.tensors["q_nope"]

    def check_spec(self, spec: KernelSpec) -> None:
        """Checks that a kernel fits this call.

        Raises:
            InputError: heads, page size, dtype or split count are not the kernel's.
        """
        layout = self.layout
        fits = (
            layout.h_q == spec.h_q
            and layout.page_size == spec.page_size
            and layout.dtype is spec.q_dtype
            and layout.dtype is spec.kv_dtype
        )
        for what, have, built in (
            ()
            if fits
            else (
                ("h_q", layout.h_q, spec.h_q),
                ("page_size", layout.page_size, spec.page_size),
                ("dtype", layout.dtype.value, spec.q_dtype.value),
                ("cache dtype", layout.dtype.value, spec.kv_dtype.value),
            )
        ):
            if have != built:
                raise InputError(
                    f"the tensors have {what} {have}, but the kernel {spec.name} was built for {what} "
                    f"{built}. "
                    f"Pass a spec with {what} {have}, or spec=None to have one chosen"
                )
        if self.uniform_splits > spec.max_split:
            raise InputError(
                f"num_splits={self.uniform_splits} is {self.uniform_splits - spec.max_split} above max_split "
                f"{spec.max_split} of {spec.name}. Pass 1..{spec.max_split}, or a spec with a larger "
                f"max_split"
            )

    def check_workspace(self, needed: int, spec: KernelSpec) -> None:
        """Checks the size of a given workspace.

        Raises:
            InputError: too small.
        """
        if "workspace" not in self.tensors:
            return
        given = self.layout.workspace_bytes
        if given < needed:
            raise InputError(
                f"workspace has {given} B, {needed} B are needed for {spec.name} with b={self.layout.batch}, "
                f"s_q={self.layout.s_q}: {needed - given} B short. "
                "Allocate workspace_size(spec, b, s_q, device=...) bytes, or leave workspace out"
            )


def check_deterministic(value: object) -> bool:
    """Whether batch-invariant results are asked for.

    Raises:
        InputError: neither None nor "batch_invariant".
    """
    if value is None:
        return False
    if value != BATCH_INVARIANT or not isinstance(value, str):
        raise InputError(
            f"deterministic={value!r}; None (equal bits for equal calls) or {BATCH_INVARIANT!r} (equal bits "
            f"for a row in any batch) is possible"
        )
    return True


def _name_tensors(q: Any, kv_cache: Any, block_table: Any, cache_seqlens: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for argument, value, pair in (("q", q, ("q_nope", "q_pe")), ("kv_cache", kv_cache, ("ckv", "k_pe"))):
        if isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise InputError(
                    f"{argument} is a sequence of {len(value)}; one tensor or the pair ({', '.join(pair)}) "
                    f"is needed"
                )
            tensors[pair[0]], tensors[pair[1]] = value
        else:
            tensors[argument] = value
    tensors["block_table"] = block_table
    tensors["cache_seqlens"] = cache_seqlens
    return tensors


def _check_scale(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(
            f"softmax_scale is a {type(value).__name__}; a Python number is needed "
            "(a tensor would have to be copied to the host)"
        )
    scale = float(value)
    if not math.isfinite(scale) or scale <= 0:
        raise InputError(f"softmax_scale={scale!r}; it must be finite and above 0, for example 192 ** -0.5")
    return scale


def _check_split_count(value: int) -> int:
    if value < 1:
        raise InputError(
            f"num_splits={value} is {1 - value} below the least count, 1. "
            "Pass 1..max_split, None for balanced pieces, or an int32 tensor [b] on the GPU"
        )
    return value


def _layout_of(tensors: dict[str, Any], device_type: str) -> Layout:
    """The layout of these tensors: remembered, or checked now."""
    try:
        key = (device_type, *[(name, *fingerprint(tensor)) for name, tensor in tensors.items()])
        known = _LAYOUTS.get(key)
    except (AttributeError, TypeError):
        for name, tensor in tensors.items():
            require_tensor(name, tensor)
        raise
    if known is None:
        known = check_layout(tensors, device_type)
        _LAYOUTS[key] = known
        while len(_LAYOUTS) > _MAX_LAYOUTS:
            _LAYOUTS.popitem(last=False)
    return known


def _check_bases(layout: Layout, pointers: dict[str, int]) -> None:
    """Addresses: 16 bytes for what is loaded by TMA or in vectors, the element for the rest."""
    for name, align in layout.base_alignment:
        excess = pointers[name] % align
        if excess:
            raise InputError(
                f"{name} starts at address {pointers[name]:#x}, {excess} B past a multiple of {align} B. "
                f"Start the view at an element whose address is a multiple of {align} B, or copy it to a "
                f"new tensor"
            )


def _check_overlaps(layout: Layout, pointers: dict[str, int]) -> None:
    """What is written must not share bytes with anything else that the call touches."""
    spans = [
        (pointer, pointer + nbytes, written, name)
        for (name, pointer), (nbytes, written) in zip(pointers.items(), layout.spans, strict=True)
        if nbytes
    ]
    for begin, end, written, name in spans:
        if not written:
            continue
        for other_begin, other_end, _, other in spans:
            if begin < other_end and other_begin < end and other != name:
                _refuse_overlap(layout, name, begin, other, other_begin)


def _refuse_overlap(layout: Layout, written: str, pointer: int, other: str, other_pointer: int) -> None:
    if layout.may_overlap(written, pointer, other, other_pointer):
        raise InputError(
            f"{written} and {other} share memory (addresses {pointer:#x} and {other_pointer:#x}). "
            f"{written} is written while {other} is in use: give it memory of its own"
        )
