"""`mlagen doctor`: what is there, what is missing, what to do."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

import click

from mlagen import __version__, paths, settings, toolchain
from mlagen.cache import Cache
from mlagen.cli.common import json_option, print_json, table
from mlagen.cli.status import FAILED
from mlagen.errors import MlagenError
from mlagen.fingerprint import INSTALL_LINE


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: `status` is "ok", "missing" or "wrong", `fix` says what to do."""

    what: str
    status: str
    detail: str
    fix: str = ""


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Check toolchain, headers, driver, GPU, cache and settings.

    Exits with status 1 if kernels cannot be compiled here.
    """
    tools = _toolchain()
    findings = [*_installation(), *tools, *_packages(), *_gpus(), *_cache(), *_settings()]
    able = all(finding.status == "ok" for finding in tools)
    if as_json:
        print_json({"can_compile": able, "findings": [asdict(finding) for finding in findings]})
    else:
        table(
            "", ("what", "status", "detail", "what to do"), [list(asdict(item).values()) for item in findings]
        )
        click.echo("kernels can be compiled here" if able else "kernels CANNOT be compiled here")
    if not able:
        sys.exit(FAILED)


def _installation() -> list[Finding]:
    return [
        Finding("mlagen", "ok", f"{__version__}, Python {platform.python_version()}, {sys.executable}"),
        Finding("templates", "ok", str(paths.template_root())),
    ]


def _toolchain() -> list[Finding]:
    rows = []
    for component, place in toolchain.survey():
        wrong = toolchain.problems([(component, place)])
        if place is None:
            rows.append(Finding(component.distribution, "missing", "", INSTALL_LINE))
        elif wrong:
            rows.append(Finding(component.distribution, "wrong", wrong[0], INSTALL_LINE))
        else:
            rows.append(
                Finding(component.distribution, "ok", f"{place.version or 'no version'} {place.folder}")
            )
    if all(row.status == "ok" for row in rows):
        rows.append(_compiler())
    return rows


def _compiler() -> Finding:
    """Compiles an empty kernel: the library loads, finds its parts and writes code."""
    from mlagen.nvrtc import compile_source
    from mlagen.spec import Arch

    try:
        source = '#include <mlagen/base.cuh>\nextern "C" __global__ void probe() {}\n'
        result = compile_source(source, Arch.SM_90A, name="probe")
    except MlagenError as error:
        return Finding("test compilation", "wrong", str(error).splitlines()[0], INSTALL_LINE)
    return Finding("test compilation", "ok", f"{result.seconds.cpu:.1f} s of CPU, headers included")


def _packages() -> list[Finding]:
    rows = []
    wanted = {
        "cuda-bindings": "pip install mlagen",
        "torch": "pip install 'mlagen[torch]' (only to run kernels)",
        "nvidia-cuda-nvdisasm": "pip install nvidia-cuda-nvdisasm (only to read machine code)",
    }
    for name, fix in wanted.items():
        try:
            rows.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append(Finding(name, "missing", "", fix))
    return rows


def _gpus() -> list[Finding]:
    from mlagen import driver

    fix = "kernels can be built here but not run; install an NVIDIA driver (580 or newer)"
    try:
        api = driver.api()
        count = int(driver.call(api.cuDeviceGetCount(), "counting GPUs"))
        version = int(driver.call(api.cuDriverGetVersion(), "asking for the driver's version"))
    except MlagenError as error:
        return [Finding("driver and GPU", "missing", str(error).splitlines()[0], fix)]
    rows = [Finding("driver", "ok", f"CUDA {version // 1000}.{version % 1000 // 10}")]
    for ordinal in range(count):
        rows.append(_gpu(ordinal))
    return (
        rows
        if count
        else [*rows, Finding("GPU", "missing", "the driver shows none", "check CUDA_VISIBLE_DEVICES")]
    )


def _gpu(ordinal: int) -> Finding:
    from mlagen import driver, heuristics

    try:
        gpu = driver.gpu(ordinal)
        detail = f"{gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}"
        return Finding(f"GPU {ordinal}", "ok", f"{detail}, kernels for {heuristics.arch_of(gpu)}")
    except MlagenError as error:
        return Finding(f"GPU {ordinal}", "wrong", str(error).splitlines()[0])


def _cache() -> list[Finding]:
    cache = Cache()
    rows = [Finding("search folder", "ok", str(root.path)) for root in cache.search]
    for path in settings.read().cache_path:
        if path not in [root.path for root in cache.search]:
            rows.append(
                Finding(
                    "search folder", "wrong", str(path), "make it a folder that not everybody can write to"
                )
            )
    if cache.private is None:
        fix = "set MLAGEN_CACHE_DIR to a folder of your own"
        return [*rows, Finding("cache folder", "wrong", "none can be used; kernels stay in memory", fix)]
    count = sum(len(folders) for folders in cache.names().values())
    return [*rows, Finding("cache folder", "ok", f"{cache.private.path}, {count} kernels in all folders")]


def _settings() -> list[Finding]:
    values = settings.read()
    rows = [
        Finding(row.variable, "ok", str(getattr(values, row.variable[len(settings.PREFIX) :].lower())))
        for row in settings.rows()
        if getattr(values, row.variable[len(settings.PREFIX) :].lower()) != row.default
    ]
    return rows + [
        Finding(name, "wrong", "no such setting", "see docs/env_vars.md for the names")
        for name in settings.unknown()
    ]
