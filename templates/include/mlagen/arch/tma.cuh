// Tensor copies from global to shared memory. PTX ISA 9.7.9.27 (cp.async.bulk.tensor).
#pragma once
#include "mlagen/arch/mbarrier.cuh"

namespace mlagen {

// What cuTensorMapEncodeTiled writes; passed by value as a kernel parameter.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

// L2 policy evict-first: the cache is read once in a step, so its lines are the first to leave L2.
constexpr uint64_t kStreamHint = 0x12f0000000000000ull;

// Fetches the map itself ahead of its first use. PTX ISA: prefetch.tensormap.
__device__ __forceinline__ void prefetch_tensor_map(TensorMap const& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Loads one box into the CTAs of `mask`: same offset, same barrier offset in each. Without a pair
// the mask is not used.
template <bool kPair>
__device__ __forceinline__ void tma_load_5d(TensorMap const& map, mbarrier& full, void* destination,
                                            uint16_t mask, int tile, int group, int page) {
  unsigned const to = smem_address(destination), barrier = smem_address(&full);
  if constexpr (kPair) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster.L2::cache_hint"
        " [%0], [%1, {%4, %4, %5, %6, %7}], [%2], %3, %8;" ::"r"(to),
        "l"(&map), "r"(barrier), "h"(mask), "r"(0), "r"(tile), "r"(group), "r"(page),
        "l"(kStreamHint)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(tile), "r"(group), "r"(page), "l"(kStreamHint)
        : "memory");
  }
}
template <bool kPair>
__device__ __forceinline__ void tma_load_4d(TensorMap const& map, mbarrier& full, void* destination,
                                            uint16_t mask, int tile, int page) {
  unsigned const to = smem_address(destination), barrier = smem_address(&full);
  if constexpr (kPair) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster.L2::cache_hint"
        " [%0], [%1, {%4, %4, %5, %6}], [%2], %3, %7;" ::"r"(to),
        "l"(&map), "r"(barrier), "h"(mask), "r"(0), "r"(tile), "r"(page), "l"(kStreamHint)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(tile), "r"(page), "l"(kStreamHint)
        : "memory");
  }
}

// Loads one box into this CTA; its bytes count at `barrier`, a shared::cluster address, which with
// kPair may lie in the other CTA of the pair.
template <bool kPair>
__device__ __forceinline__ void tma_load_5d_at(TensorMap const& map, unsigned barrier, unsigned to,
                                               int tile, int group, int page) {
  if constexpr (kPair) {
    asm volatile(
        "cp.async.bulk.tensor.5d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes."
        "L2::cache_hint [%0], [%1, {%3, %3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(tile), "r"(group), "r"(page), "l"(kStreamHint)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(tile), "r"(group), "r"(page), "l"(kStreamHint)
        : "memory");
  }
}
template <bool kPair>
__device__ __forceinline__ void tma_load_4d_at(TensorMap const& map, unsigned barrier, unsigned to,
                                               int tile, int page) {
  if constexpr (kPair) {
    asm volatile(
        "cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes."
        "L2::cache_hint [%0], [%1, {%3, %3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(tile), "r"(page), "l"(kStreamHint)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(0), "r"(tile), "r"(page), "l"(kStreamHint)
        : "memory");
  }
}

}  // namespace mlagen
