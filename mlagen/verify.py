"""Checking a kernel against the fp64 reference, with everything poisoned that it must not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlagen import api, runtime
from mlagen.casework import Call, Case, draw, split_counts
from mlagen.errors import DeviceError
from mlagen.problem import Problem
from mlagen.reference import reference, same_precision
from mlagen.resolve import resolve
from mlagen.spec import KernelSpec
from mlagen.tolerance import Margin, compare


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case of a verification.

    Attributes:
        title: what was special about it.
        case: how it was drawn.
        margin: how close the answer came to its bounds.
        repeatable: whether a second run gave the same bits.
    """

    title: str
    case: Case
    margin: Margin
    repeatable: bool

    @property
    def ok(self) -> bool:
        """Right and repeatable."""
        return self.margin.ok and self.repeatable


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """All cases of one kernel.

    Attributes:
        name: kernel name.
        where: GPU or emulator that ran it.
        cases: in the order they ran.
    """

    name: str
    where: str
    cases: tuple[CaseResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every case is right."""
        return all(case.ok for case in self.cases)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [
            {"title": row.title, "ok": row.ok, "repeatable": row.repeatable, **asdict(row.margin)}
            for row in self.cases
        ]
        return {"name": self.name, "where": self.where, "ok": self.ok, "cases": rows}


def default_cases(spec: KernelSpec) -> dict[str, Case]:
    """A short list that covers empty rows, page and tile edges, splits, token counts, strides and large
    logits.
    """
    page = spec.page_size
    lengths = (0, 1, max(page - 1, 1), page, page + 1, 63, 64, 65, 129, 1000)
    base = Case(lengths, h_q=spec.h_q, page_size=page, dtype=spec.q_dtype.value)
    counts = split_counts(lengths, spec.max_split)
    return {
        "one token": base,
        "one piece a row": base.but(splits=1, seed=1),
        "most pieces": base.but(splits=spec.max_split, seed=2),
        "device split counts": base.but(splits=counts, seed=3),
        "two tokens, causal": base.but(s_q=2, seed=4),
        "four tokens, not causal": base.but(s_q=4, causal=False, seed=5, lengths=lengths[:6]),
        "large logits": base.but(logit_std=100.0, splits=counts, seed=6),
        "strided views": base.but(layout="strided", s_q=2, seed=7),
        "pair of caches": base.but(layout="pair", seed=8, splits=counts),
        "one long row": base.but(lengths=(4097, 3), seed=9),
    }


def verify(
    spec: KernelSpec | str,
    *,
    cases: dict[str, Case] | None = None,
    device: int = 0,
    launcher: runtime.Launcher | None = None,
    where: str = "",
) -> VerifyResult:
    """Runs a kernel on random calls and compares it with fp64.

    Args:
        spec: a KernelSpec or kernel name.
        cases: by title; `default_cases` if absent.
        device: number of the GPU.
        launcher: something else to run on, with its tensors in host memory (an emulator).
        where: name of that launcher for the report.

    Raises:
        DeviceError: no GPU that can run it, and no launcher given.
        SpecError, ToolchainError, CompileError, CacheError: the kernel cannot be built.
    """
    return collect(verify_each(spec, cases=cases, device=device, launcher=launcher), spec, device, where)


def verify_each(
    spec: KernelSpec | str,
    *,
    cases: dict[str, Case] | None = None,
    device: int = 0,
    launcher: runtime.Launcher | None = None,
) -> Iterator[CaseResult]:
    """As verify, one result at a time, for a progress display."""
    spec = resolve(spec) if isinstance(spec, str) else spec
    place = "cpu"
    if launcher is None:
        place = f"cuda:{device}"
        gpu_launcher = runtime.launcher(device)
        _require_torch_cuda(device)
        gpu_launcher.kernel(spec)
        launcher = gpu_launcher
    for title, case in (cases or default_cases(spec)).items():
        yield run_case(spec, title, draw(case, place), launcher)


def run_case(spec: KernelSpec, title: str, call: Call, launcher: runtime.Launcher) -> CaseResult:
    """Runs one call twice with poisoned buffers, then the references."""
    first = run_poisoned(spec, call, launcher)
    second = run_poisoned(spec, call, launcher)
    out, lse = first
    repeatable = bool(out.view(dtype=_int16()).eq(second[0].view(dtype=_int16())).all()) and bool(
        ((lse == second[1]) | (lse.isnan() & second[1].isnan())).all()
    )
    margin = compare(out, lse, *references(call))
    return CaseResult(title, call.case, margin, repeatable)


def run_poisoned(spec: KernelSpec, call: Call, launcher: runtime.Launcher) -> tuple[Any, Any]:
    """One run into outputs and a workspace full of poison; (out, lse)."""
    import torch

    case = call.case
    shape = call.q.shape[:3]
    out = torch.full((*shape, 512), case.poison, dtype=call.q.dtype, device=call.q.device)
    lse = torch.full(shape, case.poison, dtype=torch.float32, device=call.q.device)
    needed = launcher.workspace_bytes(spec, shape[0], shape[1])
    workspace = torch.full((needed,), 0xFF, dtype=torch.uint8, device=call.q.device)
    problem = Problem.from_tensors(
        *call.args, **call.keywords, out=out, lse=lse, workspace=workspace, device_type=call.q.device.type
    )
    api.run(problem, spec, launcher, True)
    return out, lse


def references(call: Call) -> tuple[Any, Any]:
    """The fp64 reference and the same-precision computation of a call."""
    case = call.case
    options: dict[str, Any] = {"softmax_scale": case.softmax_scale, "causal": case.causal}
    return reference(*call.reference_arguments, **options), same_precision(
        *call.reference_arguments, **options
    )


def collect(
    results: Iterable[CaseResult] | Sequence[CaseResult], spec: KernelSpec | str, device: int, where: str = ""
) -> VerifyResult:
    """A VerifyResult from single results."""
    rows = tuple(results)
    name = spec if isinstance(spec, str) else spec.name
    return VerifyResult(name, where or runtime.launcher(device).device.name, rows)


def _int16() -> Any:
    import torch

    return torch.int16


def _require_torch_cuda(device: int) -> None:
    """The reference runs in torch on the same GPU.

    Raises:
        DeviceError: torch is absent or was built without CUDA.
    """
    try:
        import torch
    except ImportError as error:
        raise DeviceError(
            "verification compares with torch, which is not installed: pip install torch"
        ) from error
    if not torch.cuda.is_available():
        raise DeviceError(
            f"device {device} cannot be used by this torch ({torch.__version__}): torch.cuda.is_available() "
            f"is False. "
            "Install a CUDA build of torch"
        )
    torch.backends.cuda.matmul.allow_tf32 = False
