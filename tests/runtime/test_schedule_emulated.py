"""The device code of the schedule, compiled and run on the emulator, against its model: piece for piece."""

from __future__ import annotations

import pytest
from schedule_model import Model

from mlagen import worklist
from mlagen.emu.launcher import EmulatorLauncher, EmulatorOptions
from mlagen.problem import Problem
from mlagen.spec import KernelSpec

torch = pytest.importorskip("torch")

BATCHES = (
    (0,),
    (1,),
    (0, 0, 0),
    (0, 1, 63, 64, 65, 1000, 4097),
    (1, 5000, 131072),
    tuple(37 * row % 3001 for row in range(70)),
    (8192,),
    (640, 640),
    (4096,) * 5,
    (500,) * 70,
)
KERNELS = ((128, 64, 1), (128, 64, 2), (16, 4, 2), (65, 3, 2))


@pytest.mark.parametrize(("h_q", "max_split", "cta_group"), KERNELS)
def test_emulated_schedule_is_the_model(h_q, max_split, cta_group):
    spec = KernelSpec("sm_90a", "bf16", "bf16", h_q, 64, max_split, cta_group)
    launcher = EmulatorLauncher(EmulatorOptions(sms=6))
    for number, lengths in enumerate(BATCHES):
        counts = tuple((7 * row) % (max_split + 3) for row in range(len(lengths)))
        for s_q, splits in ((1 + number % 2, None), (1, max_split), (2 - number % 2, counts)):
            width = -(-max(*lengths, 1) // 64)
            tensors = {
                "q": torch.zeros((len(lengths), s_q, h_q, 576), dtype=torch.bfloat16),
                "kv_cache": torch.zeros((1, 64, 576), dtype=torch.bfloat16),
                "block_table": torch.zeros((len(lengths), width), dtype=torch.int32),
                "cache_seqlens": torch.tensor(lengths, dtype=torch.int32),
                "num_splits": torch.tensor(splits, dtype=torch.int32)
                if isinstance(splits, tuple)
                else splits,
            }
            problem = Problem.from_tensors(**tensors, softmax_scale=1.0, device_type="cpu")
            device = worklist.read_back(problem, spec, launcher)
            model = Model(spec, launcher.shape(spec, s_q), lengths, width * 64, splits)
            assert device == model.pieces(), (lengths, s_q, splits)
