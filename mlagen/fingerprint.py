"""Names for the content of compiler and headers. Kept small: every process that finds a kernel needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mlagen.errors import ToolchainError
from mlagen.paths import include_root

INSTALL_LINE = "pip install 'mlagen[compile]'"


class Fingerprint(NamedTuple):
    """Content of everything outside the source text that decides what the compiler puts out.

    Attributes:
        nvrtc: version of the compiler library, or the digest of its file where there is no version.
        toolkit: digest of all header packages.
        own: digest of mlagen's headers.
    """

    nvrtc: str
    toolkit: str
    own: str


def own_digest() -> str:
    """Digest of mlagen's own headers, read anew at every call."""
    root = include_root()
    return digest_of_files("mlagen", root, [path for path in root.rglob("*") if path.is_file()])


# Digest of the last set seen, under the identity (inode, size, times) of every file in it. Only a shortcut: a
# touched file is read again and has the same digest if its content is the same.
_KNOWN: dict[str, tuple[tuple[tuple[int, ...], ...], str]] = {}


def digest_of_files(key: str, root: Path, paths: Iterable[Path]) -> str:
    """Digest of files by relative name and content.

    Args:
        key: what they are, for messages.
        root: folder that names are relative to.
        paths: the files.

    Raises:
        ToolchainError: one of them cannot be read.
    """
    ordered = sorted(paths)
    try:
        stats = [path.stat() for path in ordered]
    except OSError as error:
        raise ToolchainError(
            f"a file of {key} cannot be read: {error}. The installation is incomplete: {INSTALL_LINE}"
        ) from error
    identity = tuple((s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats)
    memo = f"{key}:{root}"
    known = _KNOWN.get(memo)
    if known is not None and known[0] == identity:
        return known[1]
    total = hashlib.sha256()
    for path in ordered:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
    _KNOWN[memo] = (identity, total.hexdigest())
    return total.hexdigest()
