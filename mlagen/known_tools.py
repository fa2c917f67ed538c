"""The digest of compiler and headers, remembered between processes.

Reading 26 MB of headers to find a kernel would take longer than loading it. What was read once is remembered
in the private cache folder under the identity (inode, size, times) of every file, and of every folder in
which a package could appear or vanish. That is a shortcut and decides nothing: whatever looks different is
read again, and the same content has the same digest. A file that changed within two seconds of the reading,
or in the future, is not trusted, since a later change could leave the same identity.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
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
# How the installation records of all packages begin that compiler and headers come from; a test compares
# them.
RECORDS = ("nvidia_cuda_nvrtc", "nvidia_cutlass", "nvidia_cuda_runtime", "nvidia_cuda_cccl")


def fingerprint(root: Root | None) -> Fingerprint:
    """Compiler and headers as they are now.

    Args:
        root: private cache folder to remember them in; None to read everything.

    Raises:
        ToolchainError: something is missing or does not fit.
    """
    path = None if root is None else root.base / "tools" / f"{_place()}.json"
    known = None if path is None else _recall(path)
    if known is not None:
        return known._replace(own=own_digest())
    from mlagen import toolchain

    tools = toolchain.locate()
    found = toolchain.fingerprint(tools)
    if path is not None:
        _remember(path, tools, found)
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


def _recall(path: Path) -> Fingerprint | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        claimed = body.pop("self")
        if claimed != sha256(canonical(body).encode()):
            return None
        files = [f"{folder}/{name}" for folder, names in body["files"].items() for name in names]
        if _installed() != body["installed"] or _identity(files)[0] != body["identity"]:
            return None
        return Fingerprint(**body["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _remember(path: Path, tools: Toolchain, found: Fingerprint) -> None:
    """Writes what was found, if all of it has been at rest; failing to do so is no matter."""
    from mlagen.toolchain import walk

    files = {
        str(item.folder): sorted(item.files or (str(p.relative_to(item.folder)) for p in walk(item)))
        for item in tools.headers
    }
    files[str(tools.nvrtc.folder)] = [tools.nvrtc.component.marker]
    try:
        paths = [f"{folder}/{name}" for folder, names in files.items() for name in names]
        identity, latest = _identity(paths)
        if latest > time.time_ns() - SETTLED_NS:
            return
        body = {
            "installed": _installed(),
            "files": files,
            "identity": identity,
            "fingerprint": found._asdict(),
        }
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(8)}")
        try:
            text = json.dumps({**body, "self": sha256(canonical(body).encode())})
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError:
        return
