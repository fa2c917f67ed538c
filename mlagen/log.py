"""The one logger of mlagen. Warnings are shown by default; MLAGEN_LOG_LEVEL changes that."""

from __future__ import annotations

import logging
import sys
from functools import cache

from mlagen import settings


@cache
def logger() -> logging.Logger:
    """The logger "mlagen", with its level set from the environment at first use."""
    log = logging.getLogger("mlagen")
    level = settings.read().log_level
    if level is not None:
        log.setLevel(level)
        if not log.handlers and not logging.getLogger().handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(asctime)s mlagen %(levelname)s %(message)s"))
            log.addHandler(handler)
    return log


@cache
def warn_once(message: str) -> None:
    """Logs a warning the first time that this process has this message."""
    logger().warning(message)
