"""Settings: typed, read at each use, documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlagen import settings
from mlagen.errors import InputError


def test_defaults_come_from_an_empty_environment() -> None:
    assert settings.read({}) == settings.Settings()
    assert settings.read({"MLAGEN_JOBS": "  "}) == settings.Settings()


def test_values_are_typed() -> None:
    found = settings.read(
        {
            "MLAGEN_CACHE_DIR": "/a b/c",
            "MLAGEN_CACHE_PATH": "/x:/y",
            "MLAGEN_DISABLE_JIT": "yes",
            "MLAGEN_JOBS": "3",
            "MLAGEN_LINEINFO": "1",
            "MLAGEN_LOG_LEVEL": "info",
        }
    )
    assert found.cache_dir == Path("/a b/c")
    assert found.cache_path == (Path("/x"), Path("/y"))
    assert found.disable_jit is True
    assert found.jobs == 3
    assert found.lineinfo is True
    assert found.log_level == "INFO"


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("MLAGEN_JOBS", "0", "1 to 1024"),
        ("MLAGEN_JOBS", "many", "1 to 1024"),
        ("MLAGEN_JOBS", "²", "1 to 1024"),
        ("MLAGEN_DISABLE_JIT", "maybe", "true"),
        ("MLAGEN_LOG_LEVEL", "LOUD", "WARNING"),
    ],
)
def test_a_bad_value_names_variable_value_and_choices(name: str, value: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        settings.read({name: value})
    assert name in str(caught.value)
    assert value in str(caught.value)
    assert hint in str(caught.value)


def test_misspelled_variables_are_found() -> None:
    assert settings.unknown({"MLAGEN_CACHE": "/x", "MLAGEN_JOBS": "1", "HOME": "/"}) == ("MLAGEN_CACHE",)


def test_about_a_dozen_variables_each_with_help() -> None:
    rows = settings.rows()
    assert len(rows) <= 14
    assert all(row.variable.startswith("MLAGEN_") and row.help for row in rows)


def test_a_change_takes_effect_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLAGEN_JOBS", "2")
    assert settings.read().jobs == 2
    monkeypatch.setenv("MLAGEN_JOBS", "5")
    assert settings.read().jobs == 5
