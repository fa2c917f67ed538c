"""One kernel on one GPU: its module, functions and attributes, and the configuration of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlagen.driver import Gpu, call, current, outside_capture
from mlagen.errors import DeviceError
from mlagen.hardware import limits
from mlagen.launch_shape import LaunchShape, launch_shape
from mlagen.plan.model import Entry, Plan
from mlagen.spec import KernelSpec


@dataclass(eq=False)
class LoadedKernel:
    """A kernel on one GPU.

    Attributes:
        plan: its plan.
        device: the GPU.
        functions: CUfunction handles by entry suffix.
        resident_units: CTAs (1SM) or clusters (2SM) that run at the same time.
    """

    plan: Plan
    device: Gpu
    functions: dict[str, Any]
    resident_units: int

    def shape(self, s_q: int) -> LaunchShape:
        """How the grid is divided for rows of s_q tokens."""
        return launch_shape(self.plan.spec, s_q, self.resident_units)


def check_gpu(spec: KernelSpec, device: Gpu) -> None:
    """Checks that a GPU can run a kernel.

    Raises:
        DeviceError: it is of another architecture.
    """
    wanted = limits(spec.arch).compute_capability
    if device.compute_capability != wanted:
        have, need = (f"{major}.{minor}" for major, minor in (device.compute_capability, wanted))
        raise DeviceError(
            f"{spec.name} was built for compute capability {need} ({spec.arch}); device {device.ordinal} is "
            f"a "
            f"{device.name} with {have}. Run on a GPU with compute capability {need}, or build a spec for "
            f"this one"
        )


def launch_config(driver: Any, entry: Entry, plan: Plan, ctas: int) -> Any:
    """A CUlaunchConfig for one entry with `ctas` blocks."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = entry.threads, 1, 1
    main = entry.suffix == ""
    config.sharedMemBytes = plan.launch.smem_bytes if main else 0
    attributes = []
    if main and plan.launch.cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if entry.cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = entry.cluster
        attribute.value.clusterDim.y = 1
        attribute.value.clusterDim.z = 1
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def load_kernel(plan: Plan, cubin: bytes, device: Gpu) -> LoadedKernel:
    """Loads a cubin into the device's primary context.

    Raises:
        DeviceError: another architecture, or the driver refuses the image.
    """
    check_gpu(plan.spec, device)
    name = plan.spec.name
    with current(device) as driver, outside_capture(driver):
        module = call(driver.cuModuleLoadData(cubin), f"to load {name}")
        functions = {}
        for entry in plan.entries:
            symbol = name + entry.suffix
            function = call(
                driver.cuModuleGetFunction(module, symbol.encode()), f"cuModuleGetFunction({symbol})"
            )
            functions[entry.suffix] = function
        main = functions[""]
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        smem = plan.launch.smem_bytes
        call(
            driver.cuFuncSetAttribute(main, attribute, smem), f"{smem} B of shared memory a block for {name}"
        )
        resident = device.sm_count
        if plan.launch.cluster > 1:
            entry = next(entry for entry in plan.entries if entry.suffix == "")
            whole = device.sm_count // plan.launch.cluster * plan.launch.cluster
            config = launch_config(driver, entry, plan, whole)
            clusters = call(driver.cuOccupancyMaxActiveClusters(main, config), "cuOccupancyMaxActiveClusters")
            resident = min(int(clusters), device.sm_count // plan.launch.cluster)
    return LoadedKernel(plan, device, functions, resident)
