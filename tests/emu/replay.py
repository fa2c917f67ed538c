"""Recorded launches on the emulator."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from mlagen.emu.emulator import Emulator
from mlagen.emu.tensormap import encode_tiled
from tests.emu.gpu_case import Case, fill


def emulate(case: Case) -> np.ndarray:
    """The output of a case; the sanitizers must be silent."""
    emulator, out = Emulator(case.ptx), np.zeros(*case.output)
    places = {f"in{i}": emulator.array(np.array(x, order="C")) for i, x in enumerate(case.inputs)}
    places["out"] = emulator.array(out)
    args: list[Any] = []
    for arg in case.args:
        if arg == "map":
            args.append(encode_tiled(address=places["in0"].address, **case.map))
        else:
            args.append(places[arg] if isinstance(arg, str) else arg)
    emulator.launch(
        "k",
        grid=case.grid,
        block=case.block,
        cluster=case.cluster,
        dynamic_shared=case.dynamic_shared,
        args=args,
    )
    return out


def emulate_kernel(folder: Path, name: str, schedule: str = "eager") -> dict[str, np.ndarray]:
    """Outputs (uint8) by name of a whole kernel that `gpu_kernels` prepared."""
    given = json.loads((folder / f"{name}.json").read_text())
    emulator = Emulator(lzma.decompress((folder / f"{name}.ptx.xz").read_bytes()).decode())
    memory = np.zeros(given["bytes"], np.uint8)
    fill(memory, given["recipe"])
    base = emulator.array(memory, "memory").address
    args: list[Any] = []
    for arg in given["args"]:
        if "map" in arg:
            numbers = {**arg["map"], "address": base + arg["map"]["address"]}
            args.append(encode_tiled(**numbers))
            continue
        data = bytearray.fromhex(arg["hex"])
        for at in arg["pointers"]:
            data[at : at + 8] = (int.from_bytes(data[at : at + 8], "little") + base).to_bytes(8, "little")
        args.append(bytes(data))
    shape = {key: given[key] for key in ("grid", "block", "cluster", "dynamic_shared")}
    emulator.launch(given["entry"], args=args, schedule=schedule, **shape)
    return {n: memory[at : at + size].copy() for n, at, size in given["outputs"]}
