// Warpgroup matrix multiply through CuTe's atoms. PTX ISA 9.7.15 (wgmma).
#pragma once
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/numeric/integer_sequence.hpp>

namespace mlagen {

using cute::SM90::GMMA::Major;
using cute::SM90::GMMA::ScaleOut;

// The atoms of one element type: S = Q K^T in 64 x 64 x 16 steps, O += P V in 64 x 256 x 16 steps.
template <class Element>
struct WgmmaAtoms;
template <>
struct WgmmaAtoms<cutlass::bfloat16_t> {
  using ScoreRs = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Major::K, Major::K>;
  using ScoreSs = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<Major::K, Major::K>;
  using OutputSs = cute::SM90::GMMA::MMA_64x256x16_F32BF16BF16_SS<Major::K, Major::MN>;
};
template <>
struct WgmmaAtoms<cutlass::half_t> {
  using ScoreRs = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_RS<Major::K, Major::K>;
  using ScoreSs = cute::SM90::GMMA::MMA_64x64x16_F32F16F16_SS<Major::K, Major::K>;
  using OutputSs = cute::SM90::GMMA::MMA_64x256x16_F32F16F16_SS<Major::K, Major::MN>;
};

// Descriptor of a 128B-swizzled operand. K-major: `sbo` is the distance of 8-row groups, `lbo` is
// not used. MN-major: `lbo` is the distance of 64-element column tiles, `sbo` that of 8-row groups
// along k. All in bytes.
__device__ __forceinline__ unsigned long long smem_descriptor(unsigned address, int lbo, int sbo) {
  cute::GmmaDescriptor d;
  d.desc_ = 0;
  d.bitfield.start_address_ = uint16_t((address & 0x3ffff) >> 4);
  d.bitfield.leading_byte_offset_ = uint16_t(lbo >> 4);
  d.bitfield.stride_byte_offset_ = uint16_t(sbo >> 4);
  d.bitfield.layout_type_ = uint8_t(cute::SM90::GMMA::LayoutType::B128);
  return d.desc_;
}

template <class Atom, int kN, int... kI>
__device__ __forceinline__ void wgmma_ss(unsigned long long a, unsigned long long b, float (&d)[kN],
                                         ScaleOut scale, cute::integer_sequence<int, kI...>) {
  Atom::fma(a, b, d[kI]..., scale);
}
template <class Atom, int kN>
__device__ __forceinline__ void wgmma_ss(unsigned long long a, unsigned long long b, float (&d)[kN],
                                         ScaleOut scale) {
  wgmma_ss<Atom>(a, b, d, scale, cute::make_integer_sequence<int, kN>{});
}

template <class Atom, int kN, int... kI>
__device__ __forceinline__ void wgmma_rs(unsigned const (&a)[4], unsigned long long b,
                                         float (&d)[kN], ScaleOut scale,
                                         cute::integer_sequence<int, kI...>) {
  Atom::fma(a[0], a[1], a[2], a[3], b, d[kI]..., scale);
}
template <class Atom, int kN>
__device__ __forceinline__ void wgmma_rs(unsigned const (&a)[4], unsigned long long b,
                                         float (&d)[kN], ScaleOut scale) {
  wgmma_rs<Atom>(a, b, d, scale, cute::make_integer_sequence<int, kN>{});
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
#pragma unroll
  for (int i = 0; i < kN; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

}  // namespace mlagen
