"""Puts tests/ on the import path, for fakes, cases and the independent reference."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
