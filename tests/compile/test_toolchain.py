"""Finding compiler and headers: package metadata first, never a toolkit of the system."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import sandbox

from mlagen import known_tools, toolchain
from mlagen.errors import ToolchainError


def test_everything_is_found_in_this_environment() -> None:
    tools = toolchain.locate()
    assert tools.library.is_file()
    for name, folder in tools.includes:
        assert folder.is_dir(), name
    assert next(name for name, _ in tools.includes) == "mlagen"


def test_each_missing_package_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for component, _ in toolchain.survey():
        with monkeypatch.context() as patch:
            real = toolchain.find
            patch.setattr(
                toolchain, "find", lambda c, gone=component, real=real: None if c is gone else real(c)
            )
            with pytest.raises(ToolchainError) as caught:
                toolchain.locate()
            assert component.distribution in str(caught.value)
            assert "pip install 'mlagen[compile]'" in str(caught.value)


@pytest.mark.parametrize(("version", "fits"), [("13.0.85", True), ("13.1.115", True), ("13.2.86", False)])
def test_cccl_that_breaks_the_headers_is_refused_before_it_does(version: str, fits: bool) -> None:
    found = toolchain.find(toolchain.HEADERS[2])
    assert found is not None
    sentences = toolchain.problems([(found.component, replace(found, version=version))])
    assert (sentences == []) == fits
    assert fits or (version in sentences[0] and "13.2" in sentences[0])


def test_the_pins_of_the_project_say_the_same() -> None:
    extras = tomllib.loads((sandbox.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = "\n".join(extras["compile"])
    limit = ".".join(map(str, toolchain.CCCL_BELOW))
    assert f"nvidia-cuda-cccl>=13.0.50,<{limit}" in pins
    for component, _ in toolchain.survey():
        assert component.distribution in pins


def test_a_toolkit_of_the_system_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without package metadata, what pathfinder finds outside of Python's folders is turned down."""
    import cuda.pathfinder as pathfinder

    component = toolchain.HEADERS[0]
    (tmp_path / "cute").mkdir()
    (tmp_path / "cute" / "config.hpp").write_text("")

    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda name: str(tmp_path))
    assert toolchain.find(component) is None
    monkeypatch.syspath_prepend(str(tmp_path.parent))
    found = toolchain.find(component)
    assert found is not None and found.folder == tmp_path


def test_a_package_without_records_is_walked_and_gives_the_same_digest() -> None:
    for component in toolchain.HEADERS:
        found = toolchain.find(component)
        assert found is not None and found.files
        known = {found.folder / name for name in found.files}
        walked = {path for path in toolchain.walk(found) if path.suffix != ".pyc"}
        assert known <= walked, component.distribution


def test_a_header_that_vanished_is_an_incomplete_installation(tmp_path: Path) -> None:
    found = toolchain.Found(toolchain.HEADERS[0], tmp_path, "4.2.0.0", ("cute/gone.hpp",))
    with pytest.raises(ToolchainError, match=r"incomplete.*mlagen\[compile\]"):
        toolchain._package_digest(found)


def test_the_records_of_all_packages_are_looked_at() -> None:
    names = {component.distribution.replace("-", "_") for component, _ in toolchain.survey()}
    assert set(known_tools.RECORDS) == names
    assert sorted({name.split("-")[0] for name in known_tools._installed()}) == sorted(names)
