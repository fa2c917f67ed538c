"""The digest of compiler and headers, remembered between processes.

Reading 26 MB of headers to find a kernel would take longer than loading it. What was read once is
remembered in the private cache folder under the identity (inode, size, times) of every header that a kernel
can reach, of their folders and of the compiler, the content of our own headers, and the names of the
installation records on Python's path. That is a shortcut and decides nothing: whatever looks different is
read again, and the same content has the same digest. A file that changed within two seconds of the reading,
or in the future, is not trusted, since a later change could leave the same identity.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlagen.cache_entry import Root
from mlagen.cache_key import canonical, sha256
from mlagen.fingerprint import Fingerprint, own_digest

if TYPE_CHECKING:
    from mlagen.toolchain import Toolchain

SETTLED_NS = 2_000_000_000
# How the installation records of all packages begin that bring compiler and headers; a test compares.
RECORDS = ("nvidia_cuda_nvrtc", "nvidia_cutlass", "nvidia_cuda_runtime", "nvidia_cuda_cccl")


def fingerprint(root: Root | None) -> Fingerprint:
    """Compiler and headers as they are now.

    Args:
        root: private cache folder to remember them in; None to read everything, which a source needs that is
            not ours and may include anything.

    Raises:
        ToolchainError: something is missing or does not fit.
    """
    path = None if root is None else root.base / "tools" / f"{_place()}.json"
    own = own_digest()
    known = None if path is None else _recall(path, own)
    if known is not None:
        return known
    from mlagen import toolchain

    started = time.time_ns()
    tools = toolchain.locate()
    found = toolchain.fingerprint(tools)
    if path is not None:
        _remember(path, tools, found, started)
    return found


def _place() -> str:
    """Names this installation: what Python searches, and where mlagen and the conda environment are."""
    where = [*sys.path, os.environ.get("CONDA_PREFIX", ""), str(Path(__file__).resolve())]
    return sha256(canonical(where).encode())[:16]


def _installed() -> list[str]:
    """Installation records of the packages in question, in the order in which Python would find them."""
    found = []
    for entry in dict.fromkeys(sys.path):
        try:
            names = os.listdir(entry or ".")  # noqa: PTH208 - names are all that is needed
        except OSError:
            continue
        found += sorted(name for name in names if name.lower().replace("-", "_").startswith(RECORDS))
    return found


def _identity(paths: list[str]) -> tuple[str, int]:
    """Digest of the identities of files, and the latest time among them. A missing file is an OSError."""
    total, latest = hashlib.sha256(), 0
    for path in paths:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of 2000 files takes three times as long
        latest = max(latest, status.st_mtime_ns, status.st_ctime_ns)
        total.update(f"{status.st_ino},{status.st_size},{status.st_mtime_ns},{status.st_ctime_ns};".encode())
    return total.hexdigest(), latest


def _recall(path: Path, own: str) -> Fingerprint | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        claimed = body.pop("self")
        if claimed != sha256(canonical(body).encode()):
            return None
        if body["fingerprint"]["own"] != own or _installed() != body["installed"]:
            return None
        if _identity(body["paths"])[0] != body["identity"]:
            return None
        return Fingerprint(**body["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(path: Path, tools: Toolchain, found: Fingerprint, started: int) -> None:
    """Writes what was found, if all of it has been at rest; failing to do so is no matter."""
    from mlagen.include_closure import closure
    from mlagen.toolchain import walk

    try:
        files = [
            f"{item.folder}/{name}"
            for item in tools.headers
            for name in item.files or (str(path.relative_to(item.folder)) for path in walk(item))
        ]
        roots = [folder for _, folder in tools.includes]
        own = [path for path in roots[0].rglob("*") if path.is_file()]
        reached = closure(own, roots, files)
        folders = {file.rpartition("/")[0] for file in reached or ()} | set(map(str, roots[1:]))
        paths = [*(files if reached is None else reached), *sorted(folders), str(tools.library)]
        identity, latest = _identity(paths)
        if latest > started - SETTLED_NS:
            return
        body = {
            "installed": _installed(),
            "paths": paths,
            "identity": identity,
            "fingerprint": found._asdict(),
        }
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(8).hex()}")
        try:
            text = json.dumps({**body, "self": sha256(canonical(body).encode())})
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return
