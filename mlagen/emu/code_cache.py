"""Parsed PTX and generated code on disk, in the private cache folder.

An entry is one file that holds a digest and the data. It is written under another name and renamed, so that
nobody sees half of it; whatever cannot be read counts as missing. Its name comes from the PTX, the sources of
the emulator, and the versions of Python and numpy, so that nothing is ever out of date.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mlagen.cache import private_root
from mlagen.log import logger

FOLDER = "emulator"
_DIGEST = hashlib.sha256().digest_size


@cache
def emulator_digest() -> bytes:
    """Digest of everything that decides what code is generated."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def key_of(*parts: object) -> str:
    """The name of an entry; parts need a `repr` that says all."""
    return hashlib.sha256(emulator_digest() + repr(parts).encode()).hexdigest()[:40]


def _path(key: str) -> Path | None:
    root = private_root()
    return None if root is None else root.base / FOLDER / key


def load(key: str) -> Any:
    """What was stored under a key; None if nothing is there or it is damaged."""
    path = _path(key)
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data = content[_DIGEST:]
    if hashlib.sha256(data).digest() != content[:_DIGEST]:
        logger().warning("damaged entry %s of the emulator's cache is ignored", path)
        return None
    try:
        return pickle.loads(data)
    except Exception as error:
        logger().warning("entry %s of the emulator's cache cannot be read (%s) and is ignored", path, error)
        return None


def store(key: str, value: Any) -> None:
    """Keep a value for later processes; does nothing where there is no private cache folder."""
    path = _path(key)
    if path is None:
        return
    try:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        logger().warning("generated code cannot be stored: %s", error)
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_bytes(hashlib.sha256(data).digest() + data)
        part.replace(path)
    except OSError as error:
        logger().info("the emulator's cache cannot be written: %s", error)
        part.unlink(missing_ok=True)
