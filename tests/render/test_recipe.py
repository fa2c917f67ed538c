"""The recipe names everything that decides a source text, so that a kernel is found without rendering it."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
import sandbox

from mlagen import paths, recipe
from mlagen.artifact import order
from mlagen.plan import make_plan
from mlagen.recipe import PRINTERS, recipe_of
from mlagen.render import environment
from mlagen.shipped import shipped_specs


def test_the_same_plan_has_the_same_recipe_and_every_kernel_its_own() -> None:
    recipes = {recipe_of(make_plan(spec)) for spec in shipped_specs()}
    assert len(recipes) == len(shipped_specs())
    assert recipe_of(make_plan(sandbox.SPEC)) == recipe_of(make_plan(sandbox.SPEC))


def test_every_field_of_a_plan_is_in_its_recipe() -> None:
    plan = make_plan(sandbox.SPEC)
    seen = {recipe_of(plan)}
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, tuple) and value:
            changed = value[:-1]
        elif isinstance(value, int):
            changed = value + 1
        elif dataclasses.is_dataclass(value):
            inner = next(f for f in dataclasses.fields(value) if isinstance(getattr(value, f.name), int))
            changed = dataclasses.replace(value, **{inner.name: getattr(value, inner.name) + 1})
        else:
            continue
        seen.add(recipe_of(dataclasses.replace(plan, **{field.name: changed})))
    assert len(seen) > len(dataclasses.fields(plan)) - 2


def test_every_template_is_in_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(shutil.copytree(paths.template_root(), tmp_path / "templates"))
    monkeypatch.setattr(recipe.paths, "template_root", lambda: root)
    plan = make_plan(sandbox.SPEC)
    files = sorted(root.rglob("*.j2"))
    assert set(environment().list_templates(extensions=["j2"])) == {
        path.relative_to(root).as_posix() for path in files
    }
    seen = {recipe_of(plan)}
    for path in files:
        path.write_text(path.read_text() + "\n")
        seen.add(recipe_of(plan))
    assert len(seen) == 1 + len(files)


def test_all_that_a_template_can_reach_is_defined_in_files_of_the_recipe() -> None:
    """Walks a plan through all its parts: their classes carry the properties that templates print."""
    found, open_ = set(), [make_plan(sandbox.SPEC)]
    while open_:
        value = open_.pop()
        if isinstance(value, tuple):
            open_ += value
        elif dataclasses.is_dataclass(value):
            found.add(type(value).__module__)
            open_ += [getattr(value, field.name) for field in dataclasses.fields(value)]
        elif type(value).__module__.startswith("mlagen"):
            found.add(type(value).__module__)
    package = Path(paths.__file__).parent
    files = {Path(str(sys.modules[name].__file__)).relative_to(package).as_posix() for name in found}
    assert files <= set(PRINTERS)


def test_finding_a_kernel_renders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlagen.render", None)
    task = order(sandbox.SPEC)
    assert task.key.recipe == recipe_of(make_plan(sandbox.SPEC))
    with pytest.raises(ImportError):
        task.source  # noqa: B018


def test_a_rendered_source_includes_nothing_but_our_headers() -> None:
    """What is remembered of the header packages goes by what our own headers reach."""
    for spec in shipped_specs():
        lines = [line for line in order(spec).source.splitlines() if "#include" in line]
        assert lines and all(line.startswith('#include "mlagen/') for line in lines)
