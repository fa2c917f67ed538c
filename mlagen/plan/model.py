"""The frozen tables that a plan is made of. Templates print them; nothing else computes them again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlagen.spec import KernelSpec


def camel(name: str) -> str:
    """`kv_full` -> `KvFull`, the C++ spelling of a table name."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


@dataclass(frozen=True, slots=True)
class Constant:
    """`static constexpr int <name> = <value>` of Traits."""

    name: str
    value: int
    meaning: str


@dataclass(frozen=True, slots=True)
class TypeAlias:
    """`using <name> = <cpp>` of Traits."""

    name: str
    cpp: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class WarpRole:
    """Neighbouring warps that do one job.

    Attributes:
        name: role word of the glossary, e.g. "load".
        first_warp: first warp of the block with this role.
        warps: how many.
        registers: registers per thread after setmaxnreg, 0 if the role keeps the count of the launch.
        function: device function that the role runs.
    """

    name: str
    first_warp: int
    warps: int
    registers: int
    function: str

    @property
    def last_warp(self) -> int:
        """Last warp of the role."""
        return self.first_warp + self.warps - 1

    @property
    def threads(self) -> int:
        """Threads of the role."""
        return self.warps * 32

    @property
    def alias(self) -> str:
        """C++ name of the role in Traits, e.g. `LoadWarps`."""
        return f"{camel(self.name)}Warps"


@dataclass(frozen=True, slots=True)
class Mbarrier:
    """A ring of shared-memory barriers.

    Attributes:
        name: `<what>_full` or `<what>_empty`.
        stages: barriers in the ring.
        arrivals: arrivals that complete one phase of one barrier.
        tx_bytes: bytes that asynchronous copies deliver per phase, 0 if none.
        producer: role that arrives.
        consumer: role that waits.
        meaning: what is true when a phase completes.
    """

    name: str
    stages: int
    arrivals: int
    tx_bytes: int
    producer: str
    consumer: str
    meaning: str

    @property
    def constant(self) -> str:
        """Stem of the C++ constants, e.g. `kKvFull` of `kKvFullArrivals`."""
        return f"k{camel(self.name)}"


@dataclass(frozen=True, slots=True)
class NamedBarrier:
    """A hardware barrier (`bar.sync id, threads`); numbers start at 1, 0 is __syncthreads."""

    name: str
    id: int
    threads: int
    meaning: str

    @property
    def constant(self) -> str:
        """C++ name in `enum class NamedBarrier`, e.g. `kProbsReady`."""
        return f"k{camel(self.name)}"


@dataclass(frozen=True, slots=True)
class SmemRegion:
    """One member of SharedStorage.

    Attributes:
        name: member name.
        cpp_type: element type as printed.
        count: elements.
        itemsize: bytes of one element.
        align: alignment in bytes.
        lifetime: when the region holds what.
        offset: bytes from the start of SharedStorage; -1 before `lay_out_smem`.
    """

    name: str
    cpp_type: str
    count: int
    itemsize: int
    align: int
    lifetime: str
    offset: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes of the region without padding."""
        return self.count * self.itemsize

    @property
    def end(self) -> int:
        """First byte behind the region."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class TmemRegion:
    """Neighbouring columns of tensor memory, in all 128 lanes.

    Attributes:
        name: what it holds.
        columns: 32-bit columns.
        meaning: what lies in which lanes.
        first_column: distance from the allocated address; -1 before `lay_out_tmem`.
    """

    name: str
    columns: int
    meaning: str
    first_column: int = -1

    @property
    def last_column(self) -> int:
        """Last column of the region."""
        return self.first_column + self.columns - 1


@dataclass(frozen=True, slots=True)
class ParamField:
    """One member of Params.

    Attributes:
        name: member name, also the name under which the host fills it.
        cpp_type: C++ type as printed.
        ctype_code: `P` pointer, `q` int64, `i` int32, `f` float; `mlagen.plan.params` maps them to ctypes.
        meaning: what the host puts there, with unit.
        offset: bytes from the start of Params; -1 before `lay_out_params`.
    """

    name: str
    cpp_type: str
    ctype_code: str
    meaning: str
    offset: int = -1


@dataclass(frozen=True, slots=True)
class TensorMapDim:
    """One dimension of a tensor map, innermost first.

    Attributes:
        extent: size in elements; None is the number of pages, which only the call knows.
        stride_of: "element", "row" or "page": whose stride is multiplied.
        stride_times: the multiplier of that stride.
        box: extent of one copy.
        meaning: what the dimension runs over.
    """

    extent: int | None
    stride_of: str
    stride_times: int
    box: int
    meaning: str


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A TMA tensor map that the host encodes and passes as its own 64-byte aligned kernel parameter.

    Attributes:
        name: name of the kernel parameter, e.g. `tma_latent`.
        tensor: which tensor of the call it describes, e.g. "latent".
        dims: innermost first.
        swizzle: bytes of the swizzle pattern: 0, 32, 64 or 128.
        meaning: what one copy brings.
    """

    name: str
    tensor: str
    dims: tuple[TensorMapDim, ...]
    swizzle: int
    meaning: str

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def box(self) -> tuple[int, ...]:
        """Extents of one copy, innermost first."""
        return tuple(dim.box for dim in self.dims)

    @property
    def box_elements(self) -> int:
        """Elements that one copy delivers."""
        total = 1
        for dim in self.dims:
            total *= dim.box
        return total


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch shape of the main entry.

    Attributes:
        threads: threads of one block.
        cluster: CTAs of one cluster, 1 for none.
        smem_bytes: dynamic shared memory of one block.
        cooperative: all blocks must be resident together.
        registers: registers per thread at the start, the number that the compiler must report.
    """

    threads: int
    cluster: int
    smem_bytes: int
    cooperative: bool
    registers: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One `extern "C"` kernel of the rendered file.

    Attributes:
        suffix: appended to the spec's name; "" for the main kernel.
        function: device function template that it calls with Traits.
        threads: threads of one block.
        min_blocks: second argument of __launch_bounds__, 0 to leave it out.
        cluster: CTAs of one cluster, 1 for none.
        tensor_maps: whether the tensor maps follow Params.
        extra: further kernel parameters, in order.
    """

    suffix: str
    function: str
    threads: int
    min_blocks: int = 0
    cluster: int = 1
    tensor_maps: bool = False
    extra: tuple[ParamField, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that follows from one spec. The rendered file is a print of this object."""

    spec: KernelSpec
    constants: tuple[Constant, ...]
    types: tuple[TypeAlias, ...]
    roles: tuple[WarpRole, ...]
    mbarriers: tuple[Mbarrier, ...]
    named_barriers: tuple[NamedBarrier, ...]
    smem: tuple[SmemRegion, ...]
    smem_bytes: int
    smem_limit: int
    params: tuple[ParamField, ...]
    params_bytes: int
    tensor_maps: tuple[TensorMapSpec, ...]
    launch: Launch
    headers: tuple[str, ...]
    entries: tuple[Entry, ...]
    tmem: tuple[TmemRegion, ...] = ()

    @property
    def name(self) -> str:
        """Name of the spec."""
        return self.spec.name

    @property
    def smem_free(self) -> int:
        """Bytes of shared memory that the plan leaves."""
        return self.smem_limit - self.smem_bytes

    @property
    def constant(self) -> Mapping[str, int]:
        """Constants by name."""
        return {row.name: row.value for row in self.constants}
