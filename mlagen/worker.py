"""Compiling in processes of their own: NVRTC takes one kernel at a time in a process, however many threads.

A worker is a fresh interpreter that reads jobs from its standard input and writes results to its standard
output until the input ends. It never imports the user's main module, so a script needs no `__main__` guard,
and a crash of the compiler does not take the caller with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mlagen import settings
from mlagen.errors import MlagenError, ToolchainError
from mlagen.nvrtc import CompileResult, compile_source
from mlagen.spec import KernelSpec

# What a compilation takes, with room: 200 MiB were seen.
TYPICAL_MIB = 512
_LENGTH = struct.Struct("<Q")
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from mlagen.worker import serve; serve()"


@dataclass(frozen=True, slots=True)
class Job:
    """One source to compile, with ordered symbolic options."""

    spec: KernelSpec
    source: str
    options: tuple[str, ...]


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> object | None:
    """The next value, or None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return pickle.loads(data) if len(data) == length else None


def default_jobs() -> int:
    """Compiler processes for which this machine has cores and free memory."""
    cores = len(os.sched_getaffinity(0))
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return cores
    return max(1, min(cores, free // TYPICAL_MIB))


def _cap_memory() -> None:
    """The compiler gives up at MLAGEN_WORKER_MEMORY, before the machine has to end some other process."""
    limit = settings.read().worker_memory * 2**20
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def serve() -> None:
    """Body of a worker process. Whatever the compiler prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _cap_memory()
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (job := _receive(sys.stdin.buffer)) is not None:
        assert isinstance(job, Job)  # noqa: S101 - our own parent sends nothing else
        try:
            answer: object = compile_source(
                job.source, job.spec.arch, name=job.spec.name, spec=job.spec, symbolic=job.options
            )
        except MlagenError as error:
            answer = error
        _send(results, answer)


class Worker:
    """The parent's end of one worker process.

    Raises:
        ToolchainError: the process cannot be started.
    """

    def __init__(self) -> None:
        path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
        # -P: a file of the current folder must not stand in for a module of the standard library.
        command = [sys.executable, "-P", "-c", _BOOT, path]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise ToolchainError(
                f"a compiler process cannot be started: {sys.executable}: {error}"
            ) from error

    def compile(self, job: Job) -> CompileResult:
        """Compiles one job in the worker.

        Raises:
            MlagenError: what `compile_source` raised there.
            ToolchainError: the worker died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        answer: object | None = None
        if stdin is not None and stdout is not None:
            with contextlib.suppress(OSError):
                _send(stdin, job)
                answer = _receive(stdout)
        if isinstance(answer, CompileResult):
            return answer
        if isinstance(answer, MlagenError):
            raise answer
        code = self._process.wait()
        raise ToolchainError(
            f"{job.spec.name}: the compiler process ended with status {code} and no result. "
            "A negative status is a signal: -9 means that the machine ran out of memory (fewer --jobs), "
            "-6 that the compiler reached MLAGEN_WORKER_MEMORY"
        )

    @property
    def alive(self) -> bool:
        """Whether the process can take another job."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process: at once if it is still busy."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Pool:
    """Up to `size` workers, started when they are first needed. Safe to use from threads."""

    def __init__(self, size: int) -> None:
        self._idle: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        for _ in range(size):
            self._idle.put(None)

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Worker]:
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                worker = Worker()
                with self._lock:
                    self._all.append(worker)
            yield worker
        finally:
            self._idle.put(worker)

    def compile(self, job: Job) -> CompileResult:
        """Compiles one job in a free worker; waits for one if all are busy."""
        with self._worker() as worker:
            return worker.compile(job)

    def close(self) -> None:
        """Ends all workers."""
        with self._lock:
            workers, self._all = self._all, []
        for worker in workers:
            worker.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
