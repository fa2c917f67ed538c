"""Finding NVRTC and the header packages, and naming their content.

Packages are found through their installed metadata first and through cuda.pathfinder second. A toolkit of the
system is never used: its headers and its compiler may not fit the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlagen.errors import ToolchainError
from mlagen.fingerprint import INSTALL_LINE, Fingerprint, digest_of_files, own_digest
from mlagen.paths import include_root

# CCCL from this version on redeclares names of the CuTe headers of CUTLASS 4.2.
CCCL_BELOW = (13, 2)


@dataclass(frozen=True, slots=True)
class Component:
    """One package that the compiler needs.

    Attributes:
        key: short name, also in the symbolic include option `-I<key>`.
        distribution: name on the package index.
        prefix: folder of the wanted files inside the installation.
        marker: a file below the prefix that must exist.
        finder: the name under which cuda.pathfinder knows it.
    """

    key: str
    distribution: str
    prefix: str
    marker: str
    finder: str


HEADERS = (
    Component("cutlass", "nvidia-cutlass", "cutlass_library/source/include", "cute/config.hpp", "cutlass"),
    Component("cudart", "nvidia-cuda-runtime", "nvidia/cu13/include", "cuda_bf16.h", "cudart"),
    Component("cccl", "nvidia-cuda-cccl", "nvidia/cu13/include/cccl", "cuda/std/type_traits", "cccl"),
)
NVRTC = Component("nvrtc", "nvidia-cuda-nvrtc", "nvidia/cu13/lib", "libnvrtc.so.13", "nvrtc")


@dataclass(frozen=True, slots=True)
class Found:
    """Where a component is. `files` are relative to `folder`; `version` is "" without metadata."""

    component: Component
    folder: Path
    version: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A complete set: the compiler library and all header folders."""

    nvrtc: Found
    headers: tuple[Found, ...]

    @property
    def library(self) -> Path:
        """The NVRTC library file."""
        return self.nvrtc.folder / self.nvrtc.component.marker

    @property
    def includes(self) -> tuple[tuple[str, Path], ...]:
        """Symbolic name and folder of every include option, in order."""
        rows = [("mlagen", include_root())]
        rows += [(found.component.key, found.folder) for found in self.headers]
        # CUTLASS writes <cccl/cuda/std/...>, CCCL itself <cuda/std/...>: the parent is needed as well.
        cccl = next(found.folder for found in self.headers if found.component.key == "cccl")
        rows.append(("cccl_parent", cccl.parent))
        return tuple(rows)


def find(component: Component) -> Found | None:
    """The component, or None if it is not installed."""
    from importlib import metadata  # takes longer to import than a lookup that knows the packages

    try:
        distribution = metadata.distribution(component.distribution)
    except metadata.PackageNotFoundError:
        return _find_by_pathfinder(component)
    folder = Path(str(distribution.locate_file(component.prefix))).absolute()
    if not (folder / component.marker).is_file():
        return _find_by_pathfinder(component)
    return Found(component, folder, distribution.version, _recorded(distribution, component))


def _recorded(distribution: Any, component: Component) -> tuple[str, ...]:
    """Files of the component below its prefix, as the installation recorded them; () without a record."""
    import csv

    record = distribution.read_text("RECORD") or ""
    prefix = component.prefix + "/"
    names = (row[0] for row in csv.reader(record.splitlines()) if row)
    return tuple(sorted(name[len(prefix) :] for name in names if name.startswith(prefix)))


def _find_by_pathfinder(component: Component) -> Found | None:
    """The component by cuda.pathfinder, unless what it finds belongs to the system."""
    try:
        from cuda import pathfinder
    except ImportError:
        return None
    try:
        if component is NVRTC:
            library = pathfinder.load_nvidia_dynamic_lib(component.finder).abs_path
            found = None if library is None else Path(library).parent
        else:
            folder = pathfinder.find_nvidia_header_directory(component.finder)
            found = None if folder is None else Path(folder)
    except (RuntimeError, ValueError):
        return None
    if found is None or not _belongs_to_environment(found) or not (found / component.marker).is_file():
        return None
    return Found(component, found.absolute(), "", ())


def _belongs_to_environment(folder: Path) -> bool:
    """Whether a folder lies on Python's path or in the active conda environment."""
    roots = [entry for entry in sys.path if entry]
    if os.environ.get("CONDA_PREFIX"):
        roots.append(os.environ["CONDA_PREFIX"])
    return any(folder.resolve().is_relative_to(Path(root).resolve()) for root in roots)


def problems(found: Iterable[tuple[Component, Found | None]]) -> list[str]:
    """What stands in the way of compiling, one sentence each."""
    sentences = []
    for component, place in found:
        if place is None:
            sentences.append(f"{component.distribution} is not installed")
        elif component.key == "cccl" and place.version and _version(place.version) >= CCCL_BELOW:
            limit = ".".join(map(str, CCCL_BELOW))
            sentences.append(
                f"{component.distribution} {place.version} does not fit the CuTe headers; below {limit} does"
            )
    return sentences


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def survey() -> tuple[tuple[Component, Found | None], ...]:
    """Every component with its place, or None where it is missing."""
    return tuple((component, find(component)) for component in (NVRTC, *HEADERS))


def locate() -> Toolchain:
    """The complete toolchain.

    Raises:
        ToolchainError: names everything that is missing or does not fit, and the line that installs it.
    """
    rows = survey()
    wrong = problems(rows)
    if wrong:
        raise ToolchainError(f"kernels cannot be compiled here: {'; '.join(wrong)}. Install: {INSTALL_LINE}")
    places = [place for _, place in rows if place is not None]
    return Toolchain(nvrtc=places[0], headers=tuple(places[1:]))


def fingerprint(toolchain: Toolchain) -> Fingerprint:
    """Content of compiler and headers as they are now. No path and no time goes into it."""
    return Fingerprint(nvrtc=_nvrtc_identity(toolchain), toolkit=toolkit_digest(toolchain), own=own_digest())


def _nvrtc_identity(toolchain: Toolchain) -> str:
    if toolchain.nvrtc.version:
        return toolchain.nvrtc.version
    return digest_of_files("nvrtc", toolchain.nvrtc.folder, [toolchain.library])


def toolkit_digest(toolchain: Toolchain) -> str:
    """Digest of the header packages by relative name and content."""
    return "-".join(_package_digest(found)[:32] for found in toolchain.headers)


def _package_digest(found: Found) -> str:
    paths = [found.folder / name for name in found.files] or walk(found)
    return digest_of_files(found.component.key, found.folder, paths)


def walk(found: Found) -> list[Path]:
    """All files below the folder of a component; a nested component belongs to itself."""
    others = [item.prefix for item in HEADERS if item is not found.component]
    nested = {Path(prefix).name for prefix in others if prefix.startswith(found.component.prefix + "/")}
    return [
        path
        for path in found.folder.rglob("*")
        if path.is_file() and path.relative_to(found.folder).parts[0] not in nested
    ]
