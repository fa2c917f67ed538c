"""The manifest of a bundle, `bundle.json`: which kernels it holds, and under which digests they are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlagen.cache_entry import Entry
from mlagen.cache_key import SCHEMA, canonical, sha256

INDEX = "bundle.json"
FORMAT = 1


class ManifestError(ValueError):
    """A manifest exists but cannot be used."""


def row_of(entry: Entry) -> dict[str, Any]:
    """What the manifest says about one kernel. JSON values; nothing of host, path or time."""
    info = entry.info
    return {
        "name": entry.name,
        "digest": entry.key.digest,
        "portable": entry.key.portable,
        "arch": entry.key.arch,
        "spec": info["spec"],
        "registers": info["registers"],
        "spill_stores": info["spill_stores"],
        "spill_loads": info["spill_loads"],
        "stack": info["stack"],
        "smem_bytes": info["smem_bytes"],
        "bytes": {file: len(data) for file, data in sorted(entry.files.items())},
        "toolchain": {"nvrtc": entry.key.nvrtc, "headers": entry.key.toolkit},
    }


def text_of(rows: list[dict[str, Any]]) -> bytes:
    """The manifest of these kernels, sorted, with its own digest."""
    ordered = sorted(rows, key=lambda row: (row["name"], row["digest"]))
    body = {"format": FORMAT, "schema": SCHEMA, "kernels": ordered}
    return (json.dumps({**body, "self": sha256(canonical(body).encode())}, indent=1) + "\n").encode()


def read_index(folder: Path) -> list[dict[str, Any]]:
    """The rows of a bundle.

    Raises:
        FileNotFoundError: there is no manifest: not a bundle.
        ManifestError: it cannot be read, is damaged, or is of another format.
    """
    path = folder / INDEX
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} does not exist: {folder} is not a bundle") from None
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error
    try:
        body = json.loads(raw)
        claimed = body.pop("self")
        if claimed != sha256(canonical(body).encode()):
            raise ValueError("it does not match its own digest")
        if (body["format"], body["schema"]) != (FORMAT, SCHEMA):
            raise ValueError(
                f"format {body['format']}.{body['schema']}; this version reads {FORMAT}.{SCHEMA}"
            )
        rows: list[dict[str, Any]] = body["kernels"]
        for row in rows:
            for part in ("name", "digest", "portable"):
                if not isinstance(row[part], str) or "/" in row[part]:
                    raise ValueError(f"a row has no valid {part}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path} cannot be used: {error}") from error
    return rows
