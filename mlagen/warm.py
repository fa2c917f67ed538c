"""Calls that repeat an earlier one: from addresses, shapes and options straight to a filled launch.

Everything that the rules of a call look at - addresses, shapes, strides, dtypes, devices, scalars, kernel -
is in the key or compared with what was checked, so a call that is found here broke no rule then and breaks
none now. Context, stream and capture are asked for every time, and what is not given is allocated. A call
becomes known the second time that it comes.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

from mlagen import check, runtime
from mlagen.arguments import call_values
from mlagen.counters import pool
from mlagen.driver import call, current
from mlagen.layout import D_LATENT
from mlagen.plan.params import packer
from mlagen.problem import Problem
from mlagen.runtime import CudaLauncher, PreparedCall
from mlagen.spec import KernelSpec
from mlagen.tma import AlignedBytes

MAX_READY = 1024
MAX_SEEN = 4096
_LOCK = threading.Lock()
# softmax_scale, causal, num_splits, deterministic, return_lse and spec, as the caller gave them.
Options = tuple[Any, Any, Any, Any, Any, Any]


class ReadyCall:
    """A launch with all its parameters filled in, but for stream, counters and fresh buffers. Thread safe.

    Args:
        prepared: of the call's kernel and layout.
        problem: the checked call.
        needed: bytes of scratch that it takes.
        want_lse: whether it returns the log-sum-exp.
        metas: what `repeat` compares, see `_metas`.
        spec: what the caller passed as spec; held, since its identity is part of the key.
    """

    __slots__ = (
        "_array",
        "_bytes",
        "_context",
        "_fields",
        "_held",
        "_lse_shape",
        "_number",
        "_out_shape",
        "_prepared",
        "_splits",
        "metas",
        "spec",
    )

    def __init__(
        self,
        prepared: PreparedCall,
        problem: Problem,
        needed: int,
        want_lse: bool,
        metas: tuple[Any, ...],
        spec: Any,
    ) -> None:
        plan, pointers, layout = prepared.kernel.plan, problem.pointers, problem.layout
        self.metas, self.spec = metas, spec
        self._prepared = prepared
        self._splits, self._context = plan.spec.max_split > 1, prepared.kernel.device.context
        self._number = -1
        heads = (layout.batch, layout.s_q, layout.h_q)
        self._out_shape = None if "out" in pointers else (*heads, D_LATENT)
        self._lse_shape = heads if want_lse and "lse" not in pointers else None
        self._bytes = 0 if "workspace" in pointers else needed
        params = AlignedBytes(plan.params_bytes)
        params.write(prepared.template)
        self._fields: Any = packer(plan.params).from_address(params.address)
        values = call_values(
            problem,
            out=pointers.get("out", 0),
            lse=pointers.get("lse", 0),
            workspace=pointers.get("workspace", 0) if needed else 0,
            partial_lse_offset=prepared.partial_lse_offset,
            counters=0,
        )
        for name, value in values.items():
            setattr(self._fields, name, value)
        maps = prepared.encoded_maps(pointers)
        addresses = [params.address, *(encoded.address for encoded in maps)]
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        self._held = (params, maps, array)
        self._array = ctypes.addressof(array)

    def launch(self, q: Any, out: Any, lse: Any) -> Any:
        """Makes the buffers that are not given and launches on the current stream of q's device.

        Returns:
            What mla_decode returns.

        Raises:
            DeviceError: the driver refuses the launch, or the stream cannot be used now.
        """
        prepared = self._prepared
        scratch = None
        if self._out_shape is not None:
            out = q.new_empty(self._out_shape)
        if self._lse_shape is not None:
            lse = q.new_empty(self._lse_shape, dtype=_torch().float32)
        if self._bytes:
            scratch = q.new_empty((self._bytes,), dtype=_torch().uint8)
        stream = runtime.stream_of(q, prepared.kernel.device.ordinal)
        if int(prepared.driver.cuCtxGetCurrent()[1] or 0) == self._context:
            prepared.start(self._array, stream, self._complete, (out, lse, scratch))
        else:
            with current(prepared.kernel.device):
                prepared.start(self._array, stream, self._complete, (out, lse, scratch))
        return out if lse is None else (out, lse)

    def _complete(self, stream: int, buffers: tuple[Any, Any, Any]) -> None:
        """Puts fresh buffers and the counters of the stream, or of its capture, into the parameters. Runs
        under the lock of the prepared call.
        """
        fields, (out, lse, scratch) = self._fields, buffers
        if self._out_shape is not None:
            fields.out = out.data_ptr()
        if self._lse_shape is not None:
            fields.lse = lse.data_ptr()
        if scratch is not None:
            address = scratch.data_ptr()
            fields.partial_out = address
            fields.partial_lse = address + self._prepared.partial_lse_offset
        if not self._splits:
            return
        driver = self._prepared.driver
        status, state = driver.cuStreamIsCapturing(stream)
        number = -1
        if not int(status) and not int(state):
            number = int(call(driver.cuStreamGetId(stream), "cuStreamGetId"))
            if number == self._number:
                return
        fields.counters = pool(self._prepared.kernel.device).slot(driver, stream)
        self._number = number


def _torch() -> Any:
    return sys.modules["torch"]


def _key(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    out: Any,
    lse: Any,
    workspace: Any,
    options: Options,
) -> tuple[Any, ...]:
    """Addresses, options, and the extents that vary where batches of several sizes share buffers. Types stand
    beside options since values of several types compare equal, as 1 and True do.
    """
    softmax_scale, causal, num_splits, deterministic, return_lse, spec = options
    return (
        q.data_ptr(),
        q.shape,
        kv_cache.data_ptr(),
        block_table.data_ptr(),
        block_table.shape,
        cache_seqlens.data_ptr(),
        0 if out is None else out.data_ptr(),
        0 if lse is None else lse.data_ptr(),
        0 if workspace is None else workspace.data_ptr(),
        softmax_scale,
        type(softmax_scale),
        causal,
        type(causal),
        num_splits,
        type(num_splits),
        deterministic,
        return_lse,
        spec if type(spec) is str else id(spec),
    )


def _metas(
    q: Any, kv_cache: Any, block_table: Any, cache_seqlens: Any, out: Any, lse: Any, workspace: Any
) -> tuple[Any, ...]:
    """Shapes, strides, dtypes and device numbers, but for what the key has and for q's device, by which the
    launcher is found.
    """
    return (
        q.stride(),
        q.dtype,
        kv_cache.shape,
        kv_cache.stride(),
        kv_cache.dtype,
        kv_cache.get_device(),
        block_table.stride(),
        block_table.dtype,
        block_table.get_device(),
        cache_seqlens.shape,
        cache_seqlens.stride(),
        cache_seqlens.dtype,
        cache_seqlens.get_device(),
        None if out is None else (out.shape, out.stride(), out.dtype, out.get_device()),
        None if lse is None else (lse.shape, lse.stride(), lse.dtype, lse.get_device()),
        None
        if workspace is None
        else (workspace.shape, workspace.stride(), workspace.dtype, workspace.get_device()),
    )


def repeat(
    q: Any,
    kv_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    out: Any,
    lse: Any,
    workspace: Any,
    options: Options,
) -> Any:
    """Launches the call if it repeats an earlier one.

    Args: tensors as in mla_decode; options see Options.

    Returns:
        What mla_decode returns, or None: then nothing has happened.

    Raises:
        DeviceError: see ReadyCall.launch.
    """
    try:
        launcher = runtime.LAUNCHERS[q.get_device()]
        ready = launcher.ready.get(
            _key(q, kv_cache, block_table, cache_seqlens, out, lse, workspace, options)
        )
        if ready is None or ready.metas != _metas(
            q, kv_cache, block_table, cache_seqlens, out, lse, workspace
        ):
            return None
    except (AttributeError, KeyError, TypeError):  # a pair, no tensor, no launcher yet: the long way tells
        return None
    return None if check.wanted() else ready.launch(q, out, lse)


def remember(
    launcher: CudaLauncher, problem: Problem, kernel: KernelSpec, want_lse: bool, options: Options
) -> None:
    """Makes the call known that was just launched, if it is the second time that it comes."""
    tensors = problem.tensors
    counted = options[2] is None or type(options[2]) is int  # num_splits on the GPU is not in the key
    if "q" not in tensors or "kv_cache" not in tensors or not counted:
        return
    fixed = (tensors["q"], tensors["kv_cache"], tensors["block_table"], tensors["cache_seqlens"])
    given = (tensors.get("out"), tensors.get("lse"), tensors.get("workspace"))
    try:
        key, metas = _key(*fixed, *given, options), _metas(*fixed, *given)
    except AttributeError:  # has what a checked call needs, but no get_device
        return
    if key not in launcher.seen:
        if len(launcher.seen) >= MAX_SEEN:
            launcher.seen.clear()
        launcher.seen[key] = options[-1]  # held, so that no other spec gets its identity
        return
    layout = problem.layout
    needed = 0 if problem.whole_rows else launcher.workspace_bytes(kernel, layout.batch, layout.s_q)
    made = ReadyCall(launcher.prepared(kernel, layout), problem, needed, want_lse, metas, options[-1])
    with _LOCK:
        launcher.ready[key] = made
        while len(launcher.ready) > MAX_READY:
            del launcher.ready[next(iter(launcher.ready))]
