// mbarrier operations with a memory clobber, so that no ordinary access moves across them. PTX
// ISA 9.7.13.15 (mbarrier).
#pragma once
#include "mlagen/base.cuh"

namespace mlagen {

using mbarrier = uint64_t;

__device__ __forceinline__ unsigned smem_address(void const* pointer) {
  return unsigned(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

// One arrival. Release at CTA scope: what this thread wrote to shared memory is visible to whoever
// waits.
__device__ __forceinline__ void mbarrier_arrive(mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(&barrier)) : "memory");
}

// One arrival that also promises `bytes` of asynchronous writes in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(mbarrier& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(&barrier)),
      "r"(bytes)
      : "memory");
}

// One arrival at the same barrier of CTA `rank` of the cluster. Unqualified on purpose: the
// `.release.cluster` form costs a MEMBAR.ALL.GPU (seen on an H200, CUDA 13.0), and what it hands
// over is the right to overwrite, not data.
__device__ __forceinline__ void mbarrier_arrive_remote(mbarrier& barrier, int rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(smem_address(&barrier)),
      "r"(rank)
      : "memory");
}

// The same with a promise of bytes, at the barrier of CTA `rank`.
__device__ __forceinline__ void mbarrier_arrive_expect_remote(mbarrier& barrier, int rank,
                                                              int bytes) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [remote], %2;\n"
      "}" ::"r"(smem_address(&barrier)),
      "r"(rank), "r"(bytes)
      : "memory");
}

// Has the phase of this parity completed? Does not block.
__device__ __forceinline__ bool mbarrier_test(mbarrier& barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(smem_address(&barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Returns when the phase of this parity has completed.
__device__ __forceinline__ void mbarrier_wait(mbarrier& barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "wait_again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra wait_done;\n"
      "bra wait_again;\n"
      "wait_done:\n"
      "}" ::"r"(smem_address(&barrier)),
      "r"(parity)
      : "memory");
}

// Makes freshly initialised barriers visible to the async proxy and to the cluster. PTX ISA:
// fence.mbarrier_init.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's ordinary shared-memory accesses before later accesses of the async proxy
// (TMA, wgmma).
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers of `threads` threads: those that wait and those that only arrive. PTX ISA:
// bar.sync, bar.arrive.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace mlagen
