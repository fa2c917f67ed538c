"""The last hop on a CPU: the same plan, parameters and tensor maps as on a GPU, with tensors in host memory.

`EmulatorLauncher` is a `mlagen.runtime.Launcher`. The plan supplies names, the launch shape and the layout of
the parameters; counts, bytes,
swizzles and layouts come from the PTX and from the tensor maps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlagen.arguments import call_values, layout_values
from mlagen.emu.checks import CheckOptions
from mlagen.emu.emulator import Emulator, LaunchResult
from mlagen.emu.interfaces import Instruction
from mlagen.emu.names import Names
from mlagen.emu.tensormap import ElementType, Swizzle, encode_tiled
from mlagen.errors import DeviceError
from mlagen.launch_shape import COUNTERS_PER_CTA, LaunchShape, launch_shape, workspace_bytes
from mlagen.plan import make_plan
from mlagen.plan.model import Entry, Plan
from mlagen.plan.params import packer
from mlagen.problem import Problem
from mlagen.runtime import Outputs
from mlagen.spec import DType, KernelSpec
from mlagen.tma import TensorMap, tensor_map

DEFAULT_SMS = 4
"""Multiprocessors of the emulated GPU: few, because every CTA of a persistent grid is emulated."""

_SWIZZLES = {0: Swizzle.NONE, 32: Swizzle.B32, 64: Swizzle.B64, 128: Swizzle.B128}
_ELEMENTS = {DType.BF16: ElementType.BFLOAT16, DType.FP16: ElementType.FLOAT16}


@dataclass(slots=True)
class HostRegion:
    """Bytes of host memory that a launch may touch. written=False: their content is poison until the kernel
    writes it.
    """

    name: str
    address: int
    nbytes: int
    written: bool = True
    copy_back: bool = False


@dataclass(slots=True)
class EmulatorOptions:
    """How kernels are emulated; see `Emulator.launch`. sms: multiprocessors of the emulated GPU. checks: by
    default all, and stricter than hardware needs.
    """

    schedule: str = "eager"
    sms: int = DEFAULT_SMS
    checks: CheckOptions = field(default_factory=lambda: CheckOptions(own_part=True))
    exact: bool = True
    fail_on_findings: bool = True
    stop_at_finding: bool = False


class EmulatorLauncher:
    """Runs kernels of mlagen on the emulator.

    Args:
        options: schedule, sanitizers, size of the emulated GPU.
        ptx: gives the PTX of a spec; the build cache by default.

    Attributes:
        results: of every launch, in order.
        patch: instructions that replace those of the main kernel, by index (a mutant).
        max_rounds: see `Emulator.launch`.
    """

    def __init__(
        self, options: EmulatorOptions | None = None, ptx: Callable[[KernelSpec], str] | None = None
    ) -> None:
        self.options = options or EmulatorOptions()
        self.results: list[LaunchResult] = []
        self._ptx = ptx or _built_ptx
        self._texts: dict[KernelSpec, str] = {}
        self.patch: Mapping[int, Instruction] = {}
        self.max_rounds = 0
        self._counters = np.zeros(max(self.options.sms, 1) * COUNTERS_PER_CTA, np.uint32)

    # ---- the Launcher protocol

    def workspace_bytes(self, spec: KernelSpec, batch: int, s_q: int) -> int:
        """Bytes of scratch that `decode` needs."""
        return workspace_bytes(spec, self.shape(spec, s_q)) if batch else 0

    def decode(self, spec: KernelSpec, problem: Problem, outputs: Outputs) -> None:
        """Run the main kernel.

        Raises:
            EmulatorError: undefined behaviour, a deadlock, or (SanitizerError) findings.
        """
        plan, shape = make_plan(spec), self.shape(spec, problem.layout.s_q)
        space = _AddressSpace(self._emulator(spec), self._regions(spec, problem, outputs, shape))
        counters = space.emulator.array(self._counters, "counters") if spec.max_split > 1 else None
        pointers = {name: space.translate(address) for name, address in problem.pointers.items()}
        moved = _Moved(problem, pointers)
        values: dict[str, int | float] = {
            **layout_values(problem.layout, shape),
            **call_values(
                moved,  # type: ignore[arg-type]
                out=space.translate(outputs.out),
                lse=space.translate(outputs.lse),
                workspace=space.translate(outputs.workspace) if outputs.workspace else 0,
                partial_lse_offset=shape.partial_lse_offset,
                counters=counters.address if counters is not None else 0,
            ),
        }
        maps = [encode_map(tensor_map(row, problem.layout, pointers)) for row in plan.tensor_maps]
        args = [bytes(packer(plan.params)(**values)), *maps]
        self._launch(space, plan, _entry(plan, ""), shape.ctas, args)

    def schedule(self, spec: KernelSpec, problem: Problem, rows: int, count: int, capacity: int) -> None:
        """Run the read-back kernel."""
        plan, shape = make_plan(spec), self.shape(spec, problem.layout.s_q)
        regions = [
            *_tensor_regions(problem),
            HostRegion("rows", rows, capacity * 24, copy_back=True),
            HostRegion("count", count, 4, copy_back=True),
        ]
        space = _AddressSpace(self._emulator(spec), regions)
        moved = _Moved(
            problem, {name: space.translate(address) for name, address in problem.pointers.items()}
        )
        values: dict[str, int | float] = {f.name: 0 for f in plan.params}
        values |= layout_values(problem.layout, shape)
        values |= call_values(moved, out=0, lse=0, workspace=0, partial_lse_offset=0, counters=0)  # type: ignore[arg-type]
        args: list[Any] = [
            bytes(packer(plan.params)(**values)),
            space.translate(rows),
            space.translate(count),
            capacity,
        ]
        self._launch(space, plan, _entry(plan, "_schedule"), shape.ctas, args)

    # ---- parts

    def shape(self, spec: KernelSpec, s_q: int) -> LaunchShape:
        """The launch shape on the emulated GPU."""
        return launch_shape(spec, s_q, max(self.options.sms // spec.cta_group, 1))

    def text(self, spec: KernelSpec) -> str:
        """The PTX of a spec."""
        text = self._texts.get(spec)
        if text is None:
            text = self._texts[spec] = self._ptx(spec)
        return text

    def _emulator(self, spec: KernelSpec) -> Emulator:
        return Emulator(self.text(spec))

    def _regions(
        self, spec: KernelSpec, problem: Problem, outputs: Outputs, shape: LaunchShape
    ) -> list[HostRegion]:
        layout = problem.layout
        inputs = [r for r in _tensor_regions(problem) if r.name not in ("out", "lse", "workspace")]
        heads = layout.batch * layout.s_q * layout.h_q
        sizes = {"out": heads * 1024, "lse": heads * 4}
        for name in sizes:
            if name in layout.metas:
                sizes[name] = layout.metas[name].span_bytes
        made = [
            HostRegion("out", outputs.out, sizes["out"], written=False, copy_back=True),
            HostRegion("lse", outputs.lse, sizes["lse"], written=False, copy_back=True),
        ]
        if outputs.workspace:
            nbytes = workspace_bytes(spec, shape)
            made.append(HostRegion("workspace", outputs.workspace, nbytes, written=False, copy_back=True))
        return inputs + made

    def _launch(self, space: _AddressSpace, plan: Plan, entry: Entry, ctas: int, args: Sequence[Any]) -> None:
        options = self.options
        main = entry.suffix == ""
        try:
            result = space.emulator.launch(
                plan.name + entry.suffix,
                grid=ctas,
                block=entry.threads,
                cluster=entry.cluster,
                dynamic_shared=plan.launch.smem_bytes if main else 0,
                args=args,
                schedule=options.schedule if main else "eager",
                checks=options.checks,
                names=Names.from_plan(plan) if main else None,
                exact=options.exact,
                fail_on_findings=options.fail_on_findings,
                max_rounds=self.max_rounds,
                stop_at_finding=options.stop_at_finding,
                patch=self.patch if main else None,
            )
        finally:
            space.copy_back()
        self.results.append(result)


class _Moved:
    """A problem whose pointers are addresses of the emulator."""

    def __init__(self, problem: Problem, pointers: dict[str, int]) -> None:
        self.layout = problem.layout
        self.pointers = pointers
        self.causal = problem.causal
        self.uniform_splits = problem.uniform_splits
        self.softmax_scale = problem.softmax_scale


class _AddressSpace:
    """Host regions copied into an emulator's global memory. Regions that overlap become one allocation."""

    def __init__(self, emulator: Emulator, regions: Sequence[HostRegion]) -> None:
        self.emulator = emulator
        self.placed: list[tuple[int, int, int]] = []
        self.copies: list[tuple[Any, int]] = []
        for merged in _merge([r for r in regions if r.nbytes]):
            self._place(merged)

    def _place(self, regions: list[HostRegion]) -> None:
        memory = self.emulator.memory
        start = min(r.address for r in regions)
        nbytes = max(r.address + r.nbytes for r in regions) - start
        shift = start % 256
        name = "+".join(r.name for r in regions)
        base = memory.allocate_array(nbytes + shift, name) + shift
        offset = base - memory.base
        memory.state[offset - shift : offset + nbytes] = 0
        self.placed.append((start, nbytes, base))
        for region in sorted(regions, key=lambda r: r.written):
            view = np.ctypeslib.as_array((ctypes.c_uint8 * region.nbytes).from_address(region.address))
            at = offset + region.address - start
            memory.data[at : at + region.nbytes] = view
            memory.allocate(at, region.nbytes, written=region.written)
            if region.copy_back:
                self.copies.append((view, at))

    def translate(self, address: int) -> int:
        """The emulator's address of a host address; 0 stays 0.

        Raises:
            DeviceError: the address is in no region.
        """
        if address == 0:
            return 0
        for start, nbytes, base in self.placed:
            if start <= address < start + nbytes:
                return base + address - start
        raise DeviceError(f"host address 0x{address:x} belongs to no tensor of the call")

    def copy_back(self) -> None:
        """Copy what the kernel may have written to host memory."""
        for view, at in self.copies:
            view[:] = self.emulator.memory.data[at : at + view.size]


def _merge(regions: list[HostRegion]) -> list[list[HostRegion]]:
    """Groups of regions that share bytes."""
    groups: list[list[HostRegion]] = []
    end = -1
    for region in sorted(regions, key=lambda r: r.address):
        if groups and region.address < end:
            groups[-1].append(region)
        else:
            groups.append([region])
            end = -1
        end = max(end, region.address + region.nbytes)
    return groups


def _tensor_regions(problem: Problem) -> list[HostRegion]:
    metas = problem.layout.metas
    return [HostRegion(name, address, metas[name].span_bytes) for name, address in problem.pointers.items()]


def _entry(plan: Plan, suffix: str) -> Entry:
    return next(entry for entry in plan.entries if entry.suffix == suffix)


def encode_map(numbers: TensorMap) -> bytes:
    """The 128 bytes of a tensor map, with every documented limit checked."""
    return encode_tiled(
        _ELEMENTS[numbers.dtype],
        numbers.address,
        numbers.extents,
        numbers.strides,
        numbers.box,
        swizzle=_SWIZZLES[numbers.swizzle],
        l2_promotion=3,
    )


def _built_ptx(spec: KernelSpec) -> str:
    from mlagen.build import load_artifact

    return load_artifact(spec).ptx.decode()
