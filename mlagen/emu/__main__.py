"""`python -m mlagen.emu run kernel.ptx ...`: any PTX on the emulator; `mutate NAME`: a mutation score.

    python -m mlagen.emu run saxpy.ptx --grid 4 --block 128 --arg f32:2.0 --arg x.npy --arg
    zeros:512:f32=y.npy --arg i32:512

Arguments, one for each kernel parameter, in order:

    i32:7  u64:9  f32:1.5               a number
    x.npy                               an array; the kernel gets its address
    zeros:512:f32                       a zeroed array; `poison:512:f32` one that counts as never written
    ...=y.npy                           after an array: write it to a file when the kernel has ended
    map:a.npy,box=64x64,swizzle=128     a tensor map over an array, innermost dimension first; also
                                        type=BFLOAT16, extents=64x512, strides=128 (bytes, without the
                                        innermost), fill=nan
    struct:params.bin                   the bytes of a by-value struct; `struct:160` is 160 zeros
    struct:160@0:map:...@128:x.npy      with other arguments at byte offsets of it

An array that is named twice is one array.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mlagen.emu import mutation_command
from mlagen.emu.checks import CheckOptions
from mlagen.emu.emulator import Emulator, GlobalArray, LaunchResult
from mlagen.emu.profile import profile
from mlagen.emu.run_arguments import Arguments
from mlagen.errors import MlagenError


def _extents(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mlagen.emu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    mutation_command.add_parser(commands)
    run = commands.add_parser(
        "run",
        help="run one kernel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("ptx", type=Path, help="PTX file")
    run.add_argument("--entry", help="kernel name, or a part of it that only one kernel has")
    run.add_argument("--grid", type=_extents, default=(1,), metavar="X[,Y[,Z]]")
    run.add_argument("--block", type=_extents, default=(32,), metavar="X[,Y[,Z]]")
    run.add_argument("--cluster", type=_extents, metavar="X[,Y[,Z]]", help="default: as the kernel asks for")
    run.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    run.add_argument(
        "--arg", action="append", default=[], metavar="ARG", help="one for each parameter, in order"
    )
    run.add_argument(
        "--schedule", action="append", default=[], metavar="NAME",
        help="eager (default), lazy, random:SEED, starve:WARP or lockstep; several compare their results",
    )  # fmt: skip
    run.add_argument(
        "--fast", action="store_true", help="tensor-core products with float32 matmul, not bit-exact"
    )
    run.add_argument("--no-checks", action="store_true", help="no race, proxy and never-written checks")
    run.add_argument("--profile", action="store_true", help="instructions by class, bytes moved")
    run.add_argument("--json", action="store_true", help="results as JSON")
    return parser


def _run_once(
    options: argparse.Namespace, schedule: str
) -> tuple[LaunchResult, list[GlobalArray], dict[Path, GlobalArray]]:
    emulator = Emulator(options.ptx.read_text())
    given = Arguments(emulator)
    args = [given.read(text) for text in options.arg]
    off = CheckOptions(race=False, proxy=False, unwritten=False, strict=False)
    result = emulator.launch(
        options.entry,
        grid=options.grid,
        block=options.block,
        cluster=options.cluster,
        dynamic_shared=options.shared,
        args=args,
        schedule=schedule,
        checks=off if options.no_checks else CheckOptions(),
        exact=not options.fast,
        fail_on_findings=False,
    )
    return result, emulator.arrays, given.files


def _run(options: argparse.Namespace) -> int:
    """Run under every schedule that was asked for; 1 if there are findings or results differ."""
    rows: list[dict[str, Any]] = []
    first: list[bytes] | None = None
    failed = False
    for schedule in options.schedule or ["eager"]:
        result, arrays, files = _run_once(options, schedule)
        contents = [a.bytes.tobytes() for a in arrays]
        first = first or contents
        row: dict[str, Any] = {
            "schedule": schedule,
            "instructions": result.instructions,
            "seconds": round(result.seconds, 3),
            "same_result": contents == first,
            "findings": [{"kind": f.kind, "message": f.message, "where": f.where, "times": n}
                         for f, n in result.findings.counts.items()],
        }  # fmt: skip
        if options.profile:
            row["profile"] = profile(result.machine).as_dict()
        rows.append(row)
        failed = failed or bool(result.findings.errors) or contents != first
        for path, array in files.items():
            np.save(path, array.data)
        if not options.json:
            same = "" if contents == first else "   RESULT DIFFERS from the first schedule"
            print(f"{schedule}: {result.instructions} warp-instructions in {result.seconds:.3f} s{same}")
            print(result.findings.text() or "no findings")
            if options.profile:
                print(profile(result.machine).text())
    if options.json:
        print(json.dumps(rows, indent=1))
    return int(failed)


def main(arguments: list[str] | None = None) -> int:
    """The command line; exit status 0, 1 for findings or differing results, 2 for a fault of the kernel."""
    options = _parser().parse_args(arguments)
    try:
        return mutation_command.run(options) if options.command == "mutate" else _run(options)
    except (MlagenError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
