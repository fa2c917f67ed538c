// MLA decode on sm_90a: barrier set-up and role dispatch. One persistent CTA an SM; see
// docs/kernels/sm90_wgmma.md.
#pragma once
#include "mlagen/roles/sm90/accumulator.cuh"
#include "mlagen/roles/sm90/scorer.cuh"
#include "mlagen/work_list.cuh"

namespace mlagen {

template <class Traits>
__device__ __forceinline__ void init_barriers(typename Traits::Smem& smem) {
#pragma unroll
  for (int i = 0; i < Traits::kKvFullStages; ++i)
    mbarrier_init(smem.kv_full[i], Traits::kKvFullArrivals);
  mbarrier_init(smem.rope_full[0], Traits::kRopeFullArrivals);
  mbarrier_init(smem.rope_empty[0], Traits::kRopeEmptyArrivals);
  for (int i = 0; i < Traits::kProbsFullStages; ++i)
    mbarrier_init(smem.probs_full[i], Traits::kProbsFullArrivals);
  mbarrier_init(smem.probs_empty[0], Traits::kProbsEmptyArrivals);
  if constexpr (Traits::kCtaGroup == 2) {
    for (int i = 0; i < Traits::kPairKvEmptyStages; ++i)
      mbarrier_init(smem.pair_kv_empty[i], Traits::kPairKvEmptyArrivals);
    mbarrier_init(smem.pair_rope_empty[0], Traits::kPairRopeEmptyArrivals);
    mbarrier_init(smem.exchange_empty[0], Traits::kExchangeEmptyArrivals);
    mbarrier_init(smem.exchange_full[0], Traits::kExchangeFullArrivals);
  }
  fence_mbarrier_init();
}

template <class Traits>
__device__ __forceinline__ void meet_accumulators() {
  named_barrier_sync(int(Traits::NamedBarrier::kListAccumulators),
                     Traits::kListAccumulatorsThreads);
}

// Accumulators: the next work list of the CTA. The walk rests in shared memory in between, so that
// no warp carries its numbers through the main loop. One of their warps, the feeder, looks for the
// rows.
template <class Traits>
__device__ __forceinline__ void feed_list(typename Traits::Params const& params,
                                          typename Traits::Smem& smem, bool first) {
  constexpr int kFeeder =
      Traits::AccumulatorWarps::kFirstWarp + Traits::AccumulatorWarps::kWarps - 1;
  if (!first) meet_accumulators<Traits>();  // they are done with the list
  if (threadIdx.x / 32 == kFeeder) {
    if (!first)  // and so is the scorer
      named_barrier_sync(int(Traits::NamedBarrier::kListRead), Traits::kListReadThreads);
    TeamWalk<Traits> walk(params, Place<Traits>(params, int(blockIdx.x)),
                          first ? WalkState{} : smem.walk[0]);
    if (first) walk.begin();
    __syncwarp();
    fill_list<Traits>(walk, smem);
    if (lane_id() == 0) smem.walk[0] = walk.state();
    __syncwarp();
    named_barrier_arrive(int(Traits::NamedBarrier::kListFilled), Traits::kListFilledThreads);
  }
  meet_accumulators<Traits>();  // the new one is there
}
// Scorer: the same, without a part in it.
template <class Traits>
__device__ __forceinline__ void await_list(bool first) {
  if (!first) named_barrier_arrive(int(Traits::NamedBarrier::kListRead), Traits::kListReadThreads);
  named_barrier_sync(int(Traits::NamedBarrier::kListFilled), Traits::kListFilledThreads);
}

template <class Traits>
__device__ __forceinline__ void sm90_wgmma(typename Traits::Params const& params,
                                           TensorMap const& tma_latent, TensorMap const& tma_rope) {
  extern __shared__ __align__(1024) unsigned char storage[];
  auto& smem = *reinterpret_cast<typename Traits::Smem*>(storage);
  int const warp = __shfl_sync(kFullWarp, int(threadIdx.x / 32), 0);

  if (threadIdx.x == 0) {
    init_barriers<Traits>(smem);
    smem.duty[0].pieces = smem.duty[1].pieces = 0;
    prefetch_tensor_map(tma_latent);
    prefetch_tensor_map(tma_rope);
  }
  __syncthreads();
  if constexpr (Traits::kCtaGroup == 2) cluster_barrier();  // the peer's barriers are initialised

  bool first = true;
  if (Traits::ScorerWarps::contains(warp)) {
    take_registers<Traits::ScorerWarps::kRegs>();
    Scorer<Traits> scorer{params, smem};
    do {
      await_list<Traits>(first);
      scorer.run_list();
      first = false;
    } while (smem.work[0].more);
  } else {
    give_registers<Traits::AccumulatorWarps::kRegs>();
    int const half = (warp - Traits::AccumulatorWarps::kFirstWarp) / 4;
    Accumulator<Traits> accumulator(params, smem, tma_latent, tma_rope, half);
    do {
      feed_list<Traits>(params, smem, first);
      accumulator.run_list();
      first = false;
    } while (smem.work[0].more);
    Merge<Traits> const merge{params, smem, Place<Traits>(params, int(blockIdx.x)), half};
#pragma unroll 1
    for (int which = 0; which < 2; ++which) merge.run(which);
  }
  if constexpr (Traits::kCtaGroup == 2)
    cluster_barrier();  // nobody leaves while the peer may still reach into it
}

}  // namespace mlagen
