// MLA decode on sm_90a: barrier set-up and role dispatch. One persistent CTA an SM; see docs/kernels/sm90_wgmma.md.
#pragma once
#include "mlagen/roles/sm90/accumulator.cuh"
#include "mlagen/roles/sm90/scorer.cuh"

namespace mlagen {

template <class Traits>
__device__ __forceinline__ void init_barriers(typename Traits::Smem& smem) {
#pragma unroll
  for (int i = 0; i < Traits::kKvFullStages; ++i) mbarrier_init(smem.kv_full[i], Traits::kKvFullArrivals);
  mbarrier_init(smem.rope_full[0], Traits::kRopeFullArrivals);
  mbarrier_init(smem.rope_empty[0], Traits::kRopeEmptyArrivals);
  for (int i = 0; i < Traits::kProbsFullStages; ++i) mbarrier_init(smem.probs_full[i], Traits::kProbsFullArrivals);
  mbarrier_init(smem.probs_empty[0], Traits::kProbsEmptyArrivals);
  if constexpr (Traits::kCtaGroup == 2) {
    for (int i = 0; i < Traits::kPairKvEmptyStages; ++i) mbarrier_init(smem.pair_kv_empty[i], Traits::kPairKvEmptyArrivals);
    mbarrier_init(smem.pair_rope_empty[0], Traits::kPairRopeEmptyArrivals);
    mbarrier_init(smem.exchange_empty[0], Traits::kExchangeEmptyArrivals);
    mbarrier_init(smem.exchange_full[0], Traits::kExchangeFullArrivals);
  }
  fence_mbarrier_init();
}

// One warp: the next rows of the team's walk that it has a share in.
template <class Traits>
__device__ __forceinline__ void fill_list(TeamWalk<Traits>& walk, typename Traits::Smem& smem) {
  int count = 0;
  while (count == 0 && !walk.finished()) {
    count = walk.step(0, [&](int slot, WorkItem const& item, auto const& share, auto const& cut) {
      smem.work[0].item[slot] = item;
      if ((item.flags & WorkItem::kSplit) == 0) return;
      int const cuts = walk.schedule.balanced() ? 0 : cut.cuts;
      smem.duty[item.flags & WorkItem::kFirstPiece ? 1 : 0] = MergeDuty{
          item.row, item.group, share.pieces, share.index, share.first_team, cut.base, cut.cost, cuts};
    });
  }
  if (lane_id() == 0) {
    smem.work[0].count = count;
    smem.work[0].more = !walk.finished();
  }
}

// One list after the other. The walk rests in shared memory in between: no warp carries its numbers through the main loop.
template <class Traits, bool kFeeds>
struct ListFeed {
  typename Traits::Params const& params;
  typename Traits::Smem& smem;
  int team;
  bool const feeds;  // this warp looks for the next rows

  // The first list. Other warps wait for it at the caller's barrier.
  __device__ __forceinline__ void first() {
    TeamWalk<Traits> walk(params, team);
    fill_list<Traits>(walk, smem);
    if (lane_id() == 0) smem.walk[0] = walk.state();
  }
  // After a list: true when there is another one.
  __device__ __forceinline__ bool next() {
    if (!smem.work[0].more) return false;
    named_barrier_sync(int(Traits::NamedBarrier::kListRead), Traits::kListReadThreads);  // everybody is done with the list
    if constexpr (kFeeds) {
      if (feeds) {
        TeamWalk<Traits> walk(params, team, smem.walk[0]);
        __syncwarp();
        fill_list<Traits>(walk, smem);
        if (lane_id() == 0) smem.walk[0] = walk.state();
      }
    }
    named_barrier_sync(int(Traits::NamedBarrier::kListRead), Traits::kListReadThreads);  // the new one is there
    return true;
  }
};

template <class Traits>
__device__ __forceinline__ void sm90_wgmma(typename Traits::Params const& params, TensorMap const& tma_latent,
                                           TensorMap const& tma_rope) {
  extern __shared__ __align__(1024) unsigned char storage[];
  auto& smem = *reinterpret_cast<typename Traits::Smem*>(storage);
  int const warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  Place<Traits> const place(params, int(blockIdx.x));
  bool const feeds = warp == Traits::AccumulatorWarps::kFirstWarp + Traits::AccumulatorWarps::kWarps - 1;

  if (threadIdx.x == 0) {
    init_barriers<Traits>(smem);
    smem.duty[0].pieces = smem.duty[1].pieces = 0;
    cute::prefetch_tma_descriptor(&tma_latent);
    cute::prefetch_tma_descriptor(&tma_rope);
  }
  __syncthreads();
  if (feeds) ListFeed<Traits, true>{params, smem, place.team, true}.first();
  __syncthreads();
  if constexpr (Traits::kCtaGroup == 2) cluster_barrier();  // the peer's barriers are initialised

  unsigned items_done = 0, exchanges = 0;
  if (Traits::ScorerWarps::contains(warp)) {
    take_registers<Traits::ScorerWarps::kRegs>();
    ListFeed<Traits, false> feed{params, smem, place.team, false};
    Scorer<Traits> scorer{params, smem, place};
    do {
      scorer.run_list(items_done);
    } while (feed.next());
  } else {
    give_registers<Traits::AccumulatorWarps::kRegs>();
    int const half = (warp - Traits::AccumulatorWarps::kFirstWarp) / 4;
    ListFeed<Traits, true> feed{params, smem, place.team, feeds};
    Accumulator<Traits> accumulator(params, smem, place, tma_latent, tma_rope, half);
    do {
      accumulator.run_list(items_done, exchanges);
    } while (feed.next());
    Merge<Traits> const merge{params, smem, place, half};
    merge.run(0);
    merge.run(1);
  }
  if constexpr (Traits::kCtaGroup == 2) cluster_barrier();  // nobody leaves while the peer may still reach into it
}

}  // namespace mlagen
