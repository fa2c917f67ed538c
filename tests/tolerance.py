"""Tolerances live in mlagen.tolerance, since `mlagen verify` uses them too; this is the name under which
tests find them."""

from __future__ import annotations

from mlagen.tolerance import ERROR_FACTOR, ULPS, Margin, compare

__all__ = ["ERROR_FACTOR", "ULPS", "Margin", "compare"]
