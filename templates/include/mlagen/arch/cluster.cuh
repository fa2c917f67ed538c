// Clusters of two CTAs: rank, barrier, stores into the peer. PTX ISA: barrier.cluster, mapa,
// st.async.
#pragma once
#include "mlagen/arch/mbarrier.cuh"

namespace mlagen {

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of both CTAs; what they wrote before is visible to both after.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// The same place in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ unsigned peer_address(unsigned address, int rank) {
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
__device__ __forceinline__ unsigned peer_address(void const* pointer, int rank) {
  return peer_address(smem_address(pointer), rank);
}

// 16 bytes into the peer's shared memory, counted by the peer's barrier (both as peer_address).
__device__ __forceinline__ void store_async(unsigned remote, uint4 value, unsigned remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(remote),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(remote_barrier)
      : "memory");
}
__device__ __forceinline__ void store_async(unsigned remote, float value, unsigned remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
      "r"(__float_as_uint(value)), "r"(remote_barrier)
      : "memory");
}

}  // namespace mlagen
