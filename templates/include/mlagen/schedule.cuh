// The schedule: how the work of one launch is cut among teams, derived on the device from the
// lengths alone.
//
// A *team* is units_per_team neighbouring units (CTAs, or clusters of two) that walk the same keys
// of neighbouring row tiles at the same time. All work lies on one line: group after group of row
// tiles, in it row after row, in it the cost of starting a piece and then the row's blocks of 64
// keys. Team t owns [t W, (t + 1) W) of the line.
//  - balanced (no split counts given): the ends of the ranges are the cuts. A row that would meet
//  one team more than
//    max_split gives its smaller end away to its other teams.
//  - given counts: row i is cut into min(k, blocks) equal pieces; a piece goes to the team that
//  owns its middle, and
//    neighbouring pieces of a row on one team become one.
//  - balanced, with rows of equal length: cut alike, or not at all, where that is expected to take
//  less time, since fewer pieces are started and merged. The line then counts pieces.
// A team meets at most two rows that it shares with others: the first and the last of its list.
#pragma once
#include "mlagen/base.cuh"
#include "mlagen/query_rows.cuh"

namespace mlagen {

constexpr int kWorkCapacity = 32;  // rows that one warp looks at at once
constexpr int kBlockUnits =
    2;  // units of the line per block; 1 where a pair of CTAs splits the keys of one tile

constexpr int kMergeCost = 5;  // of one row shared with other teams, in blocks: H200, 2026-12-01

// What one CTA does of one row.
struct WorkItem {
  int row;                  // batch index
  int length;               // keys of the row, clamped
  int tile;                 // 64-row tile
  int first_block, blocks;  // blocks of 64 keys for this CTA
  int masked;               // blocks at the end that some row of the tile sees only in part
  int flags;
  // Other teams hold pieces too; ours is the first; the pair's CTAs share the tile and split its
  // keys; the peer has one more.
  static constexpr int kSplit = 1, kFirstPiece = 2, kPairSplits = 4, kPeerHasMore = 8;

  // Places that the item takes in the kv ring: the larger block count of a pair that splits the
  // keys.
  __device__ __forceinline__ int places() const { return blocks + (flags & kPeerHasMore ? 1 : 0); }

  __device__ __forceinline__ bool split() const { return flags & kSplit; }
  __device__ __forceinline__ bool pair_splits() const { return flags & kPairSplits; }
  __device__ __forceinline__ int slot() const {
    return flags & kFirstPiece ? 1 : 0;
  }  // of partials and duties
};

struct WorkList {
  WorkItem item[kWorkCapacity];
  int count;
  int more;  // the team has rows beyond this list
};

// What merging one row that several teams share needs to know.
struct MergeDuty {
  int row, tile, pair_splits;
  int pieces;            // teams that hold a piece; 0: no duty
  int index;             // ours among them
  int first_team;        // holder of piece 0
  int base, cost, cuts;  // place on the line; pieces asked for, 0 in balanced mode
};

// A walk at rest.
struct WalkState {
  int span, line_even, line_single, pieces;
  int group, row, position;
};

// Words that each CTA has in the counters' slot: arrivals at the rows whose first piece it holds,
// by half of the columns, and what became of its own slice of a merge, by half and duty. All flags
// are 0 between launches.
template <class Traits>
__device__ __forceinline__ unsigned* arrival_counter(typename Traits::Params const& p, int cta,
                                                     int half) {
  return p.counters + cta * Traits::kCounterWords + half;
}
template <class Traits>
__device__ __forceinline__ unsigned* slice_flag(typename Traits::Params const& p, int cta, int half,
                                                int which) {
  return p.counters + cta * Traits::kCounterWords + 2 + half * 2 + which;
}

// The launch as the schedule sees it.
template <class Traits>
struct Schedule {
  typename Traits::Params const& params;
  int span;         // W
  int line_even;    // length of the line of a group whose blocks count two units
  int line_single;  // the same where they count one
  int pieces;       // of every row, where the line counts pieces; else 0

  __device__ __forceinline__ Schedule(typename Traits::Params const& p, WalkState const& state)
      : params(p),
        span(state.span),
        line_even(state.line_even),
        line_single(state.line_single),
        pieces(state.pieces) {}

  __device__ __forceinline__ bool balanced() const {
    return params.num_splits == nullptr && params.uniform_splits == 0 && pieces == 0;
  }

  __device__ __forceinline__ int length(int row) const {
    return clamp_to(params.cache_seqlens[row], 0, params.max_len);
  }
  // Pieces that the caller asks for; 1 in balanced mode, where the ranges decide.
  __device__ __forceinline__ int cuts(int row, int blocks) const {
    if (pieces > 0) return pieces;
    if (balanced()) return 1;
    int const asked = params.num_splits != nullptr ? params.num_splits[row] : params.uniform_splits;
    return max_of(min_of(clamp_to(asked, 1, Traits::kMaxSplit), blocks), 1);
  }
  // A group made of nothing but the odd last tile is worked on by pairs that split its keys.
  __device__ __forceinline__ int block_units(int group) const {
    bool const single = Traits::kPairSplits && params.units_per_team == 1 &&
                        group == params.groups - 1 && params.tiles % 2 == 1;
    return single ? 1 : kBlockUnits;
  }
  __device__ __forceinline__ static int start_units(int cuts) {
    return Traits::kPieceCost * kBlockUnits * cuts;
  }
  // Length of a row on the line.
  __device__ __forceinline__ int cost(int blocks, int units, int cuts) const {
    return pieces > 0 ? pieces : blocks * units + start_units(cuts);
  }
  __device__ __forceinline__ int line(int group) const {
    return block_units(group) == 1 ? line_single : line_even;
  }
  __device__ __forceinline__ int group_base(int group) const { return group * line_even; }

  // Sums over all rows, by one warp. Lane i ends with the place on the line, in a group whose
  // blocks count `units`, of the first row of its chunk of ceil(b / 32) rows: units * x + y.
  __device__ __forceinline__ void measure(int& x, int& y) {
    int const lane = lane_id(), chunk = ceil_div(params.batch, 32);
    int blocks = 0, starts = 0, longest = 0, shortest = 0x7fffffff;
#pragma unroll 2
    for (int i = lane * chunk, end = min_of((lane + 1) * chunk, params.batch); i < end; ++i) {
      int const n = ceil_div(length(i), kBlockN);
      blocks += n;
      starts += start_units(cuts(i, n));
      longest = max_of(longest, n);
      shortest = min_of(shortest, n);
    }
    longest = __reduce_max_sync(kFullWarp, longest);
    shortest = __reduce_min_sync(kFullWarp, shortest);
    int blocks_to = blocks, starts_to = starts;
    // Rolled up, as all of this: it runs once, and cold code costs more than branches.
#pragma unroll 1
    for (int s = 1; s < 32; s *= 2) {
      int const b = __shfl_up_sync(kFullWarp, blocks_to, s),
                c = __shfl_up_sync(kFullWarp, starts_to, s);
      if (lane >= s) blocks_to += b, starts_to += c;
    }
    x = blocks_to - blocks;
    y = starts_to - starts;
    int const all_blocks = __shfl_sync(kFullWarp, blocks_to, 31),
              all_starts = __shfl_sync(kFullWarp, starts_to, 31);
    line_even = all_blocks * kBlockUnits + all_starts;
    line_single = all_blocks + all_starts;
    int const total = group_base(params.groups - 1) + line(params.groups - 1);
    span = max_of(ceil_div(total, params.teams), 1);
    if (!balanced()) return;
    int const units = params.groups == 1 ? block_units(0) : kBlockUnits;
    span =
        max_of(max_of(span, ceil_div(longest * units + start_units(1), Traits::kMaxSplit)), units);
    bool const equal = shortest == longest && longest > 0;
    if (equal && block_units(params.groups - 1) == units) cut_alike(longest, units);
    if (pieces > 0) {
      x = 0;
      y = min_of(lane * chunk, params.batch) * pieces;
    }
  }

  // Rows of `blocks` blocks each: a lane for each number of pieces that a team may get, with the
  // cuts that make the least of it; the last lane does not cut. Kept if no more than the ranges are
  // expected to take.
  __device__ __forceinline__ void cut_alike(int blocks, int units) {
    int const lane = lane_id(), rows = params.batch * params.groups;
    int const each = lane == 31 ? ceil_div(rows, params.teams) : lane + 1;
    int most = lane == 31 ? 1 : int(unsigned(params.teams * each) / unsigned(rows));
    bool const possible = most > 0;
    most = max_of(min_of(min_of(most, blocks), Traits::kMaxSplit), 1);
    int const length = ceil_div(blocks, most), cuts = ceil_div(blocks, length);
    int const met = min_of(each, (each - 1) / cuts + 2);  // rows that a team meets
    int const merged = cuts > 1 ? min_of(met, 2) : 0;
    unsigned const load = !possible ? 0xffffffffu
                                    : unsigned(each * length * units + met * start_units(1) +
                                               merged * kMergeCost * kBlockUnits);
    unsigned const least = __reduce_min_sync(kFullWarp, load);
    if (least > unsigned(span + start_units(1) + 2 * kMergeCost * kBlockUnits)) return;
    int const best = __ffs(int(__ballot_sync(kFullWarp, load == least))) - 1;
    pieces = __shfl_sync(kFullWarp, cuts, best);
    span = __shfl_sync(kFullWarp, each, best);
    line_even = line_single = params.batch * pieces;
  }
};

// floor(x a / b) without leaving 32 bits, for a and b up to 2^9 or so (a / b up to 1, or a bit
// more). Unsigned, and none of them negative: half the instructions of signed division.
__device__ __forceinline__ int fraction(unsigned x, unsigned a, unsigned b) {
  unsigned const whole = x / b;
  return int(whole * a + (x - whole * b) * a / b);
}

// One row of one group on the line, and the part of it that a team holds.
template <class Traits>
struct RowCut {
  Schedule<Traits> const& schedule;
  int base, cost;     // place on the line
  int blocks, units;  // blocks of the row, units of the line per block
  int cuts;           // pieces asked for (given counts only)

  // Middle of piece p on the line.
  __device__ __forceinline__ int middle(int p) const {
    return base + fraction(cost, 2 * p + 1, 2 * cuts);
  }
  // The first piece whose middle is at or behind `position`: a guess in fp32, then made exact.
  __device__ __forceinline__ int piece_at(int position) const {
    int p = clamp_to(int(__fdividef(float(position - base) * float(cuts), float(cost))), 0, cuts);
    while (p > 0 && middle(p - 1) >= position) --p;
    while (p < cuts && middle(p) < position) ++p;
    return p;
  }
  __device__ __forceinline__ int block_at(int position) const {  // units is 1 or 2
    int const behind = position - base - schedule.start_units(1);
    return behind <= 0 ? 0 : min_of(units == 2 ? behind / 2 : behind, blocks);
  }
  // Pieces of given counts may skip teams when each is at least as long as a range.
  __device__ __forceinline__ bool scattered() const {
    return cost >= (long long)cuts * schedule.span;
  }

  struct Share {
    bool any;
    int first_block, end_block;
    int pieces, index, first_team;
  };

  __device__ __forceinline__ Share given(int team) const {
    Share s;
    int const span = schedule.span, low = piece_at(team * span), high = piece_at((team + 1) * span);
    int const last_team = int(unsigned(middle(cuts - 1)) / unsigned(span));
    s.any = high > low;
    s.first_block = fraction(blocks, low, cuts);
    s.end_block = fraction(blocks, high, cuts);
    s.first_team = int(unsigned(middle(0)) / unsigned(span));
    s.pieces = scattered() ? cuts : last_team - s.first_team + 1;
    s.index = scattered() ? low : team - s.first_team;
    return s;
  }

  // The line counts pieces.
  __device__ __forceinline__ Share alike(int team) const {
    Share s;
    int const low = clamp_to(team * schedule.span - base, 0, cuts),
              high = clamp_to((team + 1) * schedule.span - base, 0, cuts);
    s.any = high > low;
    s.first_block = int(unsigned(blocks * low) / unsigned(cuts));
    s.end_block = int(unsigned(blocks * high) / unsigned(cuts));
    s.first_team = int(unsigned(base) / unsigned(schedule.span));
    s.pieces = int(unsigned(base + cuts - 1) / unsigned(schedule.span)) - s.first_team + 1;
    s.index = team - s.first_team;
    return s;
  }

  __device__ __forceinline__ Share balanced(int team) const {
    Share s;
    int const span = schedule.span;
    int first = int(unsigned(base) / unsigned(span)),
        last = int(unsigned(base + cost - 1) / unsigned(span));
    int const head = (first + 1) * span - base, tail = base + cost - last * span;
    // A row meets at most max_split + 1 ranges, since span >= cost / max_split: drop the smaller
    // end of one too many.
    bool const over = last - first + 1 > Traits::kMaxSplit, drop_head = over && head <= tail,
               drop_tail = over && !drop_head;
    first += drop_head;
    last -= drop_tail;
    // Where team t begins. What was dropped is spread over the teams that are left, all but the one
    // at the other end.
    int const spread_from = drop_tail ? base + head : base,
              spread = drop_tail ? cost - head : cost - tail;
    auto cut = [&](int t) {
      if (!over) return t * span;
      return spread_from + fraction(spread, t - first - drop_tail, max_of(last - first, 1));
    };
    int holder = first;  // the first team with a block: the cost of starting lies before it
    while (holder < last && block_at(cut(holder + 1)) == 0) ++holder;
    s.any = blocks == 0 ? team == first : team >= holder && team <= last;
    s.first_block = team <= holder ? 0 : block_at(cut(team));
    s.end_block = team >= last ? blocks : block_at(cut(team + 1));
    s.first_team = holder;
    s.pieces = last - holder + 1;
    s.index = team - holder;
    if (blocks == 0) s.end_block = 0, s.pieces = 1, s.index = 0, s.first_team = first;
    return s;
  }

  __device__ __forceinline__ Share share(int team) const {
    if (schedule.pieces > 0) return alike(team);
    return schedule.balanced() ? balanced(team) : given(team);
  }
};

// Which team of the launch a CTA belongs to, and which of its units it is part of.
template <class Traits>
struct Place {
  int team, unit, rank;  // rank: CTA of the unit's cluster
  __device__ __forceinline__ Place(typename Traits::Params const& p, int cta) {
    rank = cta % Traits::kCtaGroup;
    int const index = cta / Traits::kCtaGroup;
    unit = index % p.units_per_team;
    team = index / p.units_per_team;
  }
  // The CTA at the same place of another team.
  __device__ __forceinline__ int cta_of(typename Traits::Params const& p, int other_team) const {
    return (other_team * p.units_per_team + unit) * Traits::kCtaGroup + rank;
  }
};

// This CTA's part of the blocks [first, end) of a row.
template <class Traits>
__device__ __forceinline__ WorkItem work_of(typename Traits::Params const& p,
                                            Place<Traits> const& place, int row, int length,
                                            int group, int first, int end) {
  int const unit = group * p.units_per_team + place.unit, all = end - first;
  WorkItem item{row, length, unit * Traits::kCtaGroup + place.rank, first, all, 0, 0};
  if (Traits::kPairSplits &&
      unit * 2 + 1 == p.tiles) {  // one tile is left for the pair: each takes half of the keys
    int const upper = ceil_div(all, 2);
    item.flags = WorkItem::kPairSplits;
    item.tile = unit * 2;
    if (place.rank == 0) {
      item.blocks = upper;
    } else {
      item.first_block += upper;
      item.blocks = all - upper;
      if (all - upper < upper) item.flags |= WorkItem::kPeerHasMore;
    }
  }
  // The tile's first row sees the fewest keys; a row of padding no more than there are.
  int const sees =
      min_of(visible_keys<Traits>(p, length, QueryRows<Traits>::token(item.tile, 0)), length);
  item.masked = item.first_block + item.blocks - sees / kBlockN;
  return item;
}

// The walk of one warp over its team's part of the line, 32 rows at a time.
template <class Traits>
struct TeamWalk {
  Schedule<Traits> schedule;
  Place<Traits> place;
  int team;
  int group, row;  // the next row to look at
  int position;    // its place on the line

  // A walk that begin() or a state puts somewhere.
  __device__ __forceinline__ TeamWalk(typename Traits::Params const& params,
                                      Place<Traits> const& where, WalkState const& state)
      : schedule(params, state),
        place(where),
        team(where.team),
        group(state.group),
        row(state.row),
        position(state.position) {}
  // To the beginning of the team's range.
  __device__ __forceinline__ void begin() {
    int blocks_before, starts_before;
    schedule.measure(blocks_before, starts_before);
    int const range = team * schedule.span, last_group = schedule.params.groups - 1,
              batch = schedule.params.batch;
    group = min_of(int(unsigned(range) / unsigned(max_of(schedule.line_even, 1))), last_group);
    int const before =
        schedule.group_base(group) + blocks_before * schedule.block_units(group) + starts_before;
    // Chunks of rows that begin at or before our range; the last of them holds its beginning.
    unsigned const reached = __ballot_sync(kFullWarp, before <= range);
    int const chunk = 31 - __clz(int(reached | 1u));
    row = min_of(chunk * ceil_div(batch, 32), batch);
    position = __shfl_sync(kFullWarp, before, chunk);
  }
  __device__ __forceinline__ WalkState state() const {
    return {schedule.span, schedule.line_even, schedule.line_single, schedule.pieces, group, row,
            position};
  }

  __device__ __forceinline__ bool finished() const {
    return group >= schedule.params.groups || position >= (team + 1) * schedule.span;
  }

  // Looks at the next rows of the group, one a lane. Calls emit(slot, item, share, cut) for each
  // row with a share, slots counted from `count`; returns the new count.
  template <class Emit>
  __device__ __forceinline__ int step(int count, Emit emit) {
    auto const& p = schedule.params;
    int const lane = lane_id(), mine = row + lane, rows = min_of(32, p.batch - row);
    bool const exists = lane < rows;
    int const keys = exists ? schedule.length(mine) : 0, blocks = ceil_div(keys, kBlockN);
    int const cuts = exists ? schedule.cuts(mine, blocks) : 1, units = schedule.block_units(group);
    int const cost = exists ? schedule.cost(blocks, units, cuts) : 0;
    int upto = cost;
#pragma unroll 1
    for (int s = 1; s < 32; s *= 2) {
      int const other = __shfl_up_sync(kFullWarp, upto, s);
      if (lane >= s) upto += other;
    }
    RowCut<Traits> const cut{schedule, position + upto - cost, cost, blocks, units, cuts};
    bool const meets =
        exists && cut.base < (team + 1) * schedule.span && cut.base + cost > team * schedule.span;
    typename RowCut<Traits>::Share share{};
    if (meets) share = cut.share(team);
    WorkItem item = work_of(p, place, mine, keys, group, share.first_block, share.end_block);
    if (share.pieces > 1)
      item.flags |= WorkItem::kSplit | (share.index == 0 ? WorkItem::kFirstPiece : 0);
    // Where a pair works on two tiles and only the first exists, the second CTA helps with padding.
    bool const holds = meets && share.any && item.tile - place.rank < p.tiles;
    unsigned const holders = __ballot_sync(kFullWarp, holds);
    if (holds) emit(count + __popc(holders & ((1u << lane) - 1)), item, share, cut);
    position += __shfl_sync(kFullWarp, upto, 31);
    row += rows;
    if (row >= p.batch) {
      row = 0;
      ++group;
    }
    return count + __popc(holders);
  }
};

// Entry point of the read-back kernel: one warp a CTA appends rows {row, tile, first key, last key,
// CTA, flags} to `out`.
template <class Traits>
__device__ __forceinline__ void sm90_schedule(typename Traits::Params const& params, int* out,
                                              int* count, int capacity) {
  int const cta = int(blockIdx.x);
  TeamWalk<Traits> walk(params, Place<Traits>(params, cta), WalkState{});
  walk.begin();
  while (!walk.finished()) {
    walk.step(0, [&](int, WorkItem const& item, auto const&, auto const&) {
      if (item.blocks == 0 && item.pair_splits() && cta % 2 == 1)
        return;                               // the other CTA of the pair has all keys
      if (item.tile >= params.tiles) return;  // padding
      int const at = atomicAdd(count, 1);
      if (at >= capacity) return;
      int* const line = out + 6ll * at;
      line[0] = item.row;
      line[1] = item.tile;
      line[2] = item.first_block * kBlockN;
      line[3] = min_of((item.first_block + item.blocks) * kBlockN, item.length);
      line[4] = cta;
      line[5] = item.split() ? 2 : 1;
    });
  }
}

}  // namespace mlagen
