// Filling the work list of a CTA from its team's walk.
#pragma once
#include "mlagen/schedule.cuh"

namespace mlagen {

// One warp: the next rows of the team's walk that it has a share in.
template <class Traits>
__device__ __forceinline__ void fill_list(TeamWalk<Traits>& walk, typename Traits::Smem& smem) {
  int count = 0;
  while (count == 0 && !walk.finished()) {
    count = walk.step(0, [&](int slot, WorkItem const& item, auto const& share, auto const& cut) {
      smem.work[0].item[slot] = item;
      if (!item.split() || item.tile >= walk.schedule.params.tiles) return;
      smem.duty[item.slot()] =
          MergeDuty{item.row,     item.tile,   item.pair_splits(),
                    share.pieces, share.index, share.first_team,
                    cut.base,     cut.cost,    walk.schedule.balanced() ? 0 : cut.cuts};
    });
  }
  if (lane_id() == 0) {
    smem.work[0].count = count;
    smem.work[0].more = !walk.finished();
  }
}

}  // namespace mlagen
