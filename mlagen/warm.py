"""Calls that repeat an earlier one: from addresses, shapes and options straight to a filled launch.

Everything that the rules of a call look at - addresses, shapes, strides, dtypes, devices, scalars, kernel -
is in the key or compared with what was checked, so a call that is found here broke no rule then and breaks
none now. Context, stream and capture are asked for every time. Only calls whose outputs and workspace are
given can repeat; a call becomes known the second time that it comes.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from mlagen import check, runtime
from mlagen.arguments import call_values
from mlagen.counters import pool
from mlagen.driver import call, current
from mlagen.plan.params import packer
from mlagen.problem import Problem
from mlagen.runtime import CudaLauncher, PreparedCall
from mlagen.spec import KernelSpec
from mlagen.tma import AlignedBytes

MAX_READY = 1024
MAX_SEEN = 4096
_LOCK = threading.Lock()
# softmax_scale, causal, num_splits, deterministic and spec, as the caller gave them.
Options = tuple[Any, Any, Any, Any, Any]


class ReadyCall:
    """A launch with all its parameters filled in, but for stream and counters. Thread safe.

    Args:
        prepared: of the call's kernel and layout.
        problem: the checked call.
        metas: what `repeat` compares, see `_metas`.
        spec: what the caller passed as spec; held, since its identity is part of the key.
    """

    __slots__ = ("_array", "_context", "_fields", "_held", "_number", "_prepared", "_splits", "metas", "spec")

    def __init__(self, prepared: PreparedCall, problem: Problem, metas: tuple[Any, ...], spec: Any) -> None:
        plan, pointers = prepared.kernel.plan, problem.pointers
        self.metas, self.spec = metas, spec
        self._prepared = prepared
        self._splits, self._context = plan.spec.max_split > 1, prepared.kernel.device.context
        self._number = -1
        params = AlignedBytes(plan.params_bytes)
        params.write(prepared.template)
        self._fields: Any = packer(plan.params).from_address(params.address)
        values = call_values(
            problem,
            out=pointers["out"],
            lse=pointers.get("lse", 0),
            workspace=0 if problem.whole_rows or not self._splits else pointers.get("workspace", 0),
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

    def launch(self, stream: int) -> None:
        """Launches on a stream.

        Raises:
            DeviceError: the driver refuses the launch, or the stream cannot be used now.
        """
        prepared = self._prepared
        meet = self._meet if self._splits else None
        if int(prepared.driver.cuCtxGetCurrent()[1] or 0) == self._context:
            prepared.start(self._array, stream, meet)
        else:
            with current(prepared.kernel.device):
                prepared.start(self._array, stream, meet)

    def _meet(self, driver: Any, stream: int) -> None:
        """Puts the counters of the stream, or of its capture, into the parameters. Runs under the lock of the
        prepared call.
        """
        status, state = driver.cuStreamIsCapturing(stream)
        number = -1
        if not int(status) and not int(state):
            number = int(call(driver.cuStreamGetId(stream), "cuStreamGetId"))
            if number == self._number:
                return
        self._fields.counters = pool(self._prepared.kernel.device).slot(driver, stream)
        self._number = number


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
    """Addresses, options, and the extents that vary where batches of several sizes share buffers. Values that
    only compare equal, as 1 and True, are told apart by `_plain`.
    """
    softmax_scale, causal, num_splits, deterministic, spec = options
    return (
        q.data_ptr(),
        q.shape,
        kv_cache.data_ptr(),
        block_table.data_ptr(),
        block_table.shape,
        cache_seqlens.data_ptr(),
        out.data_ptr(),
        0 if lse is None else lse.data_ptr(),
        0 if workspace is None else workspace.data_ptr(),
        softmax_scale,
        causal,
        num_splits,
        deterministic,
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
        out.shape,
        out.stride(),
        out.dtype,
        out.get_device(),
        None if lse is None else (lse.shape, lse.stride(), lse.dtype, lse.get_device()),
        None
        if workspace is None
        else (workspace.shape, workspace.stride(), workspace.dtype, workspace.get_device()),
    )


def _plain(options: Options) -> bool:
    """Whether the options have the types that the key tells apart."""
    softmax_scale, causal, num_splits, _, _ = options
    return (
        type(softmax_scale) is float
        and type(causal) is bool
        and (num_splits is None or type(num_splits) is int)
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
) -> bool:
    """Launches the call if it repeats an earlier one.

    Args: tensors as in mla_decode, out given; options see Options.

    Returns:
        Whether it did. Otherwise nothing has happened.

    Raises:
        DeviceError: see ReadyCall.launch.
    """
    try:
        launcher = runtime.LAUNCHERS[q.get_device()]
        ready = launcher.ready.get(
            _key(q, kv_cache, block_table, cache_seqlens, out, lse, workspace, options)
        )
        if ready is None or not _plain(options):
            return False
        if ready.metas != _metas(q, kv_cache, block_table, cache_seqlens, out, lse, workspace):
            return False
    except (AttributeError, KeyError, TypeError):  # a pair, no tensor, no launcher yet: the long way tells
        return False
    if check.wanted():
        return False
    ready.launch(runtime.stream_of(q, launcher.device.ordinal))
    return True


def remember(launcher: CudaLauncher, problem: Problem, kernel: KernelSpec, options: Options) -> None:
    """Makes the call known that was just launched, if it is the second time that it comes and its outputs and
    workspace were given.
    """
    tensors = problem.tensors
    workspace = tensors.get("workspace")
    if "q" not in tensors or "kv_cache" not in tensors or not _plain(options):
        return
    if workspace is None and kernel.max_split > 1 and not problem.whole_rows:
        return
    q, kv_cache = tensors["q"], tensors["kv_cache"]
    others = (tensors["block_table"], tensors["cache_seqlens"], tensors["out"], tensors.get("lse"), workspace)
    try:
        key, metas = _key(q, kv_cache, *others, options), _metas(q, kv_cache, *others)
    except AttributeError:  # has what a checked call needs, but no get_device
        return
    if key not in launcher.seen:
        if len(launcher.seen) >= MAX_SEEN:
            launcher.seen.clear()
        launcher.seen.add(key)
        return
    made = ReadyCall(launcher.prepared(kernel, problem.layout), problem, metas, options[-1])
    with _LOCK:
        launcher.ready[key] = made
        while len(launcher.ready) > MAX_READY:
            del launcher.ready[next(iter(launcher.ready))]
