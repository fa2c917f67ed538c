"""Whole kernels of mlagen as recorded launches: `python -m tests.emu.gpu_kernels FOLDER [NAME ...]`.

Writes, for each kernel of LIST, what a launch needs: `NAME.json` (parameters, tensor maps, what fills global
memory), `NAME.ptx.xz`, and `NAME.cubin` for the GPU that records the results. A recording holds the PTX that
it was made of, so the emulator can be compared with it for ever; whether that PTX is the one that the
templates give today is another question (`test_recorded.py` says how it is asked).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mlagen.build import load_artifact
from mlagen.emu.interfaces import GLOBAL_BASE
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.emu.tensormap import decode
from mlagen.problem import Problem
from mlagen.runtime import Outputs
from mlagen.spec import KernelSpec

LIST: dict[str, dict[str, Any]] = {
    "mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_1sm": {"lengths": (130, 5)},
    "mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2sm": {"lengths": (200, 65)},
    "mla_decode_sm90_wgmma_bf16_bf16_h64_p64_s16_2sm": {"lengths": (129,), "s_q": 2},
    "mla_decode_sm90_wgmma_bf16_bf16_h16_p64_s16_1sm": {"lengths": (300, 70, 0), "splits": 4},
    "mla_decode_sm90_wgmma_bf16_bf16_h8_p64_s16_2sm": {"lengths": (70, 1), "s_q": 4},
    "mla_decode_sm90_wgmma_bf16_bf16_h1_p1_s256_1sm": {"lengths": (67, 30), "splits": 3},
    "mla_decode_sm90_wgmma_bf16_bf16_h5_p2_s64_2sm": {"lengths": (67, 131)},
    "mla_decode_sm90_wgmma_fp16_fp16_h20_p4_s1_1sm": {"lengths": (67, 131)},
    "mla_decode_sm90_wgmma_bf16_bf16_h40_p8_s4_2sm": {"lengths": (67, 131), "s_q": 2},
    "mla_decode_sm90_wgmma_fp16_fp16_h80_p16_s1_2sm": {"lengths": (67, 131)},
    "mla_decode_sm90_wgmma_bf16_bf16_h96_p32_s1_1sm": {"lengths": (67, 131)},
    "mla_decode_sm90_wgmma_bf16_bf16_h128_p128_s64_1sm": {"lengths": (250,), "splits": 2},
    "mla_decode_sm90_wgmma_fp16_fp16_h128_p64_s16_2sm": {"lengths": (250, 64), "scale": 8.0},
}
"""Both CTA groups and types, pages below 8, 8 to 32 and from 64, merged and direct; splits None: balanced."""

SMS = 4


class _Recorder(EmulatorLauncher):
    """Keeps the launch in place of running it."""

    def _launch(self, space: Any, plan: Any, entry: Any, ctas: int, args: Sequence[Any]) -> None:
        self.space = space
        self.launch = {
            "entry": plan.name + entry.suffix,
            "grid": ctas,
            "block": entry.threads,
            "cluster": entry.cluster,
            "dynamic_shared": plan.launch.smem_bytes,
        }
        self.args = args


def _arrays(
    spec: KernelSpec, lengths: Sequence[int], s_q: int, scale: float
) -> tuple[dict[str, Any], list[Any]]:
    """Arrays of the call by name, and what fills them: (name, offset in it, step)."""
    page, dtype = spec.page_size, spec.q_dtype.value
    needs = [-(-length // page) for length in lengths]
    pages, rows = sum(needs) + 2, len(lengths)
    order = np.random.Generator(np.random.PCG64(1)).permutation(pages)
    table = np.full((rows, max(needs) + 1), 2147480000, np.int32)
    q = np.zeros((rows, s_q, spec.h_q, 576), np.uint16)
    kv = np.zeros((pages, page, 576), np.uint16)
    steps: list[Any] = [("q", 0, {"seed": 7, "count": q.size, "scale": 0.6 * scale, "dtype": dtype})]
    steps.append(("kv_cache", 0, {"byte": 0xFF, "count": kv.nbytes}))
    used = 0
    for row, (length, need) in enumerate(zip(lengths, needs, strict=True)):
        table[row, :need] = order[used : used + need]
        for i in range(need):
            count = min(page, length - i * page) * 576
            step = {"seed": 100 * row + i + 8, "count": count, "scale": 1.0, "dtype": dtype}
            steps.append(("kv_cache", int(order[used + i]) * page * 1152, step))
        used += need
    arrays = {"q": q, "kv_cache": kv, "block_table": table, "cache_seqlens": np.array(lengths, np.int32)}
    return arrays, steps


def prepare(
    name: str, lengths: Sequence[int], s_q: int = 1, splits: int | None = None, scale: float = 1.0
) -> Any:
    """The launch of a call as plain values, the artifact of the kernel."""
    import torch

    spec = KernelSpec.from_name(name)
    artifact = load_artifact(spec)
    arrays, steps = _arrays(spec, lengths, s_q, scale)
    kind = torch.bfloat16 if spec.q_dtype.value == "bf16" else torch.float16
    tensors = {
        n: torch.from_numpy(a.view(np.int16)).view(kind) if a.dtype == np.uint16 else torch.from_numpy(a)
        for n, a in arrays.items()
    }
    launcher = _Recorder(EmulatorOptions(sms=SMS), ptx=lambda _: artifact.ptx.decode())
    out = torch.zeros((len(lengths), s_q, spec.h_q, 512), dtype=kind)
    lse = torch.zeros(out.shape[:3], dtype=torch.float32)
    workspace = torch.zeros((launcher.workspace_bytes(spec, len(lengths), s_q),), dtype=torch.uint8)
    problem = Problem.from_tensors(
        *tensors.values(), softmax_scale=192**-0.5, num_splits=splits, out=out, lse=lse, workspace=workspace,
        device_type="cpu",
    )  # fmt: skip
    pointers = problem.pointers
    launcher.decode(spec, problem, Outputs(pointers["out"], pointers["lse"], pointers.get("workspace", 0)))
    memory = launcher.space.emulator.memory
    at = {n: launcher.space.translate(p) - GLOBAL_BASE for n, p in pointers.items() if p}
    recipe = [{**step, "at": at[n] + offset} for n, offset, step in steps]
    for n in ("block_table", "cache_seqlens"):
        recipe.append({"at": at[n], "hex": arrays[n].tobytes().hex()})
    for n, tensor in (("out", out), ("lse", lse), ("workspace", workspace)):
        if tensor.numel():
            recipe.append({"at": at[n], "byte": 0xFF, "count": tensor.numel() * tensor.element_size()})
    outputs = [[n, at[n], t.numel() * t.element_size()] for n, t in (("out", out), ("lse", lse))]
    size = max(max(at.values()), *(a + s for _, a, s in outputs)) + workspace.numel() + kv_room(arrays)
    call = {"lengths": list(lengths), "s_q": s_q, "splits": splits, "scale": scale}
    return artifact, {
        **launcher.launch,
        "call": call,
        "bytes": -(-size // 4096) * 4096,
        "recipe": recipe,
        "args": [_argument(arg, memory.base, size) for arg in launcher.args],
        "outputs": outputs,
        "ptx_sha256": hashlib.sha256(artifact.ptx).hexdigest(),
    }


def kv_room(arrays: dict[str, Any]) -> int:
    """Bytes that are enough behind the last address, whichever array that is."""
    return int(sum(a.nbytes for a in arrays.values()))


def _argument(arg: Any, base: int, size: int) -> dict[str, Any]:
    """An argument without absolute addresses: a tensor map's numbers, or bytes and where pointers are."""
    data = bytearray(arg)
    if len(data) == 128 and (found := decode(bytes(data))).extents:
        return {"map": {k: v for k, v in asdict(found).items()} | {"address": found.address - base}}
    pointers = []
    for offset in range(0, len(data) - 7, 8):
        value = int.from_bytes(data[offset : offset + 8], "little")
        if base <= value < base + size:
            data[offset : offset + 8] = (value - base).to_bytes(8, "little")
            pointers.append(offset)
    return {"hex": data.hex(), "pointers": pointers}


def changed(folder: Path) -> int:
    """Print the kernels in a folder whose PTX is not the one that the templates give today; 1 if any."""
    stale = 0
    for path in sorted(folder.glob("mla_*.json")):
        today = hashlib.sha256(load_artifact(KernelSpec.from_name(path.stem)).ptx).hexdigest()
        same = today == json.loads(path.read_text())["ptx_sha256"]
        stale += not same
        print(path.stem, "as recorded" if same else "CHANGED: record it anew")
    return int(stale > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(LIST))
    parser.add_argument("--changed", action="store_true", help="say which recorded kernels changed since")
    options = parser.parse_args()
    if options.changed:
        sys.exit(changed(options.folder))
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        artifact, launch = prepare(name, **LIST[name])
        (options.folder / f"{name}.json").write_text(json.dumps(launch, indent=1) + "\n")
        (options.folder / f"{name}.ptx.xz").write_bytes(lzma.compress(artifact.ptx, preset=9))
        (options.folder / f"{name}.cubin").write_bytes(artifact.cubin)
        print(name, launch["grid"], launch["bytes"], len(artifact.cubin))


if __name__ == "__main__":
    main()
