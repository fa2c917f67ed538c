"""When an answer counts as right. The only home of tolerances.

Output: for every token and head, each of the 512 elements may differ from the fp64 reference by
`ERROR_FACTOR` x the largest error that the same-precision computation makes in that token and head, plus
`ULPS` units in the last place of the element. Cosine similarity of every token and head must be above a
bound, and infinities and NaNs must be where the reference has them (it has none in `out`).

LSE: `ERROR_FACTOR` x the same-precision error of that element, plus 2^-18 of the largest magnitude that the
sum of one of its logits has on its way (`Result.top`), plus 2^-16. Tensor cores of an H200 add 16 products
at a time, aligned to the largest addend with 25 fractional bits kept, and truncate; this model, which is
bit-exact (`mlagen.emu.mma_numerics`), is off by at most 0.44 of the 2^-18 part in 24,576 random logits of
576 products. A logit may cancel down to nothing, so its own size is no measure of that error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlagen.reference import Result

ERROR_FACTOR = 3.0
ULPS = 2.0
LSE_LOGIT_PART = 2.0**-18
LSE_FLOOR = 2.0**-16
# dtype name -> (unit in the last place relative to the power of two below, least cosine distance allowed)
_DTYPES = {"bfloat16": (2.0**-7, 2.0**-13), "float16": (2.0**-10, 2.0**-17)}
_SMALLEST = {"bfloat16": 2.0**-126, "float16": 2.0**-14}


@dataclass(frozen=True, slots=True)
class Margin:
    """How close an answer came to its bounds; 1 is the bound.

    Attributes:
        out: worst element of the output, error / bound.
        lse: worst element of the LSE, error / bound.
        cosine: worst token and head, (1 - cosine) / bound.
        max_error: largest absolute error of the output.
        problem: what is wrong, empty if nothing is.
    """

    out: float
    lse: float
    cosine: float
    max_error: float
    problem: str

    @property
    def ok(self) -> bool:
        """Whether the answer is right."""
        return not self.problem

    def __str__(self) -> str:
        verdict = "ok" if self.ok else self.problem
        return (
            f"{verdict} (of the bounds: out {self.out:.2f}, lse {self.lse:.2f}, cosine {self.cosine:.2f}; "
            f"largest error {self.max_error:.2e})"
        )


def compare(out: Any, lse: Any, exact: Result, rounded: Result) -> Margin:
    """Compares an answer with the reference.

    Args:
        out: [b, s_q, h_q, 512], 16-bit.
        lse: [b, s_q, h_q] fp32, or None to leave it out.
        exact: the fp64 reference.
        rounded: the same-precision computation.
    """
    import torch

    dtype = str(out.dtype).rsplit(".", 1)[-1]
    step, cosine_bound = _DTYPES[dtype]
    got = out.double()
    if not bool(torch.isfinite(got).all()):
        return Margin(float("inf"), 0.0, 0.0, float("inf"), _place("out is not finite", ~torch.isfinite(got)))
    if got.numel() == 0:
        return Margin(0.0, 0.0, 0.0, 0.0, "")
    error = (got - exact.out).abs()
    magnitude = exact.out.abs().clamp_min(_SMALLEST[dtype])
    ulp = torch.exp2(torch.floor(torch.log2(magnitude))) * step
    noise = (rounded.out.double() - exact.out).abs().amax(-1, keepdim=True)
    ratio = error / (ERROR_FACTOR * noise + ULPS * ulp)
    empty = torch.isneginf(exact.lse)
    distance = 1 - torch.nn.functional.cosine_similarity(got, exact.out, dim=-1, eps=1e-300)
    distance = torch.where(exact.out.abs().amax(-1) == 0, torch.zeros_like(distance), distance) / cosine_bound
    lse_ratio, lse_problem = _compare_lse(lse, exact, rounded, empty)
    problem = lse_problem
    if bool((got[empty] != 0).any()):
        problem = _place("out is not 0 where no key is visible", empty[..., None] & (got != 0))
    elif float(ratio.max()) > 1:
        problem = _place(f"out is off by {float(ratio.max()):.3g} x its bound", ratio == ratio.max())
    elif float(distance.max()) > 1:
        problem = _place("cosine is too low", distance == distance.max())
    return Margin(float(ratio.max()), lse_ratio, float(distance.max()), float(error.max()), problem)


def _compare_lse(lse: Any, exact: Result, rounded: Result, empty: Any) -> tuple[float, str]:
    import torch

    if lse is None:
        return 0.0, ""
    got = lse.double()
    wrong = torch.isneginf(got) != empty
    if bool(wrong.any()):
        return float("inf"), _place("lse is -inf where it should not be, or the reverse", wrong)
    if bool((~torch.isfinite(got) & ~empty).any()):
        return float("inf"), _place("lse is not finite", ~torch.isfinite(got) & ~empty)
    zero = torch.zeros_like(got)
    error = torch.where(empty, zero, got - exact.lse).abs()
    noise = torch.where(empty, zero, rounded.lse.double() - exact.lse).abs()
    ratio = error / (ERROR_FACTOR * noise + LSE_LOGIT_PART * exact.top + LSE_FLOOR)
    worst = float(ratio.max())
    return worst, _place(f"lse is off by {worst:.3g} x its bound", ratio == worst) if worst > 1 else ""


def _place(text: str, mask: Any) -> str:
    """The text with the first place and the number of places where it holds."""
    places = mask.nonzero()
    names = ("row", "token", "head", "column")
    where = (
        ", ".join(f"{name} {int(index)}" for name, index in zip(names, places[0], strict=False))
        if len(places)
        else ""
    )
    return f"{text} at {where} ({len(places)} of {mask.numel()})"
