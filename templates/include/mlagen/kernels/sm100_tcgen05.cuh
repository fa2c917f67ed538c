// MLA decode on sm_100a and sm_103a: barrier set-up, tensor memory and role dispatch. One
// persistent CTA an SM; see docs/kernels/sm100_tcgen05.md.
#pragma once
#include "mlagen/roles/sm100/columns_softmax.cuh"
#include "mlagen/roles/sm100/epilogue.cuh"
#include "mlagen/roles/sm100/load.cuh"
#include "mlagen/roles/sm100/mma.cuh"
#include "mlagen/roles/sm100/query.cuh"
#include "mlagen/roles/sm100/softmax.cuh"
#include "mlagen/work_list.cuh"

namespace mlagen {

// The roles that differ between the forms.
template <class Traits, bool kColumns>
struct FormRoles {
  using SoftmaxRole = Softmax<Traits>;
  using MmaRole = MultiplyRole<Traits>;
};
template <class Traits>
struct FormRoles<Traits, true> {
  using SoftmaxRole = ColumnsSoftmax<Traits>;
  using MmaRole = ColumnsMultiply<Traits>;
};

template <int kCount>
__device__ __forceinline__ void init_ring(mbarrier (&ring)[kCount], int arrivals) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) mbarrier_init(ring[i], arrivals);
}

template <class Traits>
__device__ __forceinline__ void init_barriers(typename Traits::Smem& smem) {
  init_ring(smem.q_full, Traits::kQFullArrivals);
  init_ring(smem.q_empty, Traits::kQEmptyArrivals);
  init_ring(smem.kv_full, Traits::kKvFullArrivals);
  init_ring(smem.kv_empty, Traits::kKvEmptyArrivals);
  init_ring(smem.rope_full, Traits::kRopeFullArrivals);
  init_ring(smem.rope_empty, Traits::kRopeEmptyArrivals);
  init_ring(smem.s_full, Traits::kSFullArrivals);
  init_ring(smem.s_empty, Traits::kSEmptyArrivals);
  init_ring(smem.probs_full, Traits::kProbsFullArrivals);
  init_ring(smem.probs_empty, Traits::kProbsEmptyArrivals);
  init_ring(smem.o_full, Traits::kOFullArrivals);
  init_ring(smem.o_empty, Traits::kOEmptyArrivals);
  init_ring(smem.stats_full, Traits::kStatsFullArrivals);
  init_ring(smem.stats_empty, Traits::kStatsEmptyArrivals);
  if constexpr (Traits::kPairForm) init_ring(smem.tail_full, Traits::kTailFullArrivals);
  if constexpr (Traits::kPairSplits) {
    init_ring(smem.exchange_full, Traits::kExchangeFullArrivals);
    init_ring(smem.exchange_empty, Traits::kExchangeEmptyArrivals);
  }
  fence_mbarrier_init();
}

// All warps, in step: the next work list of the CTA. The last warp looks for the rows; the walk
// rests in shared memory in between.
template <class Traits, bool kFeeds>
__device__ __forceinline__ void next_list(typename Traits::Params const& params,
                                          typename Traits::Smem& smem, bool first) {
  auto meet = [] {
    named_barrier_sync(int(Traits::NamedBarrier::kListRead), Traits::kListReadThreads);
  };
  if (!first) meet();  // everybody is done with the list
  if constexpr (kFeeds) {
    if (threadIdx.x / 32 == Traits::QueryWarps::kFirstWarp + Traits::QueryWarps::kWarps - 1) {
      TeamWalk<Traits> walk(params, Place<Traits>(params, int(blockIdx.x)),
                            first ? WalkState{} : smem.walk[0]);
      if (first) walk.begin();
      __syncwarp();
      fill_list<Traits>(walk, smem);
      if (lane_id() == 0) smem.walk[0] = walk.state();
      __syncwarp();
    }
  }
  meet();  // the new one is there
}

// A role's work: list after list.
template <class Traits, bool kFeeds, class Role>
__device__ __forceinline__ void run_lists(typename Traits::Params const& params,
                                          typename Traits::Smem& smem, Role& role) {
  bool first = true;
  do {
    next_list<Traits, kFeeds>(params, smem, first);
    role.run_list();
    first = false;
  } while (smem.work[0].more);
}

template <class Traits>
__device__ __forceinline__ void sm100_tcgen05(typename Traits::Params const& params,
                                              TensorMap const& tma_latent,
                                              TensorMap const& tma_rope) {
  extern __shared__ __align__(1024) unsigned char storage[];
  auto& smem = *reinterpret_cast<typename Traits::Smem*>(storage);
  int const warp = __shfl_sync(kFullWarp, int(threadIdx.x / 32), 0);
  constexpr int kGroup = Traits::kPairForm ? 2 : 1;
  using Roles = FormRoles<Traits, bool(Traits::kColumnsForm)>;

  if (Traits::MmaWarps::contains(warp)) tmem_allocate<kGroup>(smem.tmem, Traits::kTmemColumns);
  if (threadIdx.x == 0) {
    init_barriers<Traits>(smem);
    smem.duty[0].pieces = smem.duty[1].pieces = 0;
    prefetch_tensor_map(tma_latent);
    prefetch_tensor_map(tma_rope);
  }
  tmem_fence_before();
  __syncthreads();
  if constexpr (Traits::kCtaGroup == 2) cluster_barrier();  // the peer's barriers are initialised
  tmem_fence_after();
  unsigned const tmem = smem.tmem[0];

  if (Traits::SoftmaxWarps::contains(warp)) {
    take_registers<Traits::SoftmaxWarps::kRegs>();
    typename Roles::SoftmaxRole softmax(params, smem, tmem);
    run_lists<Traits, false>(params, smem, softmax);
  } else if (Traits::EpilogueWarps::contains(warp)) {
    take_registers<Traits::EpilogueWarps::kRegs>();
    OutputRole<Traits> epilogue{params, smem, tmem};
    run_lists<Traits, false>(params, smem, epilogue);
    if constexpr (Traits::kMaxSplit > 1) epilogue.merge();
  } else {
    give_registers<Traits::MmaWarps::kRegs>();
    if (Traits::MmaWarps::contains(warp)) {
      typename Roles::MmaRole mma{smem, tmem};
      run_lists<Traits, false>(params, smem, mma);
    } else if (Traits::LoadWarps::contains(warp)) {
      Load<Traits> load{params, smem, tma_latent, tma_rope};
      run_lists<Traits, false>(params, smem, load);
    } else {
      Query<Traits> query{params, smem};
      run_lists<Traits, true>(params, smem, query);
    }
  }
  tmem_fence_before();
  __syncthreads();
  if constexpr (Traits::kCtaGroup == 2)
    cluster_barrier();  // nobody leaves while the peer may still reach into it
  tmem_fence_after();
  if (Traits::MmaWarps::contains(warp)) tmem_free<kGroup>(tmem, Traits::kTmemColumns);
}

}  // namespace mlagen
