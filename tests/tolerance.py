"""The name under which tests find the tolerances; they live in mlagen.tolerance for `mlagen verify`."""

from __future__ import annotations

from mlagen.tolerance import ERROR_FACTOR, ULPS, Margin, compare

__all__ = ["ERROR_FACTOR", "ULPS", "Margin", "compare"]
