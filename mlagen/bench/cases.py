"""Which decode steps are measured, and their names: b128k4096h128, with q2, p16 or fp16 behind it."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from mlagen.errors import InputError

_NAME = re.compile(
    r"b(?P<batch>\d+)(?:k(?P<keys>\d+)|var(?P<var>\d+)|skew)h(?P<heads>\d+)"
    r"(?:q(?P<tokens>\d+))?(?:p(?P<page>\d+))?(?P<dtype>fp16|bf16)?"
)
SKEW_LONG, SKEW_SHORT = 131072, 1024
VAR_SEED = 1234


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One decode step.

    Attributes:
        name: see above.
        lengths: keys of each row.
        h_q, s_q, page_size, dtype: shape.
    """

    name: str
    lengths: tuple[int, ...]
    h_q: int
    s_q: int
    page_size: int
    dtype: str


def parse(name: str) -> BenchCase:
    """The case that a name stands for.

    Args:
        name: b<batch>, then k<keys> for equal rows, var<most> for uniformly random rows or skew for one long
            row among short ones, then h<heads> and optionally q<tokens>, p<page>, fp16.

    Raises:
        InputError: not such a name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"--case {name!r} is not a case name. Expected "
            f"b<batch>k<keys>h<heads>[q<tokens>][p<page>][fp16], "
            "b<batch>var<most>h<heads>... or b<batch>skewh<heads>..., for example b128k4096h128"
        )
    batch = int(match["batch"])
    if match["keys"]:
        lengths = [int(match["keys"])] * batch
    elif match["var"]:
        draw = random.Random(VAR_SEED)
        lengths = [draw.randint(1, int(match["var"])) for _ in range(batch)]
    else:
        lengths = [SKEW_LONG, *[SKEW_SHORT] * (batch - 1)]
    heads, tokens, page = int(match["heads"]), int(match["tokens"] or 1), int(match["page"] or 64)
    if not batch or not max(lengths) or not 1 <= heads <= 128 or not tokens:
        raise InputError(f"--case {name!r}: batch, keys and tokens must be at least 1, heads 1..128")
    return BenchCase(name, tuple(lengths), heads, tokens, page, match["dtype"] or "bf16")


_EQUAL_128 = (
    (1, 1024),
    (1, 8192),
    (1, 32768),
    (1, 131072),
    (16, 4096),
    (32, 16384),
    (64, 2048),
    (64, 4096),
    (128, 1024),
    (128, 4096),
    (128, 8192),
    (512, 2048),
)
_EQUAL_FEW = ((1, 8192), (32, 16384), (64, 2048), (128, 4096), (128, 8192))

GROUPS = {
    "short": ("b128k4096h128", "b128k4096h16"),
    "main": (
        *(f"b{batch}k{keys}h128" for batch, keys in _EQUAL_128),
        *(f"b{batch}k{keys}h{heads}" for heads in (64, 16) for batch, keys in _EQUAL_FEW),
    ),
    "mtp": ("b64k4096h128q2", "b128k4096h128q2"),
    "ragged": tuple(f"{rows}h{heads}" for rows in ("b64var8192", "b32skew") for heads in (128, 16)),
    "page": tuple(f"b32k16384h{heads}p{page}" for heads in (128, 16) for page in (1, 16, 32)),
    "fp16": ("b128k4096h128fp16",),
}
