"""The cache key: a digest of everything that decides what the compiler puts out, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from mlagen.fingerprint import Fingerprint
from mlagen.spec import Arch

# Raised when the format of an entry or the meaning of a key part changes.
SCHEMA = 2
OUTPUTS = ("ptx", "cubin", "log")


def canonical(value: object) -> str:
    """JSON with one spelling: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def sha256(data: bytes) -> str:
    """Hexadecimal digest."""
    return hashlib.sha256(data).hexdigest()


class Key(NamedTuple):
    """All parts of a cache key. No path, time, host or user goes in.

    Attributes:
        schema: format of the entry.
        recipe: digest of everything that decides the source text: plan, templates, printing code.
        own: digest of mlagen's headers.
        options: ordered compiler options with symbolic include folders.
        arch: exact architecture, with suffix.
        outputs: what the entry holds.
        nvrtc: version of the compiler; None where there is no toolchain.
        toolkit: digest of the header packages; None where there is no toolchain.
    """

    schema: int
    recipe: str
    own: str
    options: tuple[str, ...]
    arch: str
    outputs: tuple[str, ...]
    nvrtc: str | None
    toolkit: str | None

    def _parts(self) -> dict[str, object]:
        return {
            "schema": self.schema,
            "recipe": self.recipe,
            "own": self.own,
            "options": list(self.options),
            "arch": self.arch,
            "outputs": list(self.outputs),
        }

    @property
    def portable(self) -> str:
        """Digest of what mlagen alone decides, whichever compiler is used: how a machine without compiler and
        headers finds a kernel in a bundle.
        """
        return sha256(canonical(self._parts()).encode())

    @property
    def digest(self) -> str | None:
        """Digest of all parts: the folder name of an entry; None if it cannot be computed."""
        if self.nvrtc is None or self.toolkit is None:
            return None
        return sha256(canonical(self.parts).encode())

    @property
    def parts(self) -> dict[str, object]:
        """All parts, as the manifest of an entry records them."""
        return {**self._parts(), "nvrtc": self.nvrtc, "toolkit": self.toolkit}


def make_key(recipe: str, options: Sequence[str], arch: Arch, own: str, tools: Fingerprint | None) -> Key:
    """The key of one compilation.

    Args:
        recipe: see `mlagen.recipe`.
        options: ordered symbolic options.
        arch: architecture of the spec.
        own: digest of mlagen's headers, used where there is no toolchain.
        tools: compiler and headers, or None where they are not installed.
    """
    return Key(
        schema=SCHEMA,
        recipe=recipe,
        own=own if tools is None else tools.own,
        options=tuple(options),
        arch=str(arch),
        outputs=OUTPUTS,
        nvrtc=None if tools is None else tools.nvrtc,
        toolkit=None if tools is None else tools.toolkit,
    )


def key_of_parts(parts: dict[str, object]) -> Key:
    """The key that a manifest records.

    Raises:
        ValueError: a part is missing, unknown or of another type.
    """
    try:
        options, outputs = parts["options"], parts["outputs"]
        if not isinstance(options, list) or not isinstance(outputs, list):
            raise ValueError("options and outputs must be lists")
        texts = {name: parts[name] for name in ("recipe", "own", "arch", "nvrtc", "toolkit")}
        if not isinstance(parts["schema"], int) or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("a part has the wrong type")
        key = Key(
            schema=parts["schema"],
            recipe=str(texts["recipe"]),
            own=str(texts["own"]),
            options=tuple(map(str, options)),
            arch=str(texts["arch"]),
            outputs=tuple(map(str, outputs)),
            nvrtc=str(texts["nvrtc"]),
            toolkit=str(texts["toolkit"]),
        )
    except KeyError as error:
        raise ValueError(f"key part {error} is missing") from None
    if key.parts.keys() != parts.keys():
        raise ValueError("the key has unknown parts")
    return key
