"""The options of `mlagen bench`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mlagen import driver
from mlagen.bench import cases as bench_cases
from mlagen.bench import session
from mlagen.bench.clock import Effort
from mlagen.bench.peers import PEERS, peers
from mlagen.bench.results import Line, is_ours, read_lines, summary, write_summary
from mlagen.bench.subjects import ours
from mlagen.errors import MlagenError

FAILED = 1
OUR_KINDS = ("auto", "1", "2")
QUICK = Effort(pause=0.2, bursts=1)
SUMMARY_SUITE = "hopper28"

_SUITES_HELP = "; ".join(f"{name}: {text}" for name, (text, _) in bench_cases.SUITES.items())
_OPTIONS = (
    click.option(
        "--suite",
        "suites",
        multiple=True,
        type=click.Choice(list(bench_cases.SUITES)),
        help=f"A list of cases; may be repeated. {_SUITES_HELP}. Without --case and --suite: short.",
    ),
    click.option(
        "--case",
        "names",
        multiple=True,
        metavar="NAME",
        help="A case such as b128k4096h128; may be repeated.",
    ),
    click.option("--quick", is_flag=True, help="The suite quick with one burst: under two minutes."),
    click.option(
        "--ours",
        "kinds",
        default="auto",
        show_default=True,
        help="Our kernels, with commas: auto (the one that a call gets), 1 (1SM), 2 (2SM), or none.",
    ),
    click.option("--max-split", type=click.IntRange(1, 256), default=None, help="Of our kernels."),
    click.option(
        "--peers",
        "peer_names",
        default=",".join(PEERS),
        show_default=True,
        help="Other implementations, with commas, or none; what is not installed is left out.",
    ),
    click.option(
        "--device", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the GPU."
    ),
    click.option(
        "--pause", type=float, default=None, help="Seconds of rest before each burst; 0.4 if absent."
    ),
    click.option("--bursts", type=click.IntRange(1, 20), default=None, help="Bursts of a case; 2 if absent."),
    click.option(
        "--sustain", type=float, default=None, help="Seconds of a long run; 0 if absent, 2.5 in sustained."
    ),
    click.option("--host", is_flag=True, help="Also time the host's part of an eager call; on in host."),
    click.option("--traffic", is_flag=True, help="Count the bytes moved with ncu, where it is installed."),
    click.option("--no-ceilings", is_flag=True, help="Do not measure matmul and read bandwidth."),
    click.option("--budget", type=float, default=0.0, help="Seconds after which no further case is begun."),
    click.option("--commit", default=None, help="Commit for the record, where git cannot tell it."),
    click.option("--compile-only", is_flag=True, help="Build the kernels that would be measured, and end."),
    click.option(
        "--load",
        "loaded",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Report lines of an earlier --output in place of measuring; needs no GPU.",
    ),
    click.option(
        "--output", type=click.Path(path_type=Path), default=None, help="Append JSON lines to this file."
    ),
    click.option(
        "--summary",
        "summary_file",
        type=click.Path(path_type=Path),
        default=None,
        help="Write rows, ratios and their geometric mean to this file.",
    ),
    click.option(
        "--plots", type=click.Path(path_type=Path), default=None, help="Draw plots into this folder."
    ),
    click.option("--json", "as_json", is_flag=True, help="JSON lines in place of the tables."),
)


def _with_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command("bench")
@_with_options
def command(**given: Any) -> None:
    """Measure whole decode steps: our kernels and peers, each checked against fp64 before it is timed.

    Fails if one of our kernels is wrong, and without a GPU.
    """
    suites = ("quick",) if given["quick"] and not given["suites"] else given["suites"]
    names = all_names(given["names"], suites)
    if given["loaded"]:
        lines = [line for path in given["loaded"] for line in read_lines(path)]
    else:
        lines = measured(given, suites, names)
        if given["compile_only"]:
            return
    wanted = names if given["names"] or suites else list(bench_cases.suite_cases(SUMMARY_SUITE))
    conclude(given, lines, wanted)
    if any(line.get("error") and is_ours(line) for line in lines if line.get("kind") == "time"):
        sys.exit(FAILED)


def all_names(names: Sequence[str], suites: Sequence[str]) -> list[str]:
    """Case names in the order given, each once."""
    found = list(names)
    for suite in suites or (() if names else ("short",)):
        found += bench_cases.suite_cases(suite)
    return list(dict.fromkeys(found))


def parse_list(text: str, choices: Sequence[str], option: str) -> tuple[str, ...]:
    """The parts of "a,b", each one of the choices; nothing for "none".

    Raises:
        click.BadParameter: something else.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if parts == ["none"]:
        return ()
    wrong = [part for part in parts if part not in choices]
    if wrong or not parts:
        raise click.BadParameter(f"{option} {text!r}; none, or some of {', '.join(choices)} is needed")
    return tuple(dict.fromkeys(parts))


def effort_of(given: dict[str, Any], suites: Sequence[str]) -> Effort:
    """How long each case is measured."""
    base = QUICK if given["quick"] else Effort()
    longest = max((bench_cases.SUSTAIN_SECONDS.get(suite, 0.0) for suite in suites), default=0.0)
    return Effort(
        pause=base.pause if given["pause"] is None else given["pause"],
        bursts=given["bursts"] or base.bursts,
        sustain=longest if given["sustain"] is None else given["sustain"],
    )


def measured(given: dict[str, Any], suites: Sequence[str], names: Sequence[str]) -> list[Line]:
    """Builds, measures, and returns the lines.

    Raises:
        DeviceError: no GPU.
        InputError, click.BadParameter: an option does not fit.
        MlagenError: a kernel cannot be built.
    """
    chosen = [bench_cases.parse(name) for name in names]
    kinds = parse_list(given["kinds"], OUR_KINDS, "--ours")
    wanted = parse_list(given["peer_names"], tuple(PEERS), "--peers")
    gpu = driver.gpu(given["device"])
    subjects = ours(kinds, given["max_split"], gpu)
    build_kernels(session.kernels(chosen, subjects))
    if given["compile_only"]:
        return []
    found, missing = peers(wanted)
    for text in missing:
        click.echo(text, err=True)
    lines: list[Line] = []
    write = session.line_writer(given["output"], given["as_json"], click.echo)

    def emit(line: Line) -> None:
        lines.append(line)
        write(line)
        if line["kind"] == "time" and not given["as_json"]:
            click.echo(session.short(line), err=True)

    order = session.Order(
        cases=chosen,
        ours=subjects,
        peers=found,
        gpu=gpu,
        effort=effort_of(given, suites),
        host=given["host"] or any(suite in bench_cases.HOST_SUITES for suite in suites),
        ceilings=not given["no_ceilings"],
        command=" ".join(["mlagen", "bench", *sys.argv[2:]]),
        emit=emit,
        commit=given["commit"],
        budget=given["budget"],
    )
    for _ in session.run(order):
        pass
    if given["traffic"]:
        add_traffic(lines, names, kinds, wanted, gpu.ordinal, emit)
    return lines


def build_kernels(specs: Sequence[Any]) -> None:
    """Compiles what is not cached, all cores at once.

    Raises:
        MlagenError: one of them cannot be built.
    """
    from mlagen.build import build

    report = build(specs)
    if report.failed:
        first = report.failed[0]
        raise MlagenError(f"{len(report.failed)} kernel(s) cannot be built; {first.name}: {first.error}")


def add_traffic(
    lines: list[Line],
    names: Sequence[str],
    kinds: Sequence[str],
    wanted: Sequence[str],
    device: int,
    emit: Any,
) -> None:
    """A line with the counted bytes for each case and subject, or one with the reason why there are none."""
    from mlagen.bench.traffic import count_traffic

    needed = {
        (line["case"], line["subject"]): line["bytes_needed"] for line in lines if line["kind"] == "time"
    }
    counts, problem = count_traffic(names, kinds, wanted, device)
    if problem:
        emit({"kind": "traffic", "error": problem})
    for (case, subject), counted in counts.items():
        emit(
            {
                "kind": "traffic",
                "case": case,
                "subject": subject,
                "bytes_needed": needed.get((case, subject)),
                **counted,
            }
        )


def conclude(given: dict[str, Any], lines: Sequence[Line], names: Sequence[str]) -> None:
    """Tables, summary and plots of some lines."""
    from mlagen.bench import report

    made = summary(lines, names)
    if given["summary_file"] is not None:
        write_summary(given["summary_file"], made)
    if not given["as_json"]:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 170).print(report.table(lines))
        for line in lines:
            if line.get("kind") == "ceilings":
                click.echo(report.ceilings_text(line))
            if line.get("kind") == "traffic":
                click.echo(report.traffic_text(line))
        for text in report.shares(lines):
            click.echo(text)
        click.echo(report.summary_text(made))
    if given["plots"] is not None:
        from mlagen.bench.plots import write_plots

        for path in write_plots(lines, given["plots"]):
            click.echo(f"drawn: {path}", err=True)
