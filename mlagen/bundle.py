"""Bundles: folders (or wheels) of compiled kernels that load with the driver alone.

A bundle is laid out as a cache folder, `v<schema>/<kernel name>/<digest>/`, with a manifest `bundle.json`
beside it. Nothing in it names a host, a path or a time, so the same digest means the same bytes, wherever it
was built.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlagen import __version__
from mlagen.bundle_index import INDEX, ManifestError, read_index, row_of, text_of
from mlagen.cache import INSTALLED, store_entry
from mlagen.cache_entry import MANIFEST, DamagedError, Entry, Root, read_entry, sync_folder, write_synced
from mlagen.errors import CacheError

# What differs from run to run and is left out.
_VOLATILE = ("seconds",)


def plain(entry: Entry) -> Entry:
    """The entry without what differs from run to run."""
    info = {name: value for name, value in entry.info.items() if name not in _VOLATILE}
    return Entry(entry.name, entry.key, entry.files, info)


class Writer:
    """Adds kernels to a bundle, from any number of threads and processes.

    Every kernel is on disk as soon as `add` returns; the manifest follows with `finish`, which lists all
    that is there, so a build that was killed loses nothing.

    Raises:
        CacheError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._root = Root(folder.absolute(), private=True)
        try:
            self._root.base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(f"bundle {folder} cannot be written: {error}") from error

    def add(self, entry: Entry) -> bool:
        """Adds one kernel.

        Returns:
            False if the bundle has it already, with the same bytes.

        Raises:
            CacheError: it cannot be written, or another kernel is there under the same digest.
        """
        if entry.key.digest is None:
            raise CacheError(f"{entry.name} has no complete key: the compiler that made it is not known")
        if "-lineinfo" in entry.key.options:
            raise CacheError(
                f"{entry.name} was built with MLAGEN_LINEINFO, which writes paths of this machine into it; "
                "build bundles without"
            )
        new, target = plain(entry), self._root.entry(entry.name, entry.key.digest)
        if os.path.lexists(target):
            try:
                if (old := read_entry(target, entry.name)) == new:
                    return False
            except (DamagedError, FileNotFoundError):
                shutil.rmtree(target, ignore_errors=True)  # half a copy: written again
            else:
                files = [file for file in new.files if new.files[file] != old.files[file]]
                raise CacheError(
                    f"{entry.name}: digest {entry.key.digest} stands for two kernels that differ in "
                    f"{', '.join(files) or MANIFEST}; one of the bundles was not made by this version"
                )
        if not store_entry(self._root, new, entry.key.digest):
            raise CacheError(f"{entry.name} could not be written to {self._root.path}")
        for path in (target.parent, target, *target.iterdir()):  # a bundle is for others to read
            path.chmod(0o755 if path.is_dir() else 0o644)
        return True

    def finish(self) -> int:
        """Writes the manifest over everything that is there.

        Returns:
            The number of kernels.

        Raises:
            CacheError: it cannot be written.
        """
        rows = [row_of(entry) for entry in entries(self._root)]
        try:
            shutil.rmtree(self._root.base / "tmp", ignore_errors=True)
            temporary = self._root.path / f".{INDEX}.{os.getpid()}-{os.urandom(8).hex()}"
            write_synced(temporary, text_of(rows))
            temporary.chmod(0o644)
            temporary.replace(self._root.path / INDEX)
            sync_folder(self._root.path)
        except OSError as error:
            raise CacheError(f"bundle {self._root.path} cannot be written: {error}") from error
        return len(rows)


def entries(root: Root) -> list[Entry]:
    """All whole entries of a folder, for making a manifest."""
    found = []
    for manifest in sorted(root.base.glob(f"mla_decode_*/*/{MANIFEST}")):
        try:
            found.append(read_entry(manifest.parent, manifest.parent.parent.name))
        except (DamagedError, FileNotFoundError):
            continue
    return found


def merge(target: Path, sources: Sequence[Path]) -> tuple[int, int]:
    """Adds the kernels of other bundles to one, which is made if needed.

    Returns:
        Kernels added, kernels in the target now.

    Raises:
        CacheError: a source is no bundle or is damaged, the target cannot be written, or two kernels of the
            same digest differ.
    """
    kernels = [entry for source in sources for entry in read_bundle(source)]
    writer = Writer(target)
    added = sum(writer.add(entry) for entry in kernels)
    return added, writer.finish()


def read_bundle(folder: Path) -> list[Entry]:
    """All kernels of a bundle, verified.

    Raises:
        CacheError: not a bundle, or a kernel that the manifest lists is missing or damaged.
    """
    report = check(folder)
    if report.faults:
        raise CacheError(f"bundle {folder}: {report.faults[0]} ({len(report.faults)} faults in all)")
    return report.entries


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of a bundle found.

    Attributes:
        entries: whole kernels of the manifest.
        faults: one sentence each.
    """

    entries: list[Entry]
    faults: list[str]


def check(folder: Path) -> Checked:
    """Reads every byte of a bundle against its digests.

    Raises:
        CacheError: not a bundle.
    """
    root = Root(folder.absolute(), private=False)
    try:
        rows = read_index(folder)
    except (FileNotFoundError, ManifestError) as error:
        raise CacheError(f"{error}. Make a bundle with `mlagen build --output {folder}`") from error
    found, faults = [], []
    for row in rows:
        try:
            entry = read_entry(root.entry(row["name"], row["digest"]), row["name"])
            if row_of(entry) != row:
                raise DamagedError("the manifest says something else about it")
            found.append(entry)
        except (DamagedError, FileNotFoundError) as error:
            faults.append(f"{row['name']} {row['digest']}: {error}")
    return Checked(found, faults)


def make_wheel(folder: Path, output: Path, label: str) -> Path:
    """Packs a bundle as a wheel; once installed, its kernels are found without any setting.

    Args:
        folder: the bundle.
        output: folder for the wheel.
        label: name of this set of kernels; the package is called `mlagen-kernels-<label>`.

    Returns:
        The wheel file. The same bundle gives the same bytes.

    Raises:
        CacheError: not a bundle, damaged, or the label is not a word of letters and digits.
    """
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", label):
        raise CacheError(f"label {label!r}: lower-case letters and digits are needed, with single _ between")
    kernels = read_bundle(folder)
    stem = f"mlagen_kernels_{label}-{__version__}"
    inside = f"{INSTALLED}/{label}"
    files = {f"{inside}/{INDEX}": text_of([row_of(entry) for entry in kernels])}
    for entry in kernels:
        place = Root(Path(inside), private=False).entry(entry.name, entry.key.digest or "").as_posix()
        files |= {f"{place}/{name}": data for name, data in entry.files.items()}
        files[f"{place}/{MANIFEST}"] = entry.manifest()
    files |= _metadata(stem, label)
    record = "".join(f"{name},sha256={_urlsafe(data)},{len(data)}\n" for name, data in files.items())
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    path = output / f"{stem}-py3-none-any.whl"
    try:
        output.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                item = zipfile.ZipInfo(name)  # dated 1980: no time goes in
                item.external_attr = 0o644 << 16
                archive.writestr(item, data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise CacheError(f"wheel {path} cannot be written: {error}") from error
    return path


def _metadata(stem: str, label: str) -> dict[str, bytes]:
    texts = {
        "METADATA": "Metadata-Version: 2.1\n"
        f"Name: mlagen-kernels-{label.replace('_', '-')}\nVersion: {__version__}\n"
        f"Summary: compiled kernels for mlagen\nRequires-Dist: mlagen=={__version__}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: mlagen\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return {f"{stem}.dist-info/{name}": text.encode() for name, text in texts.items()}


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Kernels, bytes, architectures and compilers of a manifest."""
    return {
        "kernels": len(rows),
        "bytes": sum(sum(row["bytes"].values()) for row in rows),
        "arch": sorted({row["arch"] for row in rows}),
        "nvrtc": sorted({row["toolchain"]["nvrtc"] for row in rows}),
    }
