"""Writes the tracked sources in generated/, or checks that each equals a fresh render.

python scripts/pregenerate.py                  write them
python scripts/pregenerate.py --check          exit 1 and name each file that differs, is missing or too many
python scripts/pregenerate.py --bundle FOLDER  also compile them into a bundle (`mlagen build --output`)
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from mlagen.build import build
from mlagen.cli.common import progress
from mlagen.plan import make_plan
from mlagen.render import render
from mlagen.shipped import generated_specs

FOLDER = Path(__file__).resolve().parent.parent / "generated"


def fresh() -> dict[str, str]:
    """File name -> rendered text of every tracked kernel."""
    return {f"{spec.name}.cu": render(make_plan(spec)) for spec in generated_specs()}


def differences(folder: Path = FOLDER) -> list[str]:
    """One text for each file that is not as a fresh render would make it."""
    wanted = fresh()
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.cu")}
    texts = [
        f"{name}: not a tracked kernel of mlagen/shipped.toml"
        for name in sorted(found.keys() - wanted.keys())
    ]
    for name, text in wanted.items():
        if name not in found:
            texts.append(f"{name}: missing")
        elif found[name] != text:
            diff = difflib.unified_diff(
                found[name].splitlines(), text.splitlines(), name, "fresh render", lineterm=""
            )
            texts.append("\n".join(list(diff)[:20]))
    return texts


def write(folder: Path = FOLDER) -> None:
    """Makes the folder hold exactly the tracked kernels."""
    folder.mkdir(exist_ok=True)
    wanted = fresh()
    for path in folder.glob("*.cu"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def compile_all(bundle: Path, jobs: int | None) -> int:
    """Builds the tracked kernels into a bundle; goes on where an earlier run was stopped."""
    specs = generated_specs()
    with progress("build", len(specs)) as step:
        report = build(
            specs, jobs=jobs, output=bundle, progress=lambda row: step(f"{row.name} {row.status} {row.error}")
        )
    return 1 if report.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--bundle", type=Path, metavar="FOLDER", help="also compile them into this bundle")
    parser.add_argument("--jobs", type=int, help="compiler processes at a time")
    options = parser.parse_args()
    if not options.check:
        write()
        return 0 if options.bundle is None else compile_all(options.bundle, options.jobs)
    texts = differences()
    print(
        "\n\n".join(texts) if texts else f"{len(fresh())} generated sources are as a fresh render makes them"
    )
    if texts:
        print("\nrun: python scripts/pregenerate.py")
    return 1 if texts else 0


if __name__ == "__main__":
    sys.exit(main())
