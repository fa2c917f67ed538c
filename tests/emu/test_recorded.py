"""The emulator against results that were recorded on a GPU (`record_gpu.py`): equal bits, or a stated number
of ulps.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlagen.emu.tensormap import encode_tiled
from tests.emu.gpu_case import Case, canonical
from tests.emu.gpu_cases import all_cases, tensor_maps
from tests.emu.replay import emulate

FOLDER = Path(__file__).parent / "recorded"
RECORDS: dict[str, Any] = {p.stem: json.loads(p.read_text()) for p in sorted(FOLDER.glob("sm_*.json"))}
NOTHING = ("tma page", "tma latent page", "tma rope page", "wgmma subnormal", "vote.sync")
"""Cases whose output may be all zero: pages beyond the tensor, products that underflow, votes."""
CASES = {case.name: case for case in all_cases()}


@pytest.mark.parametrize("name", CASES)
def test_every_case_runs(name: str) -> None:
    out = emulate(CASES[name])
    assert out.view(np.uint8).any() or name.startswith(NOTHING)
    for where, record in RECORDS.items():
        compare(CASES[name], out, record["cases"].get(name), where)


@pytest.mark.parametrize("where", RECORDS)
def test_no_recording_is_left_out(where: str) -> None:
    """A case that was renamed would be compared with nothing."""
    assert not set(RECORDS[where]["cases"]) - set(CASES)


def compare(case: Case, out: np.ndarray, record: dict[str, Any] | None, where: str) -> None:
    """Equal digests, or recorded values near enough."""
    if record is None:
        return
    out = canonical(case, out)
    if not case.ulps:
        assert hashlib.sha256(out.tobytes()).hexdigest() == record["sha256"], (
            f"{case.name} differs from {where}"
        )
        return
    want = np.frombuffer(base64.b64decode(record["values"]), np.uint32).view(np.float32)
    got = out.reshape(-1).view(np.float32)[:: out.itemsize // 4]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = ~np.isnan(want)
    ordered = [
        np.where(x < 0, -(x.view(np.int32) & 0x7FFFFFFF), x.view(np.int32)).astype(np.int64)
        for x in (got, want)
    ]
    distance = np.abs(ordered[0] - ordered[1])[known]
    near = (distance <= case.ulps) | (np.abs(got[known].astype(np.float64) - want[known]) <= case.absolute)
    assert near.all(), f"{case.name}: {distance[~near].max()} ulps from {where}"


@pytest.mark.parametrize("where", RECORDS)
@pytest.mark.parametrize("name", tensor_maps())
def test_tensor_maps_have_the_bytes_of_the_driver(name: str, where: str) -> None:
    recorded = RECORDS[where]["tensor_maps"].get(name)
    if recorded is not None:
        assert encode_tiled(address=1 << 40, **tensor_maps()[name]).hex() == recorded
