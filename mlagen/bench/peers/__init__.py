"""Adapters of other implementations. Each is one file; what is not installed is left out with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from mlagen.bench.subjects import Subject

# Name on the command line -> module of this package that has `make(name)`, which raises ImportError when the
# implementation is not installed.
PEERS = {
    "flashinfer-fa3": "flashinfer",
    "flashinfer-fa2": "flashinfer",
    "flashmla": "flash_mla",
    "fa3": "flash_attention",
    "triton": "triton_vllm",
}


def peers(wanted: Sequence[str]) -> tuple[list[Subject], list[str]]:
    """The peers that are installed, and why the others are not there.

    Args:
        wanted: names from PEERS.
    """
    found: list[Subject] = []
    missing = []
    for name in wanted:
        try:
            found.append(import_module(f"mlagen.bench.peers.{PEERS[name]}").make(name))
        except Exception as error:  # whatever a half-installed package does, the others are measured
            missing.append(f"{name}: not installed ({type(error).__name__}: {error})")
    return found, missing
