// D = A B^T of one 64 x 64 x 64 tile: TMA into 128B-swizzled tiles, wgmma with K-major operands, through CuTe's wrappers.
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>

using Element = cutlass::bfloat16_t;
constexpr int kM = 64, kN = 64, kK = 64;

struct alignas(1024) Shared {
  alignas(1024) Element a[kM * kK];
  alignas(1024) Element b[kN * kK];
  alignas(16) uint64_t full;
};

__device__ __forceinline__ uint64_t descriptor(void const* tile) {
  cute::GmmaDescriptor d{};
  d.bitfield.start_address_ = cute::cast_smem_ptr_to_uint(tile) >> 4;
  d.bitfield.leading_byte_offset_ = 1;
  d.bitfield.stride_byte_offset_ = 64;
  d.bitfield.layout_type_ = uint8_t(cute::SM90::GMMA::LayoutType::B128);
  return d;
}

extern "C" __global__ void __launch_bounds__(128, 1)
k(const __grid_constant__ cute::TmaDescriptor map_a, const __grid_constant__ cute::TmaDescriptor map_b, float* out, int stride) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  if (threadIdx.x == 0) {
    cute::initialize_barrier(s.full, 1);
    cutlass::arch::fence_barrier_init();
    cute::set_barrier_transaction_bytes(s.full, sizeof(s.a) + sizeof(s.b));
    uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_2D::copy(&map_a, &s.full, hint, s.a, 0, 0);
    cute::SM90_TMA_LOAD_2D::copy(&map_b, &s.full, hint, s.b, 0, 0);
  }
  __syncthreads();
  cute::wait_barrier(s.full, 0);
  float d[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    d[i] = 0.f;
    cute::warpgroup_fence_operand(d[i]);
  }
  using Mma = cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>;
  uint64_t a = descriptor(s.a), b = descriptor(s.b);
  cute::warpgroup_arrive();
#pragma unroll
  for (int k = 0; k < kK / 16; ++k)
    Mma::fma(a + 2 * k, b + 2 * k, d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10], d[11], d[12], d[13],
             d[14], d[15], d[16], d[17], d[18], d[19], d[20], d[21], d[22], d[23], d[24], d[25], d[26], d[27], d[28], d[29],
             d[30], d[31], cute::SM90::GMMA::ScaleOut::One);
  cute::warpgroup_commit_batch();
  cute::warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < 32; ++i) cute::warpgroup_fence_operand(d[i]);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* row = out + (warp * 16 + lane / 4) * stride + (lane % 4) * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    *reinterpret_cast<float2*>(row + j * 8) = make_float2(d[4 * j], d[4 * j + 1]);
    *reinterpret_cast<float2*>(row + 8 * stride + j * 8) = make_float2(d[4 * j + 2], d[4 * j + 3]);
  }
}
