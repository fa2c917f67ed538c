"""The schedule of templates/include/mlagen/schedule.cuh in plain Python: which CTA does which keys of a row.

Written from the rules, not from the warp-level code: one row after another, no lanes, no chunks. The device's
own list (mlagen.schedule) must be the same, piece for piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlagen.launch_shape import LaunchShape
from mlagen.spec import KernelSpec
from mlagen.worklist import WorkPiece

BLOCK = 64
BLOCK_UNITS = 2
MERGE_COST = 5
LANES = 32


@dataclass(frozen=True)
class Row:
    """A row of one group on the line."""

    base: int
    cost: int
    blocks: int
    units: int
    cuts: int


@dataclass(frozen=True)
class Share:
    """What one team holds of a row, and who else holds some of it."""

    first_block: int
    end_block: int
    pieces: int
    index: int
    first_team: int


class Model:
    """The schedule of one launch.

    Args:
        spec: max_split, cta_group and piece cost.
        shape: division of the grid.
        lengths: keys of each row, not yet clamped.
        max_len: what they are clamped to.
        num_splits: None, a count, or one for each row.
    """

    def __init__(
        self,
        spec: KernelSpec,
        shape: LaunchShape,
        lengths: Sequence[int],
        max_len: int,
        num_splits: int | Sequence[int] | None = None,
    ) -> None:
        self.spec, self.shape, self.num_splits = spec, shape, num_splits
        self.lengths = [min(max(length, 0), max_len) for length in lengths]
        self.blocks = [-(-length // BLOCK) for length in self.lengths]
        self.balanced = num_splits is None
        self.alike = False
        starts = sum(self.start_units(self.cuts(row)) for row in range(len(lengths)))
        self.line_even = sum(self.blocks) * BLOCK_UNITS + starts
        last = sum(self.blocks) * self.block_units(shape.groups - 1) + starts
        total = (shape.groups - 1) * self.line_even + last
        self.span = max(-(-total // shape.teams), 1)
        if self.balanced:
            units = self.block_units(0) if shape.groups == 1 else BLOCK_UNITS
            longest = max(self.blocks, default=0) * units + self.start_units(1)
            self.span = max(self.span, -(-longest // spec.max_split), units)
            alike = len(set(self.blocks)) == 1 and self.blocks[0] > 0
            if alike and self.block_units(shape.groups - 1) == units:
                self._cut_alike(units)

    def _cut_alike(self, units: int) -> None:
        """Rows of equal length: the line counts pieces where that is expected to take no longer."""
        rows, blocks = len(self.blocks) * self.shape.groups, self.blocks[0]
        choices = [(each, self.shape.teams * each // rows) for each in range(1, LANES)]
        choices.append((-(-rows // self.shape.teams), 1))
        found = []
        for order, (each, most) in enumerate(choices):
            if most < 1:
                continue
            length = -(-blocks // min(most, blocks, self.spec.max_split))
            cuts = -(-blocks // length)
            met = min(each, (each - 1) // cuts + 2)
            merged = min(met, 2) if cuts > 1 else 0
            load = each * length * units + met * self.start_units(1) + merged * MERGE_COST * BLOCK_UNITS
            found.append((load, order, cuts, each))
        load, _, cuts, each = min(found)
        if load <= self.span + self.start_units(1) + 2 * MERGE_COST * BLOCK_UNITS:
            self.balanced, self.num_splits, self.span = False, cuts, each
            self.alike, self.line_even = True, len(self.blocks) * cuts

    def cuts(self, row: int) -> int:
        """Pieces asked for, within what is possible; 1 when balanced."""
        if self.num_splits is None:
            return 1
        asked = self.num_splits if isinstance(self.num_splits, int) else self.num_splits[row]
        return max(min(min(max(asked, 1), self.spec.max_split), self.blocks[row]), 1)

    def block_units(self, group: int) -> int:
        """Units of the line for one block: half where a pair splits the keys of a lone last tile."""
        shape = self.shape
        lone = self.spec.cta_group == 2 and shape.units_per_team == 1 and group == shape.groups - 1
        return 1 if lone and shape.tiles % 2 else BLOCK_UNITS

    def start_units(self, cuts: int) -> int:
        """Cost of starting a row that is cut into so many pieces."""
        return self.spec.tuning.piece_cost * BLOCK_UNITS * cuts

    def rows(self) -> list[tuple[int, int, Row]]:
        """(group, row, place on the line), in the order of the line."""
        found = []
        base = 0
        for group in range(self.shape.groups):
            assert base == group * self.line_even
            units = self.block_units(group)
            for row, blocks in enumerate(self.blocks):
                cuts = self.cuts(row)
                cost = cuts if self.alike else blocks * units + self.start_units(cuts)
                found.append((group, row, Row(base, cost, blocks, units, cuts)))
                base += cost
        return found

    def share(self, row: Row, team: int) -> Share | None:
        """What a team holds of a row; None for nothing."""
        if not (row.base < (team + 1) * self.span and row.base + row.cost > team * self.span):
            return None
        return self._balanced(row, team) if self.balanced else self._given(row, team)

    def _given(self, row: Row, team: int) -> Share | None:
        middles = [row.base + (2 * piece + 1) * row.cost // (2 * row.cuts) for piece in range(row.cuts)]
        low = sum(middle < team * self.span for middle in middles)
        high = sum(middle < (team + 1) * self.span for middle in middles)
        if high <= low:
            return None
        first, last = middles[0] // self.span, middles[-1] // self.span
        scattered = row.cost >= row.cuts * self.span
        return Share(
            first_block=low * row.blocks // row.cuts,
            end_block=high * row.blocks // row.cuts,
            pieces=row.cuts if scattered else last - first + 1,
            index=low if scattered else team - first,
            first_team=first,
        )

    def _balanced(self, row: Row, team: int) -> Share | None:
        span = self.span
        first, last = row.base // span, (row.base + row.cost - 1) // span
        head, tail = (first + 1) * span - row.base, row.base + row.cost - last * span
        over = last - first + 1 > self.spec.max_split
        drop_head = over and head <= tail
        drop_tail = over and not drop_head
        first += drop_head
        last -= drop_tail

        def block_at(position: int) -> int:
            return min(max((position - row.base - self.start_units(1)) // row.units, 0), row.blocks)

        def begin(index: int) -> int:
            if drop_head:
                return row.base + (row.cost - tail) * (index - first) // max(last - first, 1)
            if drop_tail:
                return row.base + head + (row.cost - head) * (index - first - 1) // max(last - first, 1)
            return index * span

        if row.blocks == 0:
            return Share(0, 0, 1, 0, first) if team == first else None
        holder = first
        while holder < last and block_at(begin(holder + 1)) == 0:
            holder += 1
        if not holder <= team <= last:
            return None
        return Share(
            first_block=0 if team == holder else block_at(begin(team)),
            end_block=row.blocks if team == last else block_at(begin(team + 1)),
            pieces=last - holder + 1,
            index=team - holder,
            first_team=holder,
        )

    def pieces(self) -> list[WorkPiece]:
        """The list that the read-back kernel makes, sorted."""
        found = []
        for group, row, place in self.rows():
            first = place.base // self.span
            last = (place.base + place.cost - 1) // self.span
            for team in range(first, min(last, self.shape.teams - 1) + 1):
                share = self.share(place, team)
                if share is not None:
                    found += self._of_team(group, row, team, share)
        return sorted(found)

    def _of_team(self, group: int, row: int, team: int, share: Share) -> list[WorkPiece]:
        found = []
        shape, pair = self.shape, self.spec.cta_group == 2
        for unit in range(shape.units_per_team):
            for rank in range(self.spec.cta_group):
                number = group * shape.units_per_team + unit
                splits = pair and number * 2 + 1 == shape.tiles
                tile = number * 2 if splits else number * self.spec.cta_group + rank
                if tile >= shape.tiles:
                    continue
                blocks = share.end_block - share.first_block
                front = -(-blocks // 2) if splits else blocks
                begin = share.first_block + (front if splits and rank == 1 else 0)
                count = blocks - front if splits and rank == 1 else front
                if count == 0 and splits and rank == 1:
                    continue
                cta = (team * shape.units_per_team + unit) * self.spec.cta_group + rank
                end = min((begin + count) * BLOCK, self.lengths[row])
                found.append(WorkPiece(row, tile, begin * BLOCK, end, cta, share.pieces == 1))
        return found

    def work_of_ctas(self) -> list[int]:
        """Blocks, and piece costs, that each CTA does."""
        work = [0] * self.shape.ctas
        for piece in self.pieces():
            work[piece.cta] += -(-(piece.last_key - piece.first_key) // BLOCK) + self.spec.tuning.piece_cost
        return work
