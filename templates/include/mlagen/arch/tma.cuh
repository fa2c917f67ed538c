// Tensor copies from global to shared memory through CuTe's atoms. PTX ISA 9.7.9.27
// (cp.async.bulk.tensor).
#pragma once
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include "mlagen/arch/mbarrier.cuh"

namespace mlagen {

using TensorMap = cute::TmaDescriptor;

// The cache is read once in a step: its lines are the first to leave L2.
constexpr unsigned long long kStreamHint =
    static_cast<unsigned long long>(cute::TMA::CacheHintSm90::EVICT_FIRST);

// Loads one box into the CTAs of `mask`: same offset, same barrier offset in each. Without a pair
// the mask is not used.
template <bool kPair>
__device__ __forceinline__ void tma_load_5d(TensorMap const& map, mbarrier& full, void* destination,
                                            uint16_t mask, int tile, int group, int page) {
  auto* barrier = reinterpret_cast<uint64_t*>(&full);
  if constexpr (kPair) {
    cute::SM90_TMA_LOAD_MULTICAST_5D::copy(&map, barrier, mask, kStreamHint, destination, 0, 0,
                                           tile, group, page);
  } else {
    cute::SM90_TMA_LOAD_5D::copy(&map, barrier, kStreamHint, destination, 0, 0, tile, group, page);
  }
}
template <bool kPair>
__device__ __forceinline__ void tma_load_4d(TensorMap const& map, mbarrier& full, void* destination,
                                            uint16_t mask, int tile, int page) {
  auto* barrier = reinterpret_cast<uint64_t*>(&full);
  if constexpr (kPair) {
    cute::SM90_TMA_LOAD_MULTICAST_4D::copy(&map, barrier, mask, kStreamHint, destination, 0, 0,
                                           tile, page);
  } else {
    cute::SM90_TMA_LOAD_4D::copy(&map, barrier, kStreamHint, destination, 0, 0, tile, page);
  }
}

}  // namespace mlagen
