"""KernelSpec: every choice that makes one kernel, and its one name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import TypeVar

from mlagen.errors import SpecError

_E = TypeVar("_E", bound=Enum)


class Arch(str, Enum):
    """GPU architectures, with the suffix that unlocks their own instructions."""

    SM_90A = "sm_90a"
    SM_100A = "sm_100a"
    SM_103A = "sm_103a"

    def __str__(self) -> str:
        return self.value


class DType(str, Enum):
    """Element types of queries and of the latent cache."""

    BF16 = "bf16"
    FP16 = "fp16"

    def __str__(self) -> str:
        return self.value


FAMILY_OF_ARCH = {
    Arch.SM_90A: "sm90_wgmma",
    Arch.SM_100A: "sm100_tcgen05",
    Arch.SM_103A: "sm103_tcgen05",
}
ARCH_OF_FAMILY = {family: arch for arch, family in FAMILY_OF_ARCH.items()}

_NAME = re.compile(
    r"mla_decode_(?P<family>[a-z0-9]+_[a-z0-9]+)_(?P<q>[a-z0-9]+)_(?P<kv>[a-z0-9]+)"
    r"_h(?P<h>0|[1-9][0-9]*)_p(?P<page>0|[1-9][0-9]*)_s(?P<split>0|[1-9][0-9]*)_(?P<group>[1-9][0-9]*)sm"
    r"(?:_t(?P<tuning>[0-9a-f]{8}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tunable choices that change speed, never results beyond rounding.

    Attributes:
        piece_cost: cost of starting one piece of work, in blocks of 64 keys, as the schedule counts it.
    """

    piece_cost: int = 2

    @classmethod
    def default(cls, family: str) -> Tuning:
        """The tuning that a family uses when none is given; every family starts from the same one."""
        return cls()

    @property
    def text(self) -> str:
        """All fields as `name=value`, in their declared order; this text is what the hash covers."""
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that name this tuning inside a kernel name."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel: all static choices. Hashable; `name` and the spec are a bijection.

    Ranges are a matter of the family and are checked by `make_plan`, types are checked here.

    Attributes:
        arch: GPU architecture; strings such as "sm_90a" are accepted.
        q_dtype: element type of queries and output; strings are accepted.
        kv_dtype: element type of the latent cache; strings are accepted.
        h_q: query heads on this GPU.
        page_size: tokens in one page of the cache.
        max_split: static upper bound of the number of pieces that one row is cut into.
        cta_group: CTAs that share one KV tile, 1 or 2 (1SM, 2SM).
        tuning: see Tuning.

    Raises:
        SpecError: an unknown architecture or dtype, or a number that is not an int.
    """

    arch: Arch
    q_dtype: DType
    kv_dtype: DType
    h_q: int
    page_size: int
    max_split: int
    cta_group: int
    tuning: Tuning = Tuning()

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", _member(Arch, "arch", self.arch))
        object.__setattr__(self, "q_dtype", _member(DType, "q_dtype", self.q_dtype))
        object.__setattr__(self, "kv_dtype", _member(DType, "kv_dtype", self.kv_dtype))
        for name in ("h_q", "page_size", "max_split", "cta_group"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise SpecError(f"{name}={value!r} is a {type(value).__name__}; an int is needed")
        if not isinstance(self.tuning, Tuning):
            raise SpecError(f"tuning={self.tuning!r} is a {type(self.tuning).__name__}; a Tuning is needed")
        for field in fields(self.tuning):
            value = getattr(self.tuning, field.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise SpecError(
                    f"tuning.{field.name}={value!r} is a {type(value).__name__}; an int is needed"
                )

    @property
    def family(self) -> str:
        """The kernel family that serves the architecture."""
        return FAMILY_OF_ARCH[self.arch]

    @property
    def name(self) -> str:
        """The kernel's name: symbol, file, cache folder, log line and benchmark row."""
        base = (
            f"mla_decode_{self.family}_{self.q_dtype}_{self.kv_dtype}"
            f"_h{self.h_q}_p{self.page_size}_s{self.max_split}_{self.cta_group}sm"
        )
        return base if self.tuning == Tuning.default(self.family) else f"{base}_t{self.tuning.digest}"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_name(cls, name: str, *, tunings: Iterable[Tuning] = ()) -> KernelSpec:
        """The spec that a name stands for: the inverse of `name`.

        Args:
            name: a kernel name.
            tunings: candidates for a `_t<hash>` suffix; without them a hash cannot be resolved.

        Raises:
            SpecError: not a kernel name, or a tuning hash that no candidate has.
        """
        match = _NAME.fullmatch(name)
        if match is None:
            raise SpecError(
                f"{name!r} is not a kernel name. Expected "
                "mla_decode_<family>_<q>_<kv>_h<heads>_p<page>_s<max_split>_<1sm|2sm>[_t<hash>], "
                "for example mla_decode_sm90_wgmma_bf16_bf16_h128_p64_s16_2sm"
            )
        family = match["family"]
        if family not in ARCH_OF_FAMILY:
            raise SpecError(f"{name!r}: no family {family!r}. Families: {', '.join(ARCH_OF_FAMILY)}")
        tuning = Tuning.default(family)
        if match["tuning"] is not None:
            known = {candidate.digest: candidate for candidate in tunings if candidate != tuning}
            if match["tuning"] not in known:
                raise SpecError(
                    f"{name!r}: tuning {match['tuning']} is not in the shipped tables, the cache or a search "
                    "folder. A hash does not hold the choices themselves: build the spec once on this "
                    "machine, add its folder to MLAGEN_CACHE_PATH, or leave the _t part out"
                )
            tuning = known[match["tuning"]]
        return cls(
            arch=ARCH_OF_FAMILY[family],
            q_dtype=_member(DType, f"{name!r}: q_dtype", match["q"]),
            kv_dtype=_member(DType, f"{name!r}: kv_dtype", match["kv"]),
            h_q=int(match["h"]),
            page_size=int(match["page"]),
            max_split=int(match["split"]),
            cta_group=int(match["group"]),
            tuning=tuning,
        )


def _member(kind: type[_E], field: str, value: object) -> _E:
    """The enum member with this value, or SpecError naming the choices."""
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        raise SpecError(f"{field}={value!r} is not known. Choices: {choices}") from None
