"""`mlagen show`: the plan of one kernel, its source or its machine code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mlagen.bounds import limiters, pipe_bounds
from mlagen.cli.common import json_option, print_json, table
from mlagen.plan import make_plan
from mlagen.plan.model import Plan
from mlagen.render import render
from mlagen.resolve import resolve
from mlagen.spec import Arch, DType, KernelSpec


@click.command("show")
@click.argument("name", required=False)
@click.option("--why", is_flag=True, help="Print which kernel a call gets, and the measurements behind it.")
@click.option("--heads", type=click.IntRange(1, 128), default=128, help="With --why: heads of the call.")
@click.option("--s-q", "s_q", type=click.IntRange(min=1), default=1, help="With --why: tokens a row.")
@click.option("--page-size", type=int, default=64, help="With --why: tokens in a page.")
@click.option("--dtype", type=click.Choice(["bf16", "fp16"]), default="bf16", help="With --why.")
@click.option("--source", is_flag=True, help="Print the rendered source.")
@click.option("--ptx", is_flag=True, help="Print the PTX; builds the kernel if needed.")
@click.option("--sass", is_flag=True, help="Print the machine code; builds the kernel if needed.")
@click.option("--profile", is_flag=True, help="Count instructions and bytes of one KV block on the emulator.")
@json_option
def command(
    name: str | None,
    why: bool,
    heads: int,
    s_q: int,
    page_size: int,
    dtype: str,
    source: bool,
    ptx: bool,
    sass: bool,
    profile: bool,
    as_json: bool,
) -> None:
    """Show roles, registers, barriers, shared-memory map, parameters and launch of a kernel.

    With --why: which kernel a call gets that names none, for the numbers of NAME or of the options.
    """
    if why:
        _why(name, heads, s_q, page_size, dtype, as_json)
        return
    if name is None:
        raise click.UsageError("a kernel name is needed; `mlagen list` shows them, and --why needs none")
    spec = resolve(name)
    if profile:
        _profile(spec, as_json)
        return
    plan = make_plan(spec)
    texts: dict[str, str] = {"source": render(plan)} if source else {}
    if ptx or sass:
        from mlagen.build import load_artifact
        from mlagen.sass import disassemble

        artifact = load_artifact(spec)
        texts |= {"ptx": artifact.ptx.decode()} if ptx else {}
        texts |= {"sass": disassemble(artifact.cubin)} if sass else {}
    if as_json:
        print_json({"name": spec.name, **_as_json(plan), **texts})
    elif texts:
        click.echo("\n".join(texts.values()), nl=False)
    else:
        _print(plan)


def _why(name: str | None, heads: int, s_q: int, page_size: int, dtype: str, as_json: bool) -> None:
    from mlagen import driver, heuristics
    from mlagen.errors import DeviceError

    given = None if name is None else resolve(name)
    if given is not None:
        heads, page_size, dtype = given.h_q, given.page_size, given.q_dtype.value
    try:
        gpu = driver.gpu(0)
        arch, device = heuristics.arch_of(gpu), gpu.name
    except DeviceError:
        arch, device = Arch.SM_90A if given is None else given.arch, ""
    choice = heuristics.pick(arch, device, DType(dtype), heads, page_size, s_q)
    chosen = choice.spec == given
    if as_json:
        row = heuristics.as_json(choice.table)["rows"][choice.table.rows.index(choice.row)]
        table = {key: value for key, value in heuristics.as_json(choice.table).items() if key != "rows"}
        print_json(
            {"kernel": choice.spec.name, "row": row, "table": {**table, "source": choice.table.source}}
        )
        return
    click.echo(choice.why())
    if given is not None:
        text = "it is the kernel of a plain call" if chosen else "a plain call gets the one above instead"
        click.echo(f"asked   {given.name}: {text}")


def _profile(spec: KernelSpec, as_json: bool) -> None:
    from mlagen.emu.verify import kernel_profile

    counted, blocks = kernel_profile(spec)
    if as_json:
        print_json({"name": spec.name, "blocks": blocks, **counted.as_dict()})
    else:
        click.echo(f"{spec.name}\n{counted.text(blocks)}")


def _as_json(plan: Plan) -> dict[str, Any]:
    value = asdict(plan)
    value["spec"] |= {key: str(value["spec"][key]) for key in ("arch", "q_dtype", "kv_dtype")}
    return {**value, "smem_free": plan.smem_free}


def _print_bounds(plan: Plan) -> None:
    bounds = pipe_bounds(plan)
    if not bounds:
        return
    table(
        "least clocks of a multiprocessor for 128 keys (not measured)",
        ("pipe", "work", "a clock", "clocks", "rate from"),
        [
            (
                row.pipe,
                f"{row.work:.0f} {row.rate.unit}",
                "-".join(f"{rate:g}" for rate in dict.fromkeys((row.rate.low, row.rate.high))),
                "-".join(dict.fromkeys(f"{clocks:.0f}" for clocks in row.clocks)),
                row.rate.source,
            )
            for row in bounds
        ],
    )
    fast, slow = limiters(bounds)
    click.echo(f"limit: {fast} if the uncertain rates are at their high ends, {slow} at their low ends\n")


def _print(plan: Plan) -> None:
    spec, launch = plan.spec, plan.launch
    click.echo(plan.name)
    click.echo(
        f"spec    arch={spec.arch} q={spec.q_dtype} kv={spec.kv_dtype} h_q={spec.h_q} "
        f"page_size={spec.page_size} max_split={spec.max_split} cta_group={spec.cta_group} {spec.tuning.text}"
    )
    click.echo(
        f"launch  threads={launch.threads} cluster={launch.cluster} cooperative={launch.cooperative} "
        f"registers={launch.registers}"
    )
    click.echo(f"budget  smem={plan.smem_bytes} of {plan.smem_limit} B ({plan.smem_free} free)")
    table(
        "roles",
        ("role", "warps", "registers", "function"),
        [(row.name, f"{row.first_warp}..{row.last_warp}", row.registers, row.function) for row in plan.roles],
    )
    table(
        "mbarriers",
        ("barrier", "stages", "arrivals", "bytes", "from", "to", "one phase means"),
        [
            (row.name, row.stages, row.arrivals, row.tx_bytes, row.producer, row.consumer, row.meaning)
            for row in plan.mbarriers
        ],
    )
    table(
        "named barriers",
        ("barrier", "id", "threads", "meaning"),
        [(row.name, row.id, row.threads, row.meaning) for row in plan.named_barriers],
    )
    table(
        "shared memory",
        ("region", "offset", "bytes", "align", "lifetime"),
        [(row.name, row.offset, row.nbytes, row.align, row.lifetime) for row in plan.smem],
    )
    if plan.tmem:
        table(
            "tensor memory",
            ("region", "columns", "meaning"),
            [(row.name, f"{row.first_column}..{row.last_column}", row.meaning) for row in plan.tmem],
        )
        _print_bounds(plan)
    table(
        f"parameters ({plan.params_bytes} B)",
        ("field", "type", "offset", "meaning"),
        [(row.name, row.cpp_type, row.offset, row.meaning) for row in plan.params],
    )
    table(
        "tensor maps",
        ("map", "box, innermost first", "swizzle", "meaning"),
        [(row.name, " x ".join(map(str, row.box)), row.swizzle, row.meaning) for row in plan.tensor_maps],
    )
    table(
        "constants",
        ("constant", "value", "meaning"),
        [(row.name, row.value, row.meaning) for row in plan.constants],
    )
