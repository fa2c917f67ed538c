"""One test for each part of the cache key, and for what must not be in it."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
import sandbox

from mlagen import fingerprint, paths, toolchain
from mlagen.artifact import order
from mlagen.cache_key import OUTPUTS, SCHEMA, Key, key_of_parts, make_key
from mlagen.fingerprint import Fingerprint
from mlagen.options import options
from mlagen.spec import Arch

TOOLS = Fingerprint(nvrtc="13.0.88", toolkit="a" * 32, own="b" * 64)


def key(**changes: object) -> Key:
    values = dict(
        recipe="text", options=options(Arch.SM_90A, lineinfo=False), arch=Arch.SM_90A, own="", tools=TOOLS
    )
    return make_key(**{**values, **changes})  # type: ignore[arg-type]


def test_the_same_parts_give_the_same_digests() -> None:
    assert key() == key()
    assert key().digest == key().digest
    assert key().digest != key().portable


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"recipe": "text "}, id="recipe"),
        pytest.param({"options": options(Arch.SM_90A, lineinfo=True)}, id="an option more"),
        pytest.param({"options": options(Arch.SM_90A, lineinfo=False)[::-1]}, id="order of options"),
        pytest.param({"arch": Arch.SM_100A}, id="architecture"),
        pytest.param({"tools": TOOLS._replace(nvrtc="13.0.96")}, id="NVRTC version"),
        pytest.param({"tools": TOOLS._replace(toolkit="c" * 32)}, id="header packages"),
        pytest.param({"tools": TOOLS._replace(own="c" * 64)}, id="own headers"),
    ],
)
def test_each_part_changes_the_digest(changes: dict[str, object]) -> None:
    assert key(**changes).digest != key().digest


def test_schema_and_outputs_change_the_digest() -> None:
    assert key()._replace(schema=SCHEMA + 1).digest != key().digest
    assert key()._replace(outputs=OUTPUTS[:-1]).digest != key().digest


def test_no_part_runs_into_its_neighbour() -> None:
    first = key()._replace(options=("ab", "c"), recipe="1", own="23")
    second = key()._replace(options=("a", "bc"), recipe="12", own="3")
    assert first.digest != second.digest
    assert first.portable != second.portable


def test_all_architectures_differ() -> None:
    assert len({key(arch=arch, options=options(arch)).digest for arch in Arch}) == len(Arch)


def test_without_a_toolchain_there_is_no_full_digest_but_the_portable_stays() -> None:
    lone = key(tools=None, own=TOOLS.own)
    assert lone.digest is None
    assert lone.portable == key().portable


def test_a_key_survives_its_manifest_and_nothing_else_does() -> None:
    assert key_of_parts(key().parts) == key()
    for name in key().parts:
        with pytest.raises(ValueError, match=name):
            key_of_parts({part: value for part, value in key().parts.items() if part != name})
    with pytest.raises(ValueError, match="unknown"):
        key_of_parts({**key().parts, "host": "here"})
    with pytest.raises(ValueError, match="type"):
        key_of_parts({**key().parts, "nvrtc": None})


def test_the_key_holds_no_path() -> None:
    tools = toolchain.fingerprint(toolchain.locate())
    text = str(order(sandbox.SPEC, tools).key.parts)
    for path in (sandbox.ROOT, Path.home(), paths.template_root(), toolchain.locate().nvrtc.folder):
        assert str(path) not in text


def test_a_changed_header_of_ours_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within one process, also one that is only included by others, also under a new name."""
    root = shutil.copytree(paths.include_root(), tmp_path / "include")
    monkeypatch.setattr(fingerprint, "include_root", lambda: root)
    seen = {fingerprint.own_digest()}
    assert seen == {fingerprint.own_digest()}
    for header in sorted(root.rglob("*.cuh")):
        header.write_text(header.read_text() + "\n")
        seen.add(fingerprint.own_digest())
    header.rename(header.with_name("renamed.cuh"))
    seen.add(fingerprint.own_digest())
    assert len(seen) == 2 + len(list(root.rglob("*.cuh")))


def fake_package(folder: Path) -> toolchain.Found:
    (folder / "cute").mkdir(parents=True)
    for name in ("config.hpp", "util.hpp"):
        (folder / "cute" / name).write_text(f"// {name}\n")
    return toolchain.Found(toolchain.HEADERS[0], folder, "4.2.0.0", ("cute/config.hpp", "cute/util.hpp"))


def test_headers_count_by_content_not_by_path_or_time(tmp_path: Path) -> None:
    first, second = fake_package(tmp_path / "a"), fake_package(tmp_path / "b c" / "é")
    digest = toolchain._package_digest(first)
    assert toolchain._package_digest(second) == digest
    for path in first.folder.rglob("*.hpp"):
        moment = random.Random(str(path)).randrange(10**9)
        os.utime(path, (moment, moment))
    assert toolchain._package_digest(first) == digest
    (first.folder / "cute" / "util.hpp").write_text("// util.hpq\n")
    assert toolchain._package_digest(first) != digest


def test_a_header_changed_without_a_trace_in_size_or_modification_time_is_seen(tmp_path: Path) -> None:
    package = fake_package(tmp_path)
    digest = toolchain._package_digest(package)
    path = package.folder / "cute" / "util.hpp"
    status = path.stat()
    path.write_text(path.read_text().upper())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert toolchain._package_digest(package) != digest


def test_hash_seed_and_process_do_not_matter(tmp_path: Path) -> None:
    script = (
        "import mlagen\nfrom mlagen import artifact, toolchain\n"
        "spec = mlagen.KernelSpec('sm_90a', 'bf16', 'bf16', 16, 64, 16, 1)\n"
        "print(artifact.order(spec, toolchain.fingerprint(toolchain.locate())).key.digest)"
    )
    digests = {sandbox.python(script, sandbox.environment(tmp_path, PYTHONHASHSEED=seed)) for seed in "01"}
    assert len(digests) == 1
