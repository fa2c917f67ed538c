"""A kernel by what it has to serve, in place of its name."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import cast

from mlagen.errors import DeviceError, SpecError
from mlagen.kernels.kernel import Kernel
from mlagen.spec import Arch, DType, KernelSpec


def get(
    *,
    h_q: int,
    page_size: int = 64,
    dtype: DType | str = "bf16",
    arch: Arch | str | None = None,
    s_q: int = 1,
    max_split: int | None = None,
    cta_group: int | None = None,
) -> Kernel:
    """The kernel that a call with these numbers gets.

    Args:
        h_q: query heads on this GPU.
        page_size: tokens of a page.
        dtype: of queries and cache, "bf16" or "fp16".
        arch: "sm_90a" and so on; that of GPU 0 if absent.
        s_q: new tokens of a row.
        max_split, cta_group: in place of the measured choice.

    Raises:
        SpecError: no family can build it; the message names the limit.
        DeviceError: arch is absent and there is no GPU to ask.
    """
    wanted, gpu = _arch(arch)
    values = KernelSpec(wanted, cast(DType, dtype), cast(DType, dtype), h_q, page_size, 1, 1)
    from mlagen import heuristics
    from mlagen.plan import make_plan

    make_plan(replace(values, max_split=max_split or 1, cta_group=cta_group or 1))  # its message says more
    spec = heuristics.pick(wanted, gpu, values.q_dtype, h_q, page_size, s_q).spec
    spec = replace(
        spec,
        max_split=spec.max_split if max_split is None else max_split,
        cta_group=spec.cta_group if cta_group is None else cta_group,
    )
    return cast(Kernel, import_module(f"mlagen.kernels.{spec.name}")) if _by_name(spec) else _anonymous(spec)


def _by_name(spec: KernelSpec) -> bool:
    """Whether the name alone leads back to the spec; that of a tuning in nobody's table does not."""
    from mlagen.resolve import resolve

    try:
        return resolve(spec.name) == spec
    except SpecError:
        return False


def _anonymous(spec: KernelSpec) -> Kernel:
    return Kernel(f"mlagen.kernels.{spec.name}", spec)


def _arch(given: Arch | str | None) -> tuple[Arch, str]:
    """Architecture and the GPU's name, "" when it was given."""
    if given is not None:
        try:
            return Arch(given), ""
        except ValueError:
            choices = ", ".join(item.value for item in Arch)
            raise SpecError(f"arch={given!r} is not known. Choices: {choices}") from None
    from mlagen import driver, heuristics

    try:
        gpu = driver.gpu(0)
    except DeviceError as error:
        raise DeviceError(f"arch is not given and there is no GPU to ask: {error}") from error
    return heuristics.arch_of(gpu), gpu.name
