// Warpgroup matrix multiply through CuTe's atoms. PTX ISA 9.7.15 (wgmma).
#pragma once
#include <cute/arch/mma_sm90_gmma.hpp>
#include "mlagen/base.cuh"

namespace mlagen {

using cute::SM90::GMMA::Major;
using cute::SM90::GMMA::ScaleOut;

// The atoms of one element type: S = Q K^T in 64 x 64 x 16 steps, O += P V in 64 x 256 x 16 steps.
template <class Element>
struct WgmmaAtoms;
template <>
struct WgmmaAtoms<__nv_bfloat16> {
  using ScoreRs = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Major::K, Major::K>;
  using ScoreSs = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<Major::K, Major::K>;
  using OutputSs = cute::SM90::GMMA::MMA_64x256x16_F32BF16BF16_SS<Major::K, Major::MN>;
};
template <>
struct WgmmaAtoms<__half> {
  using ScoreRs = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_RS<Major::K, Major::K>;
  using ScoreSs = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_SS<Major::K, Major::K>;
  using OutputSs = cute::SM90::GMMA::MMA_64x256x16_F32F16F16_SS<Major::K, Major::MN>;
};

// Descriptor of a 128B-swizzled operand. K-major: `sbo` is the distance of 8-row groups, `lbo` is
// not used. MN-major: `lbo` is the distance of 64-element column tiles, `sbo` that of 8-row groups
// along k. All in bytes. Fields, each in units of 16 bytes: start address at bit 0, leading offset
// at 16, stride offset at 32; swizzle mode (1: 128 bytes) at 62. PTX ISA: wgmma matrix descriptor.
__device__ __forceinline__ uint64_t smem_descriptor(unsigned address, int lbo, int sbo) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(lbo >> 4) << 16 | uint64_t(sbo >> 4) << 32 |
         1ull << 62;
}

template <class Atom, int kN, int... kI>
__device__ __forceinline__ void wgmma_ss(uint64_t a, uint64_t b, float (&d)[kN], ScaleOut scale,
                                         Numbers<kI...>) {
  Atom::fma(a, b, d[kI]..., scale);
}
template <class Atom, int kN>
__device__ __forceinline__ void wgmma_ss(uint64_t a, uint64_t b, float (&d)[kN], ScaleOut scale) {
  wgmma_ss<Atom>(a, b, d, scale, NumbersBelow<kN>{});
}

template <class Atom, int kN, int... kI>
__device__ __forceinline__ void wgmma_rs(unsigned const (&a)[4], uint64_t b, float (&d)[kN],
                                         ScaleOut scale, Numbers<kI...>) {
  Atom::fma(a[0], a[1], a[2], a[3], b, d[kI]..., scale);
}
template <class Atom, int kN>
__device__ __forceinline__ void wgmma_rs(unsigned const (&a)[4], uint64_t b, float (&d)[kN],
                                         ScaleOut scale) {
  wgmma_rs<Atom>(a, b, d, scale, NumbersBelow<kN>{});
}

// Before the first wgmma of a batch: registers and shared memory written so far are ready to be
// read.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// No use of the accumulator moves across this point.
template <int kN>
__device__ __forceinline__ void pin(float (&d)[kN]) {
  static_assert(kN % 8 == 0);
#pragma unroll
  for (int i = 0; i < kN; i += 8) {
    asm volatile(""
                 : "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),
                   "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])::"memory");
  }
}

}  // namespace mlagen
