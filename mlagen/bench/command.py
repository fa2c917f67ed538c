"""The options of `mlagen bench`."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from mlagen import __version__, driver
from mlagen.bench import cases as bench_cases
from mlagen.bench.measure import Measurement, measure
from mlagen.errors import DeviceError

FAILED = 1


@click.command("bench")
@click.option(
    "--case", "names", multiple=True, metavar="NAME", help="A case such as b128k4096h128; may be repeated."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(sorted(bench_cases.GROUPS)),
    help="A list of cases; without --case and --group: short.",
)
@click.option(
    "--ours", "cta_groups", default="1,2", show_default=True, help="CTA groups of our kernels: 1, 2 or 1,2."
)
@click.option(
    "--max-split", type=click.IntRange(1, 256), default=64, show_default=True, help="Of our kernels."
)
@click.option(
    "--baselines", default="fa3", show_default=True, help="FlashInfer backends with commas, or none."
)
@click.option("--device", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the GPU.")
@click.option(
    "--pause", type=float, default=0.4, show_default=True, help="Seconds of rest before each burst."
)
@click.option(
    "--sustain", type=float, default=0.0, show_default=True, help="Seconds of a long run, 0 for none."
)
@click.option(
    "--output", type=click.Path(path_type=Path), default=None, help="Append JSON lines to this file."
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines in place of the table.")
def command(
    names: tuple[str, ...],
    groups: tuple[str, ...],
    cta_groups: str,
    max_split: int,
    baselines: str,
    device: int,
    pause: float,
    sustain: float,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure whole decode steps: our kernels and baselines, each checked against fp64 before it is timed.

    Fails if one of our kernels is wrong, and without a GPU.
    """
    chosen = [bench_cases.parse(name) for name in all_names(names, groups)]
    kinds = parse_groups(cta_groups)
    gpu = driver.gpu(device)
    rows = run(chosen, kinds, max_split, parse_baselines(baselines), gpu, pause, sustain, output, as_json)
    if not as_json:
        from rich.console import Console

        from mlagen.bench.report import table

        Console().print(table(rows))
    if any(row.error for row in rows if row.subject.startswith("mlagen")):
        sys.exit(FAILED)


def all_names(names: tuple[str, ...], groups: tuple[str, ...]) -> list[str]:
    """Case names in the order given, each once."""
    found = list(names)
    for group in groups or (() if names else ("short",)):
        found += bench_cases.GROUPS[group]
    return list(dict.fromkeys(found))


def parse_groups(text: str) -> list[int]:
    """CTA groups from "1,2".

    Raises:
        click.BadParameter: something else.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or any(part not in ("1", "2") for part in parts):
        raise click.BadParameter(f"--ours {text!r}; 1, 2 or 1,2 is needed")
    return [int(part) for part in dict.fromkeys(parts)]


def parse_baselines(text: str) -> tuple[str, ...]:
    """FlashInfer backends from "fa3,fa2"; none for "none"."""
    return tuple(part.strip() for part in text.split(",") if part.strip() and part.strip() != "none")


def run(
    chosen: list[bench_cases.BenchCase],
    cta_groups: list[int],
    max_split: int,
    wanted: tuple[str, ...],
    gpu: driver.Gpu,
    pause: float,
    sustain: float,
    output: Path | None,
    as_json: bool,
) -> list[Measurement]:
    """Measures every case on every subject and writes a line for each as it is done.

    Raises:
        DeviceError: torch cannot use the GPU.
    """
    import torch

    from mlagen.bench.data import Pool, make
    from mlagen.bench.roofline import machine_named
    from mlagen.bench.subjects import Ours, Subject, baselines

    if not torch.cuda.is_available():
        raise DeviceError(f"this torch ({torch.__version__}) was built without CUDA; install a CUDA build")
    torch.cuda.set_device(gpu.ordinal)
    torch.backends.cuda.matmul.allow_tf32 = False
    others, missing = baselines(wanted)
    for text in missing:
        click.echo(text, err=True)
    subjects: list[Subject] = [*(Ours(group, max_split) for group in cta_groups), *others]
    machine, about = machine_named(gpu.name), surroundings(gpu)
    pool = Pool(torch.device("cuda", gpu.ordinal))
    rows = []
    for case in sorted(chosen, key=lambda case: case.dtype):
        data = make(case, pool)
        for subject in subjects:
            row = measure(subject, data, machine, device=gpu.ordinal, pause=pause, sustain=sustain)
            rows.append(row)
            line = json.dumps({**row.as_dict(), **about})
            if output is not None:
                with output.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            if as_json:
                click.echo(line)
            else:
                click.echo(f"{row.case} {row.subject}: {_short(row)}", err=True)
    return rows


def _short(row: Measurement) -> str:
    return row.error or (f"{row.timing.median:.1f} us" if row.timing is not None else "-")


def surroundings(gpu: driver.Gpu) -> dict[str, Any]:
    """What a number depends on besides the kernel: GPU, driver, torch, Python, version and commit of
    mlagen.
    """
    import torch

    def output_of(*command: str) -> str:
        try:
            return subprocess.run(
                command, capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return ""

    here = Path(__file__).resolve().parent
    return {
        "gpu": gpu.name,
        "driver": output_of(
            "nvidia-smi", f"--id={gpu.ordinal}", "--query-gpu=driver_version", "--format=csv,noheader"
        ),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "mlagen": __version__,
        "commit": output_of("git", "-C", str(here), "rev-parse", "--short=12", "HEAD"),
    }
