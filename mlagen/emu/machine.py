"""The machine: all CTAs of a launch, the main loop, divergence, deadlock detection."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlagen.emu.checks import Checks
from mlagen.emu.clocks import ClockDomain
from mlagen.emu.codegen import Block, Program, describe
from mlagen.emu.control import step_control
from mlagen.emu.cta import Cluster, Cta, Group, Warp, Warpgroup
from mlagen.emu.deadlock import DeadlockError, deadlock_text
from mlagen.emu.findings import LINTS, Finding, Findings, SanitizerError
from mlagen.emu.interfaces import Array, AsyncOp, EmulatorError, Wait
from mlagen.emu.lanes import all_true, any_true
from mlagen.emu.launch_config import LaunchConfig
from mlagen.emu.memory import GlobalMemory
from mlagen.emu.placement import RESERVED_SHARED, layout
from mlagen.emu.ptx import Function, Module
from mlagen.emu.schedule import SPIN_QUANTUM, AsyncEngine, Schedule

IDLE_ROUNDS = 400
"""Rounds without any change of state after which the launch counts as dead."""

TIMEOUT_ROUNDS = (3, 9, 27)
"""Idle rounds in which waits that may time out (mbarrier.try_wait) do."""


class Machine:
    """One launch of one kernel."""

    def __init__(
        self,
        module: Module,
        function: Function,
        memory: GlobalMemory,
        params: bytes,
        config: LaunchConfig,
        program: Program | None = None,
    ) -> None:
        self.memory = memory
        self.names = config.names
        self.config = config
        self.grid, self.block, self.cluster_shape = config.grid, config.block, config.cluster
        self.dynamic_shared = config.dynamic_shared
        self.exact = config.exact
        self.reserved_shared = RESERVED_SHARED
        symbols, base, local_size = layout(module, function, memory)
        self.names.dynamic_base = base
        self.shared_size = base + config.dynamic_shared
        self.compiled = program or Program(module, function, symbols, local_size)
        self.program = self.compiled.patched(config.patch) if config.patch else self.compiled
        self.findings = Findings()
        memory.on_unwritten = self._unwritten if config.checks.unwritten else None
        self.param_base = memory.allocate_array(max(len(params), 16), "parameters", _bytes(params, 16))
        self.engine = AsyncEngine()
        self.progress = 0
        self.scratch: dict[str, Any] = {}
        self.current: Warp | None = None
        self.current_op: AsyncOp | None = None
        self.rounds = 0
        self._make_ctas()
        self.schedule = Schedule.parse(config.schedule, self)

    def _make_ctas(self) -> None:
        grid, cluster = self.grid, self.cluster_shape
        if any(g % c for g, c in zip(grid, cluster, strict=True)):
            raise EmulatorError(f"grid {grid} is no multiple of cluster {cluster}")
        threads = self.block[0] * self.block[1] * self.block[2]
        warps = -(-threads // 32)
        if not 1 <= threads <= 1024:
            raise EmulatorError(f"block {self.block} has {threads} threads, 1..1024 allowed")
        self.ctas_total = grid[0] * grid[1] * grid[2]
        # two for a warp, and its pipes: bulk stores, and tcgen05.ld and st where the kernel has them
        entries = 5 if any(ins.op == "tcgen05" for ins in self.program.instructions) else 3
        self.domain = ClockDomain(self.ctas_total * (entries * warps + -(-warps // 4) + 1))
        self.checks = Checks(self, self.config.checks, self.domain)
        self.ctas: list[Cta] = []
        self.clusters: list[Cluster] = []
        outer = [
            (x, y, z)
            for z in range(grid[2] // cluster[2])
            for y in range(grid[1] // cluster[1])
            for x in range(grid[0] // cluster[0])
        ]
        inner = [(x, y, z) for z in range(cluster[2]) for y in range(cluster[1]) for x in range(cluster[0])]
        for origin in outer:
            members: list[Cta] = []
            for rank, step in enumerate(inner):
                x, y, z = (o * c + s for o, c, s in zip(origin, cluster, step, strict=True))
                members.append(Cta(self, x + grid[0] * (y + grid[1] * z), rank, (x, y, z)))
            group = Cluster(members)
            for cta in members:
                cta.cluster, cta.group = members, group
                self._make_warps(cta, threads)
            self.clusters.append(group)
            self.ctas += members
        self.warps = [w for cta in self.ctas for w in cta.warps]

    def _make_warps(self, cta: Cta, threads: int) -> None:
        cta.warps = [Warp(self, cta, i, threads) for i in range(-(-threads // 32))]
        for first in range(0, len(cta.warps), 4):
            group = cta.warps[first : first + 4]
            actor = self.domain.actor(
                f"wgmma of CTA {cta.index} warps {first}..{first + len(group) - 1}", "async"
            )
            warpgroup = Warpgroup(group, actor)
            cta.warpgroups.append(warpgroup)
            for warp in group:
                warp.warpgroup = warpgroup

    # ---- what instructions use

    def post(self, op: AsyncOp) -> None:
        """Hand work to the asynchronous engine."""
        self.progress += 1
        if self.schedule.at_post(op):
            self._run_op(op)
        else:
            self.engine.add(op)

    def param_address(self, offset: int, kind: Any) -> Array:
        """The address of a kernel parameter."""
        return np.full(32, self.param_base + offset, kind)

    def clock(self, kind: Any) -> Array:
        """A clock that counts rounds."""
        return np.full(32, self.rounds * 100, kind)

    def report(self, kind: str, message: str, warp: Warp | None = None) -> None:
        """A finding of a sanitizer."""
        warp = warp or self.current
        op = self.current_op
        place: object = (
            None if kind == "note" else op.name if op is not None else warp.at if warp is not None else None
        )
        self.findings.add(Finding(kind, message, self.location(warp)), place)
        if self.config.stop_at_finding and kind not in LINTS:
            raise SanitizerError(self.findings)

    def location(self, warp: Warp | None) -> str:
        """Where a warp is: CTA, warp, role, PTX line, source line."""
        if self.current_op is not None:
            return f"asynchronous {self.current_op.name}"
        if warp is None:
            return "the launch"
        ins = self.program.instructions[min(warp.at, len(self.program.instructions) - 1)]
        return f"{self.names.warp(warp.cta.index, warp.id)}, {describe(ins)}"

    def instruction_count(self) -> int:
        """Warp-instructions executed so far."""
        blocks = self.program.blocks
        return sum((blocks[pc].end - pc) * n for w in self.warps for pc, n in w.block_counts.items())

    def _unwritten(self, offset: int, places: Array) -> None:
        self.unwritten(self.memory.where(offset), places, self.memory.element)

    def unwritten(self, place: str, places: Array, element: tuple[int, int] = (0, 1)) -> None:
        """Never-written bytes were read. places: which of the executing lanes read some (or elements of a
        larger access). element: of a vector load, and how many it has.

        Ordinary loads taint their result; tensor operations turn the poison into NaNs, which is only noted;
        other reads are findings.
        """
        op, warp = self.current_op, self.current
        if op is not None:
            kind = "note" if op.name.startswith(("wgmma", "tcgen05", "mma")) else "unwritten"
            self.report(kind, f"read of {place}, which nobody has written")
        elif warp is not None and warp.executing is not None and len(places) == int(warp.executing.sum()):
            hit = np.zeros(32, np.bool_)
            hit[warp.executing] = places
            warp.taint.loaded(hit, place, element)
        else:
            self.report("unwritten", f"read of {place}, which nobody has written")

    # ---- the main loop

    def run(self) -> Findings:
        """Run to the end. EmulatorError on undefined behaviour, SanitizerError for findings (see
        LaunchConfig).
        """
        with np.errstate(all="ignore"):
            self._run()
        if self.config.fail_on_findings and self.findings.errors:
            raise SanitizerError(self.findings)
        return self.findings

    def _run(self) -> None:
        live, idle = list(self.warps), 0
        while live:
            before = self.progress
            for warp in self.schedule.order(live):
                self._turn(warp)
            self.schedule.end_of_round(self)
            live = [w for w in live if not w.done]
            self.rounds += 1
            if self.config.max_rounds and self.rounds > self.config.max_rounds:
                raise EmulatorError(f"the launch did not end within {self.config.max_rounds} rounds")
            if self.progress != before or self.run_async(limit=1):
                idle = 0
            elif live and not any(self.schedule.held(w) and w.ready() for w in live):
                idle += 1
                self._idle(live, idle)
        while self.run_async(limit=1 << 30):
            pass
        if len(self.engine):
            raise EmulatorError(
                f"asynchronous work never became ready: {', '.join(self.engine.pending()[:5])}"
            )

    def _turn(self, warp: Warp) -> None:
        """One warp's turn."""
        if self.schedule.skips(warp):
            return
        groups = warp.groups
        if len(groups) == 1:
            wait = groups[0].wait
            if wait is not None and not wait.ready():
                return
        self.current = warp
        before = self.progress
        try:
            self._slice(warp, self.schedule.quantum(warp))
        except EmulatorError as error:
            raise (
                type(error)(f"{error}\n    at {self.location(warp)}")
                if not isinstance(error, SanitizerError)
                else error
            ) from None
        warp.quantum = 0 if self.progress != before else SPIN_QUANTUM
        self.current = None
        self.schedule.between(self)

    def run_async(self, limit: int) -> int:
        """Run up to `limit` queued ops; how many ran."""
        done = 0
        while done < limit and (ready := self.engine.candidates()):
            op = self.schedule.pick(ready)
            self.engine.take(op)
            self._run_op(op)
            done += 1
        return done

    def _run_op(self, op: AsyncOp) -> None:
        outer, self.current_op = self.current_op, op
        self.progress += 1
        try:
            op.run()
        except SanitizerError:
            raise
        except EmulatorError as error:
            raise EmulatorError(f"{error}\n    in asynchronous {op.name}") from None
        finally:
            self.current_op = outer

    def _slice(self, warp: Warp, quantum: int) -> None:
        """Run blocks of a warp until its turn ends or it sleeps."""
        blocks, counts = self.program.blocks, warp.block_counts
        groups = warp.groups
        for _ in range(quantum):
            group = groups[0] if len(groups) == 1 and groups[0].wait is None else self._choose(warp)
            if group is None:
                return
            pc = group.pc
            block = blocks.get(pc) or self.program.block(pc)
            counts[pc] = counts.get(pc, 0) + 1
            if warp.taint.slots and block.predicate >= 0:
                warp.taint.check_slot(block.predicate, group.mask, "a branch or predicate")
            if block.control is not None:
                step_control(self, warp, group, block, block.control)
                if not warp.groups:
                    self._exit(warp)
                    return
            elif block.blocking is not None:
                self._step_blocking(warp, group, block.blocking.pc)
            else:
                masked = not group.full
                run = block.run[masked] or self.program.compile(block, masked)
                if warp.inflight and self._touches_inflight(warp, group, block):
                    continue
                run(warp, group.mask)
                warp.unfenced |= block.accumulators
                if warp.taint.events or warp.taint.slots:
                    warp.taint.after_block(self.program, pc, block.end, group.mask)
                group.pc = block.end

    def _touches_inflight(self, warp: Warp, group: Group, block: Block) -> bool:
        """Whether a block uses registers of unfinished wgmmas and has to sleep until they are done.

        Undefined in the ISA, and reported; compilers make such code wait.
        """
        bad = (block.touched & warp.inflight) | (block.stored & warp.inflight_read)
        if not bad or warp.on_touch is None:
            return False
        wait: Wait | None = warp.on_touch(warp, frozenset(bad))
        if wait is None or wait.ready():
            return False
        group.wait = wait
        return True

    def _choose(self, warp: Warp) -> Group | None:
        """The group to run next: lowest pc first, equal pcs merged; sleeping groups wake up. None when all
        sleep.
        """
        groups = warp.groups
        if not groups:
            self._exit(warp)
            return None
        for group in groups:
            if group.wait is not None and group.wait.ready():
                self.progress += 1
                self._wake(warp, group, group.wait.finish())
        if len(groups) > 1:
            groups.sort(key=lambda g: g.pc)
            i = 0
            while i + 1 < len(groups):
                first, second = groups[i], groups[i + 1]
                if first.pc == second.pc and first.wait is None and second.wait is None:
                    first.mask = first.mask | second.mask
                    first.full = all_true(first.mask)
                    del groups[i + 1]
                else:
                    i += 1
        for group in groups:
            if group.wait is None:
                return group
        return None

    def _step_blocking(self, warp: Warp, group: Group, pc: int) -> None:
        """Run an instruction that may put the group to sleep."""
        block = self.program.blocks[pc]
        lanes = group.mask
        if block.predicate >= 0:
            predicate = warp.registers[block.predicate]
            lanes = lanes & (~predicate if block.negated else predicate)
            if not any_true(lanes):
                group.pc = block.end
                return
        if warp.inflight and self._touches_inflight(warp, group, block):
            return
        group.waiting_lanes = lanes
        result = block.code(warp, lanes)
        if isinstance(result, Wait):
            if not result.ready():
                group.wait = result
                return
            result = result.finish()
        self._wake(warp, group, result)

    def _wake(self, warp: Warp, group: Group, result: Any) -> None:
        """Store the result of a blocking instruction and go on behind it."""
        block = self.program.blocks[group.pc]
        group.wait = None
        if block.finish is None:
            return
        block.finish(warp, group.waiting_lanes, result)
        group.pc = block.end

    def _exit(self, warp: Warp) -> None:
        if not warp.done:
            warp.done = True
            self.progress += 1
            warp.cta.warp_exited()

    # ---- no progress

    def _idle(self, live: list[Warp], idle: int) -> None:
        """Nothing changed in a round: time out waits that may, and after a while call it a deadlock."""
        spinning = [w for w in live if w.ready()]
        if idle in TIMEOUT_ROUNDS:
            for warp in live:
                for group in warp.groups:
                    if group.wait is not None and group.wait.give_up is not None:
                        self._wake(warp, group, group.wait.give_up())
        if idle > (IDLE_ROUNDS if spinning else TIMEOUT_ROUNDS[-1] + 1):
            raise DeadlockError(deadlock_text(self, live))


def _bytes(data: bytes, least: int) -> Array:
    return np.frombuffer(data.ljust(least, b"\0"), np.uint8)
