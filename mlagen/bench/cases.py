"""Which decode steps are measured, their names, and the suites that they form.

A name is b128k4096h128 with, behind it where they are not the default: q2 (tokens a row), p16 (page size),
fp16, s4 (pieces asked for in every row) and m16 (static max_split of the kernel).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlagen.errors import InputError

_NAME = re.compile(
    r"b(?P<batch>\d+)(?:k(?P<keys>\d+)|var(?P<var>\d+)|skew)h(?P<heads>\d+)"
    r"(?:q(?P<tokens>\d+))?(?:p(?P<page>\d+))?(?P<dtype>fp16|bf16)?"
    r"(?:s(?P<splits>\d+))?(?:m(?P<most>\d+))?"
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
        splits: pieces asked for in every row; 0 for balanced pieces.
        max_split: static bound of the kernel; 0 for that of the kernel under test.
    """

    name: str
    lengths: tuple[int, ...]
    h_q: int
    s_q: int
    page_size: int
    dtype: str
    splits: int = 0
    max_split: int = 0

    @property
    def for_all(self) -> bool:
        """Whether the case means the same to every implementation; one with a fixed split is ours alone."""
        return not (self.splits or self.max_split)


def parse(name: str) -> BenchCase:
    """The case that a name stands for.

    Args:
        name: b<batch>, then k<keys> for equal rows, var<most> for uniformly random rows or skew for one long
            row among short ones, then h<heads> and optionally q<tokens>, p<page>, fp16, s<splits>,
            m<max_split>.

    Raises:
        InputError: not such a name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(
            f"--case {name!r} is not a case name. Expected "
            f"b<batch>k<keys>h<heads>[q<tokens>][p<page>][fp16][s<splits>][m<max_split>], "
            "b<batch>var<most>h<heads>... or b<batch>skewh<heads>..., for example b128k4096h128"
        )
    batch = int(match["batch"])
    if match["keys"]:
        lengths = [int(match["keys"])] * batch
    elif match["var"]:
        lengths = uniform_lengths(batch, int(match["var"]))
    else:
        lengths = [SKEW_LONG, *[SKEW_SHORT] * (batch - 1)]
    heads, tokens, page = int(match["heads"]), int(match["tokens"] or 1), int(match["page"] or 64)
    splits, most = int(match["splits"] or 0), int(match["most"] or 0)
    if not batch or not max(lengths) or not 1 <= heads <= 128 or not tokens:
        raise InputError(f"--case {name!r}: batch, keys and tokens must be at least 1, heads 1..128")
    if most and splits > most:
        raise InputError(f"--case {name!r}: {splits} pieces are {splits - most} above max_split {most}")
    dtype = match["dtype"] or "bf16"
    return BenchCase(name, tuple(lengths), heads, tokens, page, dtype, splits, most)


def uniform_lengths(batch: int, most: int) -> list[int]:
    """`batch` lengths, uniform in 1..most, always the same ones."""
    import torch

    generator = torch.Generator().manual_seed(VAR_SEED)
    return [int(value) for value in torch.randint(1, most + 1, (batch,), generator=generator)]


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
_MAIN = (
    *(f"b{batch}k{keys}h128" for batch, keys in _EQUAL_128),
    *(f"b{batch}k{keys}h{heads}" for heads in (64, 16) for batch, keys in _EQUAL_FEW),
)
_MTP = ("b64k4096h128q2", "b128k4096h128q2")
_SKEW = tuple(f"{rows}h{heads}" for rows in ("b64var8192", "b32skew") for heads in (128, 16))

# Suite -> what it shows, and its cases.
SUITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "short": ("a first look", ("b128k4096h128", "b128k4096h16")),
    "quick": (
        "in two minutes",
        ("b128k4096h128", "b128k4096h16", "b64k2048h128", "b1k8192h128", "b1k8192h16", "b32skewh128"),
    ),
    "hopper28": ("the 28 rows with pages of 64", (*_MAIN, *_MTP, *_SKEW)),
    "main": ("equal rows", _MAIN),
    "mtp": ("two tokens a row", _MTP),
    "skew": ("ragged rows", _SKEW),
    "pages": (
        "page sizes",
        tuple(f"b32k16384h{heads}p{page}" for heads in (128, 16) for page in (64, 1, 16, 32)),
    ),
    "splits": (
        "every row cut by 4 and 16, and a split whose pieces cannot join",
        (*(f"b64k2048h128{cut}" for cut in ("", "s1", "s4", "s16")), "b8k16384h128", "b8k16384h128s8"),
    ),
    "maxsplit": (
        "the cost of a larger static max_split when every row asks for one piece",
        tuple(f"b64k2048h128s1m{most}" for most in (1, 16, 64, 128)),
    ),
    "invariant": (
        "rows that are not cut, as in batch-invariant mode, beside balanced ones",
        tuple(
            f"{rows}h128{cut}"
            for rows in ("b128k4096", "b32k16384", "b64var8192", "b1k8192")
            for cut in ("", "s1")
        ),
    ),
    "batch1": (
        "one row",
        (*(f"b1k{keys}h128" for keys in (1024, 8192, 32768, 131072)), "b1k8192h64", "b1k8192h16"),
    ),
    "batch": (
        "time against batch",
        tuple(f"b{batch}k4096h{heads}" for heads in (128, 16) for batch in (1, 4, 16, 32, 64, 128, 256)),
    ),
    "length": (
        "time against length",
        tuple(
            f"b32k{keys}h{heads}"
            for heads in (128, 16)
            for keys in (512, 1024, 2048, 4096, 8192, 16384, 32768)
        ),
    ),
    "fp16": ("half precision", ("b128k4096h128fp16",)),
    "sustained": ("2.5 s without a pause", ("b128k4096h128", "b128k4096h64", "b128k4096h16")),
    "host": ("host time of an eager call", ("b1k64h16", "b64k128h128")),
}
SUSTAIN_SECONDS = {"sustained": 2.5}
HOST_SUITES = ("host",)


def suite_cases(suite: str) -> tuple[str, ...]:
    """Names of the cases of a suite, in its order."""
    return SUITES[suite][1]
