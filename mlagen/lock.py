"""A lock between processes and threads of one host, held by the kernel of the operating system: it ends with
its holder, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.02


@contextmanager
def exclusive(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock of a file, which is made if needed.

    Raises:
        TimeoutError: another holder kept it for this many seconds.
        OSError: the file system has no locks, or the file cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise TimeoutError(f"{path} was held for more than {seconds:g} s") from None
                time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
