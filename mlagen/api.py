"""The calls of the library: mla_decode, workspace_size and schedule."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from mlagen import check, heuristics, runtime, warm, worklist
from mlagen.errors import InputError
from mlagen.layout import D_LATENT
from mlagen.problem import Problem, check_deterministic
from mlagen.resolve import resolve
from mlagen.spec import KernelSpec


def mla_decode(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    *,
    softmax_scale: float,
    causal: bool = True,
    num_splits: Any = None,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    workspace: Any = None,
    spec: KernelSpec | str | None = None,
    deterministic: str | None = None,
) -> Any:
    """Attention of a few new tokens a row over a paged latent cache (MLA decode, weights absorbed).

    Runs on the tensors' GPU and torch's current stream there, never waits, and can be captured in a graph.

    Args:
        q: [b, s_q, h_q, 576] bf16 or fp16, or the pair (q_nope [b, s_q, h_q, 512], q_pe [b, s_q, h_q, 64]).
        kv_cache: [pages, page_size, 576] or [pages, page_size, 1, 576] in q's dtype, or the pair (ckv [...,
            512], k_pe [..., 64]); the first 512 columns are also the values.
        block_table: int32 [b, width], the pages of each row in order. Entries beyond a row's need are not
            read.
        cache_seqlens: int32 [b], keys of each row, the s_q new ones included.
        softmax_scale: factor of q.k, a Python number above 0.
        causal: token t of a row sees max(0, len - s_q + 1 + t) keys; otherwise all see len.
        num_splits: None for balanced pieces; k or an int32 tensor [b] on the GPU to cut row i into
            min(k, ceil(len / 64)) equal pieces.
        out, lse: [b, s_q, h_q, 512] in q's dtype and [b, s_q, h_q] fp32, written and returned if given.
        return_lse: whether to return the log-sum-exp too.
        workspace: uint8 [workspace_size(...)] or more, contents free; allocated through torch if absent.
        spec: a KernelSpec or kernel name; chosen from the tensors and the GPU if absent.
        deterministic: "batch_invariant" for rows whose bits do not depend on the batch: none is cut.

    Returns:
        `out`, or `(out, lse)` when return_lse is set or lse is given. LSE is the natural logarithm; a token
        without a visible key gets 0 and -inf.

    Raises:
        InputError, DeviceError: an argument breaks a rule, or no GPU fits the kernel.
        SpecError, ToolchainError, CompileError, CacheError: the kernel cannot be built.
    """
    given = (q, kv_cache, block_table, cache_seqlens, out, lse, workspace)
    options = (softmax_scale, causal, num_splits, deterministic, return_lse, spec)
    done = warm.repeat(*given, options)
    return _checked(given, options) if done is None else done


def _checked(given: tuple[Any, ...], options: warm.Options) -> Any:
    """The long way of mla_decode: every check, the choice of the kernel, the launch."""
    q, kv_cache, block_table, cache_seqlens, out, lse, workspace = given
    softmax_scale, causal, num_splits, deterministic, return_lse, spec = options
    problem = Problem.from_tensors(
        q,
        kv_cache,
        block_table,
        cache_seqlens,
        softmax_scale=softmax_scale,
        causal=causal,
        num_splits=num_splits,
        out=out,
        lse=lse,
        workspace=workspace,
        deterministic=deterministic,
    )
    want_lse = bool(return_lse) or lse is not None
    if problem.layout.batch == 0:
        return _outputs(problem, want_lse)
    launcher = runtime.launcher(problem.layout.device)
    kernel = _spec(spec, problem, launcher)
    result = run(problem, kernel, launcher, want_lse)
    warm.remember(launcher, problem, kernel, want_lse, options)
    return result


def run(problem: Problem, spec: KernelSpec, launcher: runtime.Launcher, want_lse: bool) -> Any:
    """The part of mla_decode behind the choice of kernel: scratch, outputs, launch.

    Raises:
        InputError: the kernel or the workspace does not fit the call.
    """
    problem.check_spec(spec)
    layout = problem.layout
    needed = 0 if problem.whole_rows else launcher.workspace_bytes(spec, layout.batch, layout.s_q)
    problem.check_workspace(needed, spec)
    check.validate(problem, spec)
    scratch: Any = problem.tensors.get("workspace")
    if scratch is None and needed:
        scratch = problem.like.new_empty((needed,), dtype=_torch().uint8)
    result = _outputs(problem, want_lse)
    out, log_sum = result if want_lse else (result, None)
    addresses = runtime.Outputs(
        out=out.data_ptr(),
        lse=0 if log_sum is None else log_sum.data_ptr(),
        workspace=scratch.data_ptr() if needed else 0,
    )
    launcher.decode(spec, problem, addresses)
    return result


def workspace_size(
    spec: KernelSpec | str, b: int, s_q: int, *, device: Any, deterministic: str | None = None
) -> int:
    """Bytes of workspace that mla_decode needs: two partial results for each CTA of the grid.

    It does not depend on max_split, num_splits or lengths, and does not grow with b, so a workspace for one
    batch size serves all; it is 0 for b = 0 and for a kernel with max_split 1.

    Args:
        spec: a KernelSpec or kernel name.
        b: rows.
        s_q: query tokens of a row.
        device: torch.device, "cuda:1", or the device's number.
        deterministic: as mla_decode; 0 bytes for "batch_invariant".

    Raises:
        InputError: b or s_q is not a count, or device is not a CUDA device.
        DeviceError: no such GPU.
    """
    for name, value, least in (("b", b, 0), ("s_q", s_q, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}={value!r}; an int of at least {least} is needed")
    whole_rows = check_deterministic(deterministic)
    launcher, kernel = runtime.launcher(_ordinal(device)), _resolve(spec)
    return 0 if whole_rows else launcher.workspace_bytes(kernel, b, s_q)


def schedule(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    *,
    softmax_scale: float = 1.0,
    causal: bool = True,
    num_splits: Any = None,
    spec: KernelSpec | str | None = None,
    deterministic: str | None = None,
) -> list[worklist.WorkPiece]:
    """The pieces of work that mla_decode would run for the same arguments, as the GPU divides them.

    For inspection and tests: it copies the list to the host and waits for it.

    Args: as mla_decode.

    Returns:
        One WorkPiece for each piece, sorted by row, tile and first key.

    Raises:
        As mla_decode.
    """
    problem = Problem.from_tensors(
        q,
        kv_cache,
        block_table,
        cache_seqlens,
        softmax_scale=softmax_scale,
        causal=causal,
        num_splits=num_splits,
        deterministic=deterministic,
    )
    if problem.layout.batch == 0:
        return []
    launcher = runtime.launcher(problem.layout.device)
    spec = _spec(spec, problem, launcher)
    problem.check_spec(spec)
    return worklist.read_back(problem, spec, launcher)


@lru_cache(maxsize=256)
def _named(name: str) -> KernelSpec:
    return resolve(name)


def _resolve(spec: KernelSpec | str) -> KernelSpec:
    if isinstance(spec, str):
        return _named(spec)
    if not isinstance(spec, KernelSpec):
        raise InputError(f"spec is a {type(spec).__name__}; a KernelSpec or a kernel name is needed")
    return spec


def _spec(spec: KernelSpec | str | None, problem: Problem, launcher: runtime.CudaLauncher) -> KernelSpec:
    return heuristics.choose(problem, launcher.device) if spec is None else _resolve(spec)


def _outputs(problem: Problem, want_lse: bool) -> Any:
    """The given buffers, or fresh ones; `out`, or `(out, lse)`."""
    layout, given = problem.layout, problem.tensors
    out = given.get("out")
    if out is None:
        out = problem.like.new_empty((layout.batch, layout.s_q, layout.h_q, D_LATENT))
    if not want_lse:
        return out
    lse = given.get("lse")
    if lse is None:
        lse = problem.like.new_empty((layout.batch, layout.s_q, layout.h_q), dtype=_torch().float32)
    return out, lse


def _torch() -> Any:
    module = sys.modules.get("torch")
    if module is None:
        import torch as module
    return module


def _ordinal(device: Any) -> int:
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    kind, _, index = str(device).partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise InputError(f"device={device!r}; a CUDA device such as 'cuda:0' is needed")
    return int(index) if index else int(_torch().cuda.current_device())
