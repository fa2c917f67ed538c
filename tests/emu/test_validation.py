"""Every instruction form that a shipped kernel contains has evidence; see `forms.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlagen.build import load_artifact
from mlagen.shipped import shipped_specs
from tests.emu.forms import (
    evidence,
    foreign_forms,
    forms_by_reading,
    module_forms,
    recorded_forms,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "emulator_tensor.md"


@pytest.mark.slow
def test_every_form_of_the_shipped_kernels_is_validated() -> None:
    missing: dict[str, list[str]] = {}
    for spec in shipped_specs():
        for form in module_forms(load_artifact(spec).ptx.decode()):
            if evidence(form) is None:
                missing.setdefault(form, []).append(spec.name)
    text = "\n".join(f"{form}: {', '.join(names)}" for form, names in sorted(missing.items()))
    assert not missing, (
        "forms without evidence (record them with record_gpu, run a kernel of others that has them, "
        f"or list them in by_reading.toml with what they agree with):\n{text}"
    )


def test_what_rests_on_reading_is_in_the_document() -> None:
    text = DOCUMENT.read_text()
    assert not [form for form in forms_by_reading() if f"`{form}`" not in text]


def test_nothing_rests_on_reading_that_has_better_evidence() -> None:
    assert not [form for form in forms_by_reading() if evidence(form) != "reading"]


def test_evidence_of_each_class() -> None:
    """The classes are told apart, and a form that nobody knows has none."""
    assert evidence("stmatrix.sync.aligned.m8n8.x4.shared.b16") == "h200"
    assert evidence("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 ss a=k b=mn") == "h200"
    assert evidence("tcgen05.mma.cta_group::2.kind::f16 ts") == "foreign"
    assert evidence("tcgen05.mma.cta_group::1.kind::i8 ss") is None
    assert len(recorded_forms()) > 300 and len(foreign_forms()) >= 7
