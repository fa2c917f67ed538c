"""Counting: warp-instructions by class and role, bytes moved, and which pipe of a multiprocessor limits.

Counts are dynamic and exact. Bounds are the least cycles that each pipe of one multiprocessor needs for them,
as if every pipe worked
without a gap; the largest is the lower bound of the kernel, and the ratio to the next says how far that one
is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mlagen.emu.interfaces import Instruction, Vec
from mlagen.emu.machine import Machine
from mlagen.emu.types import SIZES

_FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
_ARITHMETIC = ("add", "sub", "mul", "fma", "max", "min", "neg", "abs", "mad", "div")
_SPECIAL = ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "sin", "cos")

ISSUE_PER_CYCLE = 4.0
"""Warp-instructions that the four schedulers of a multiprocessor issue per cycle."""

THROUGHPUT = {
    "fp32": 4.0,
    "integer": 2.0,
    "special function": 0.5,
    "conversion": 0.5,
    "shared memory": 1.0,
    "warp exchange": 1.0,
}
"""Warp-instructions per cycle and multiprocessor (CUDA programming guide, arithmetic throughput of compute
capability 9.0).
"""

SHARED_BYTES_PER_CYCLE = 128.0
TENSOR_MACS_PER_CYCLE = 2048.0
"""Dense 16-bit multiply-adds per cycle and multiprocessor of compute capability 9.0."""


def classify(ins: Instruction) -> str:
    """The class that an instruction is counted under."""
    op, modifiers = ins.op, ins.modifiers
    kind = modifiers[-1] if modifiers else ""
    if op in ("wgmma", "tcgen05"):
        return f"{op}.{modifiers[0].split('::')[0]}"
    if op in ("mma", "cp", "st", "ld", "ldu") and (op not in ("st", "ld", "ldu")):
        return "tensor core" if op == "mma" else "copies (TMA, cp.async)"
    if op in ("ld", "ldu", "st"):
        spaces = [
            m.split("::")[0]
            for m in modifiers
            if m.split("::")[0] in ("shared", "global", "param", "local", "const")
        ]
        return f"{'ld' if op == 'ldu' else op}.{spaces[0] if spaces else 'generic'}"
    if op in ("ldmatrix", "stmatrix"):
        return "ld.shared" if op == "ldmatrix" else "st.shared"
    if op in ("mbarrier", "bar", "barrier", "fence", "membar"):
        return "barriers and fences"
    if op in _SPECIAL:
        return "special function"
    if op in ("shfl", "vote", "elect", "redux", "match", "activemask"):
        return "warp exchange"
    if op == "cvt":
        return "conversion" if any(m in _FLOATS or m.startswith("e") for m in modifiers) else "integer"
    if op in _ARITHMETIC and kind in _FLOATS:
        return "fp32"
    if op in ("setp", "selp") and kind in _FLOATS:
        return "fp32"
    if op == "mov":
        return "mov"
    if op in ("bra", "ret", "exit", "call", "brx"):
        return "branch"
    if op in ("atom", "red"):
        return "atomics"
    return "hints" if op in ("setmaxnreg", "griddepcontrol", "nanosleep", "prefetch") else "integer"


def bytes_of(ins: Instruction) -> tuple[str, int]:
    """(space, bytes) that one execution by a full warp moves; ("", 0) for other instructions."""
    kind = classify(ins)
    if ins.op in ("ldmatrix", "stmatrix"):
        count = next(int(m[1:]) for m in ins.modifiers if m in ("x1", "x2", "x4"))
        return "shared", 128 * count
    if ins.op in ("ld", "st"):
        space = kind.split(".")[1]
        width = SIZES.get(ins.modifiers[-1], 4)
        vector = next((int(m[1:]) for m in ins.modifiers if m in ("v2", "v4", "v8")), 1)
        return space, 32 * width * vector
    if ins.op == "tcgen05" and ins.modifiers[0] in ("ld", "st"):
        registers = max((len(o.items) for o in ins.operands if isinstance(o, Vec)), default=1)
        return "tmem", 128 * registers
    return "", 0


def tensor_work(ins: Instruction) -> tuple[int, int]:
    """(multiply-adds, bytes read from shared memory) of one warp's share of a tensor operation."""
    shape = next(
        (re.fullmatch(r"m(\d+)n(\d+)k(\d+)", m) for m in ins.modifiers if re.fullmatch(r"m\d+n\d+k\d+", m)),
        None,
    )
    if shape is None:
        return 0, 0
    m, n, k = (int(v) for v in shape.groups())
    if ins.op == "wgmma":
        rows = 0 if isinstance(ins.operands[1], Vec) else m
        return m * n * k // 4, (rows + n) * 32 // 4
    return m * n * k, 0


@dataclass(slots=True)
class Profile:
    """Counts of a launch.

    by_role: role or warp name -> class -> warp-instructions. moved: space -> bytes. macs: tensor multiply-
    adds. operand_bytes: shared-memory
    bytes that tensor operations read. ctas: of the launch.
    """

    by_role: dict[str, Counter[str]] = field(default_factory=dict)
    moved: Counter[str] = field(default_factory=Counter)
    macs: int = 0
    operand_bytes: int = 0
    copied: Counter[str] = field(default_factory=Counter)
    ctas: int = 1

    @property
    def by_class(self) -> Counter[str]:
        """All roles together."""
        return sum(self.by_role.values(), Counter())

    @property
    def instructions(self) -> int:
        """Warp-instructions."""
        return sum(self.by_class.values())

    def bounds(self) -> dict[str, float]:
        """Pipe -> least cycles of one multiprocessor that runs one CTA, largest first."""
        classes = self.by_class
        shared = self.moved["shared"] + self.operand_bytes + self.copied["shared"]
        found = {
            "tensor core": self.macs / TENSOR_MACS_PER_CYCLE,
            "shared-memory bandwidth": shared / SHARED_BYTES_PER_CYCLE,
            "issue": self.instructions / ISSUE_PER_CYCLE,
            **{name: classes[name] / rate for name, rate in THROUGHPUT.items() if classes[name]},
        }
        return dict(sorted(((k, v / self.ctas) for k, v in found.items() if v), key=lambda item: -item[1]))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "instructions": self.instructions,
            "by_role": {role: dict(counts) for role, counts in self.by_role.items()},
            "bytes": dict(self.moved),
            "copied_bytes": dict(self.copied),
            "tensor_macs": self.macs,
            "operand_bytes": self.operand_bytes,
            "bounds_cycles": {k: round(v, 1) for k, v in self.bounds().items()},
        }

    def minus(self, other: Profile) -> Profile:
        """The difference of two profiles of one kernel: what a longer launch does more."""
        result = Profile(ctas=self.ctas)
        for role, counts in self.by_role.items():
            result.by_role[role] = Counter(counts)
            result.by_role[role].subtract(other.by_role.get(role, Counter()))
        result.moved, result.copied = Counter(self.moved), Counter(self.copied)
        result.moved.subtract(other.moved)
        result.copied.subtract(other.copied)
        result.macs = self.macs - other.macs
        result.operand_bytes = self.operand_bytes - other.operand_bytes
        return result

    def text(self, blocks: int = 0) -> str:
        """Tables to read. blocks: KV blocks that each CTA processed; numbers are then per block and CTA."""
        per = blocks * self.ctas if blocks else 1
        unit = "per KV block and CTA" if blocks else "in all"
        roles = list(self.by_role)
        lines = [f"{'warp-instructions ' + unit:40}" + "".join(f"{r:>14}" for r in roles) + f"{'sum':>14}"]
        for name, total in self.by_class.most_common():
            cells = "".join(f"{self.by_role[r][name] / per:14.1f}" for r in roles)
            lines.append(f"{name:40}{cells}{total / per:14.1f}")
        moved = {**self.moved, "tensor operands": self.operand_bytes}
        moved |= {f"copied to {k}": v for k, v in self.copied.items()}
        lines += ["", f"bytes {unit}: " + ", ".join(f"{k} {v / per:.0f}" for k, v in moved.items() if v)]
        bounds = self.bounds()
        lines += ["", f"least cycles of a multiprocessor{' per KV block' if blocks else ''}:"]
        lines += [f"  {name:28}{cycles / (blocks or 1):12.1f}" for name, cycles in bounds.items()]
        if len(bounds) > 1:
            (first, a), (second, b) = list(bounds.items())[:2]
            lines.append(f"limit: {first}; the next, {second}, is at {100 * b / a:.0f} % of it")
        return "\n".join(lines)


def profile(machine: Machine) -> Profile:
    """The profile of a launch that has run."""
    program = machine.program
    result = Profile(ctas=machine.ctas_total)
    for warp in machine.warps:
        role = machine.names.role(warp.id) or f"warp {warp.id}"
        counts = result.by_role.setdefault(role, Counter())
        for pc, times in warp.block_counts.items():
            block = program.blocks[pc]
            for ins in program.instructions[pc : block.end]:
                counts[classify(ins)] += times
                space, size = bytes_of(ins)
                if size:
                    result.moved[space] += size * times
                macs, operand = tensor_work(ins)
                result.macs += macs * times
                result.operand_bytes += operand * times
    result.copied["shared"] = machine.checks.copied
    return result
