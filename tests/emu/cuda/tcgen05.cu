// D = A B^T of one (128 kCtas) x 128 x 64 tile with tcgen05.mma of one or two CTAs, through CuTe's wrappers.
// kCtas is 1 or 2 (-DCTAS).
#include <cute/arch/copy_sm100.hpp>
#include <cute/arch/copy_sm100_tma.hpp>
#include <cute/arch/copy_sm90_desc.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm100_desc.hpp>
#include <cute/arch/mma_sm100_umma.hpp>
#include <cute/arch/tmem_allocator_sm100.hpp>
#include <cutlass/arch/barrier.h>

using Element = cutlass::bfloat16_t;
constexpr int kCtas = CTAS, kM = 128 * kCtas, kN = 128, kK = 64;
using cute::UMMA::Major;
using Mma = cute::conditional_t<kCtas == 1, cute::SM100_MMA_F16BF16_SS<Element, Element, float, 128, kN, Major::K, Major::K>,
                                cute::SM100_MMA_F16BF16_2x1SM_SS<Element, Element, float, 256, kN, Major::K, Major::K>>;
using Allocator = cute::conditional_t<kCtas == 1, cute::TMEM::Allocator1Sm, cute::TMEM::Allocator2Sm>;
using Load = cute::conditional_t<kCtas == 1, cute::SM90_TMA_LOAD_2D, cute::SM100_TMA_2SM_LOAD_2D>;

struct alignas(1024) Shared {
  alignas(1024) Element a[128 * kK];
  alignas(1024) Element b[kN / kCtas * kK];
  alignas(16) uint64_t full;
  alignas(16) uint64_t done;
  alignas(16) uint32_t tmem;
};

__device__ __forceinline__ uint64_t descriptor(void const* tile) {
  cute::UMMA::SmemDescriptor d;
  d.desc_ = 0;
  d.version_ = 1;
  d.layout_type_ = uint8_t(cute::UMMA::LayoutType::SWIZZLE_128B);
  d.start_address_ = uint16_t(cute::cast_smem_ptr_to_uint(tile) >> 4);
  d.leading_byte_offset_ = 1;
  d.stride_byte_offset_ = 64;
  return d.desc_;
}

extern "C" __global__ void __launch_bounds__(128, 1) __cluster_dims__(kCtas, 1, 1)
k(const __grid_constant__ cute::TmaDescriptor map_a, const __grid_constant__ cute::TmaDescriptor map_b, float* out, int stride) {
  extern __shared__ __align__(1024) unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  int rank = kCtas == 1 ? 0 : int(cute::block_rank_in_cluster());
  bool first_warp = threadIdx.x / 32 == 0;
  Allocator allocator{};
  if (first_warp) {
    allocator.allocate(128, &s.tmem);
    if (cute::elect_one_sync()) {
      cute::initialize_barrier(s.full, 1);
      cute::initialize_barrier(s.done, 1);
      cutlass::arch::fence_barrier_init();
    }
  }
  if constexpr (kCtas == 2) cute::cluster_sync();
  __syncthreads();
  if (first_warp && cute::elect_one_sync()) {
    uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    if (rank == 0) cute::set_barrier_transaction_bytes(s.full, kCtas * (sizeof(s.a) + sizeof(s.b)));
    Load::copy(&map_a, &s.full, hint, s.a, 0, rank * 128);
    Load::copy(&map_b, &s.full, hint, s.b, 0, rank * (kN / kCtas));
  }
  if (rank == 0 && first_warp) {
    cute::wait_barrier(s.full, 0);
    auto shape = cute::UMMA::make_instr_desc<Element, Element, float, kM, kN, Major::K, Major::K>();
    uint64_t instruction = uint64_t(uint32_t(shape)) << 32, a = descriptor(s.a), b = descriptor(s.b);
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) Mma::fma(a + 2 * k, b + 2 * k, s.tmem, k ? 1u : 0u, instruction);
    if constexpr (kCtas == 1) cutlass::arch::umma_arrive(&s.done);
    else cutlass::arch::umma_arrive_multicast_2x1SM(&s.done, uint16_t(3));
  }
  cute::wait_barrier(s.done, 0);
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  float* row = out + (rank * 128 + threadIdx.x) * stride;
  uint32_t place = s.tmem + ((threadIdx.x / 32) << 21);
#pragma unroll
  for (int c = 0; c < kN; c += 4) {
    uint32_t r[4];
    cute::SM100::TMEM::LOAD::SM100_TMEM_LOAD_32dp32b4x::copy(place + c, r[0], r[1], r[2], r[3]);
    cutlass::arch::fence_view_async_tmem_load();
    *reinterpret_cast<uint4*>(row + c) = make_uint4(r[0], r[1], r[2], r[3]);
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  if constexpr (kCtas == 2) cute::cluster_sync();
  if (first_warp) {
    allocator.release_allocation_lock();
    allocator.free(s.tmem, 128);
  }
}
