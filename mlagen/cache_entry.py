"""One entry of a cache folder: its files, its manifest, and how it is read and written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from mlagen.cache_key import SCHEMA, Key, canonical, key_of_parts, sha256

MANIFEST = "kernel.json"
FILES = ("kernel.cu", "kernel.ptx", "kernel.cubin", "kernel.log")


class Entry(NamedTuple):
    """One compiled kernel in memory.

    Attributes:
        name: kernel name.
        key: what it was made from.
        files: content by file name, all of FILES.
        info: numbers for reports (registers, spills, seconds, spec); JSON values only.
    """

    name: str
    key: Key
    files: dict[str, bytes]
    info: dict[str, Any]

    def manifest(self) -> bytes:
        """The manifest as stored: key parts, digest of every file, and a digest of the manifest itself."""
        body = {
            "schema": SCHEMA,
            "name": self.name,
            "key": self.key.parts,
            "files": {name: sha256(data) for name, data in sorted(self.files.items())},
            "info": self.info,
        }
        return (json.dumps({**body, "self": sha256(canonical(body).encode())}, indent=1) + "\n").encode()


class DamagedError(Exception):
    """An entry exists but cannot be used. Never leaves this module."""


def read_entry(folder: Path, name: str) -> Entry:
    """Reads and verifies one entry.

    Raises:
        FileNotFoundError: there is no such entry.
        DamagedError: anything else that is wrong with it.
    """
    try:
        raw = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        if os.path.lexists(folder):
            raise DamagedError("the manifest is missing") from None
        raise
    except OSError as error:
        raise DamagedError(f"the manifest cannot be read: {error}") from error
    try:
        body = json.loads(raw)
        claimed = body.pop("self")
        if claimed != sha256(canonical(body).encode()):
            raise ValueError("the manifest does not match its own digest")
        if body["schema"] != SCHEMA or body["name"] != name or sorted(body["files"]) != sorted(FILES):
            raise ValueError("the manifest is of another kernel or schema")
        key = key_of_parts(body["key"])
        files = {file: (folder / file).read_bytes() for file in FILES}
        for file, data in files.items():
            if sha256(data) != body["files"][file]:
                raise ValueError(f"{file} does not match its digest")
        entry = Entry(name, key, files, body["info"])
        if entry.manifest() != raw:
            raise ValueError("the manifest is not as it was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(str(error)) from error
    return entry


class Root(NamedTuple):
    """A cache folder.

    Attributes:
        path: the folder.
        private: ours to write; a search folder is only read.
    """

    path: Path
    private: bool

    @property
    def base(self) -> Path:
        """Folder of this schema; other versions live beside it."""
        return self.path / f"v{SCHEMA}"

    def entry(self, name: str, digest: str) -> Path:
        """Folder of one entry."""
        return self.base / name / digest


def is_usable(folder: Path, entry: Entry) -> bool:
    """Whether a folder holds this entry, whole."""
    try:
        return read_entry(folder, entry.name).key.digest == entry.key.digest
    except (OSError, DamagedError):
        return False


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file that only this user can read, down to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(path: Path) -> None:
    """Makes a rename durable; file systems that cannot do it are left to themselves."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
