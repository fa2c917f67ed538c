// Tensor memory and the fifth-generation tensor core. PTX ISA 9.7.16 (tcgen05).
//
// CuTe's atoms are left out on purpose: it has none for `.ws`, which the one-CTA form needs, and
// the pair's form is the same line with two other words.
#pragma once
#include "mlagen/arch/mbarrier.cuh"

namespace mlagen {

// -- allocation: one whole warp; with two CTAs the same warp of both.
template <int kGroup>
__device__ __forceinline__ void tmem_allocate(unsigned* place, int columns) {
  if constexpr (kGroup == 2) {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     smem_address(place)),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
  } else {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     smem_address(place)),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  }
}
template <int kGroup>
__device__ __forceinline__ void tmem_free(unsigned address, int columns) {
  if constexpr (kGroup == 2) {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns));
  } else {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns));
  }
}

// -- registers: 32 or 16 columns of the warp's 32 lanes, one register a column. Until the wait the
// registers of a load belong to it, so the wait names them.
__device__ __forceinline__ void tmem_load(unsigned address, float (&d)[32]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31}, [%32];"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15]), "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]),
        "=f"(d[21]), "=f"(d[22]), "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]),
        "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
      : "r"(address));
}
__device__ __forceinline__ void tmem_load(unsigned address, float (&d)[16]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, [%16];"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15])
      : "r"(address));
}
__device__ __forceinline__ void tmem_store(unsigned address, float const (&d)[32]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
      "%29, %30, %31};" ::"f"(d[0]),
      "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]), "f"(d[8]),
      "f"(d[9]), "f"(d[10]), "f"(d[11]), "f"(d[12]), "f"(d[13]), "f"(d[14]), "f"(d[15]), "f"(d[16]),
      "f"(d[17]), "f"(d[18]), "f"(d[19]), "f"(d[20]), "f"(d[21]), "f"(d[22]), "f"(d[23]),
      "f"(d[24]), "f"(d[25]), "f"(d[26]), "f"(d[27]), "f"(d[28]), "f"(d[29]), "f"(d[30]),
      "f"(d[31]), "r"(address)
      : "memory");
}
__device__ __forceinline__ void tmem_store(unsigned address, float const (&d)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
      "%11, %12, %13, %14, %15};" ::"f"(d[0]),
      "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]), "f"(d[8]),
      "f"(d[9]), "f"(d[10]), "f"(d[11]), "f"(d[12]), "f"(d[13]), "f"(d[14]), "f"(d[15]),
      "r"(address)
      : "memory");
}
__device__ __forceinline__ void tmem_wait_load(float (&d)[16]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
                 "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
}
// Registers that an earlier wait has covered: no use of them moves above it.
__device__ __forceinline__ void after_wait(float* d) {
  asm volatile(""
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
                 "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
}
__device__ __forceinline__ void tmem_wait_load(float (&d)[32]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  after_wait(d);
  after_wait(d + 16);
}
__device__ __forceinline__ void tmem_wait_load(float (&a)[32], float (&b)[32]) {
  tmem_wait_load(a);
  after_wait(b);
  after_wait(b + 16);
}
__device__ __forceinline__ void tmem_wait_store() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

// Accesses to tensor memory before a synchronisation between threads, and after one.
__device__ __forceinline__ void tmem_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tmem_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// -- descriptors
// A 128B-swizzled operand in shared memory; fields in units of 16 bytes: start address at bit 0,
// leading offset at 16, stride offset at 32; version 1 at bit 46; swizzle mode (2: 128 bytes)
// at 61. K-major: `sbo` is the distance of 8-row groups, `lbo` is not used. MN-major: `lbo` is the
// distance of 64-element tiles along MN, `sbo` that of 8-row groups along k. All in bytes.
__device__ __forceinline__ uint64_t operand_descriptor(unsigned address, int lbo, int sbo) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(lbo >> 4) << 16 | uint64_t(sbo >> 4) << 32 |
         1ull << 46 | 2ull << 61;
}
// The same with the swizzle mode (4: 64 bytes, 6: 32 bytes) that short rows need.
__device__ __forceinline__ uint64_t operand_descriptor(unsigned address, int lbo, int sbo,
                                                       int swizzle_bytes) {
  uint64_t const mode = swizzle_bytes == 128 ? 2 : swizzle_bytes == 64 ? 4 : 6;
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(lbo >> 4) << 16 | uint64_t(sbo >> 4) << 32 |
         1ull << 46 | mode << 61;
}

// Instruction descriptor of kind f16 with fp32 accumulation: D format (1: f32) at bit 4, A and B
// formats (0: f16, 1: bf16) at 7 and 10, MN-major A and B at 15 and 16, N / 8 at 17, M / 16 at 24.
template <class Element>
__device__ __forceinline__ constexpr unsigned product_descriptor(int m, int n, bool a_mn_major,
                                                                 bool b_mn_major);
template <>
__device__ __forceinline__ constexpr unsigned product_descriptor<__nv_bfloat16>(int m, int n,
                                                                                bool a_mn_major,
                                                                                bool b_mn_major) {
  return 1u << 4 | 1u << 7 | 1u << 10 | unsigned(a_mn_major) << 15 | unsigned(b_mn_major) << 16 |
         unsigned(n / 8) << 17 | unsigned(m / 16) << 24;
}
template <>
__device__ __forceinline__ constexpr unsigned product_descriptor<__half>(int m, int n,
                                                                         bool a_mn_major,
                                                                         bool b_mn_major) {
  return 1u << 4 | unsigned(a_mn_major) << 15 | unsigned(b_mn_major) << 16 | unsigned(n / 8) << 17 |
         unsigned(m / 16) << 24;
}

// -- products: one thread. D = A B^T, or D += A B^T, of 16 elements along k.
enum class ProductForm {
  kOne,     // one CTA
  kFolded,  // one CTA, 64 rows folded into 128 lanes: `.ws`
  kPair     // two CTAs
};
template <ProductForm kForm>
__device__ __forceinline__ void multiply(unsigned d, uint64_t a, uint64_t b, unsigned shape,
                                         bool accumulate) {
  if constexpr (kForm == ProductForm::kPair) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n"
        "}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(unsigned(accumulate))
        : "memory");
  } else if constexpr (kForm == ProductForm::kFolded) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n"
        "}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(unsigned(accumulate))
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n"
        "}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(unsigned(accumulate))
        : "memory");
  }
}

// Four products along k, their operands kAStep and kBStep bytes apart; the first one overwrites D
// unless `accumulate`, the others add.
#define MLAGEN_FOUR_PRODUCTS(form)                                                              \
  asm volatile(                                                                                 \
      "{\n"                                                                                     \
      ".reg .pred p, q;\n"                                                                      \
      ".reg .b64 a, b;\n"                                                                       \
      "setp.ne.b32 p, %4, 0;\n"                                                                 \
      "setp.eq.b32 q, 0, 0;\n" form                                                             \
      " [%0], %1, %2, %3, p;\n"                                                                 \
      "add.s64 a, %1, %5;\n"                                                                    \
      "add.s64 b, %2, %6;\n" form                                                               \
      " [%0], a, b, %3, q;\n"                                                                   \
      "add.s64 a, a, %5;\n"                                                                     \
      "add.s64 b, b, %6;\n" form                                                                \
      " [%0], a, b, %3, q;\n"                                                                   \
      "add.s64 a, a, %5;\n"                                                                     \
      "add.s64 b, b, %6;\n" form                                                                \
      " [%0], a, b, %3, q;\n"                                                                   \
      "}" ::"r"(d),                                                                             \
      "l"(a), "l"(b), "r"(shape), "r"(unsigned(accumulate)), "n"(kAStep >> 4), "n"(kBStep >> 4) \
      : "memory")
template <ProductForm kForm, int kAStep, int kBStep>
__device__ __forceinline__ void multiply_four(unsigned d, uint64_t a, uint64_t b, unsigned shape,
                                              bool accumulate) {
  if constexpr (kForm == ProductForm::kPair) {
    MLAGEN_FOUR_PRODUCTS("tcgen05.mma.cta_group::2.kind::f16");
  } else if constexpr (kForm == ProductForm::kFolded) {
    MLAGEN_FOUR_PRODUCTS("tcgen05.mma.ws.cta_group::1.kind::f16");
  } else {
    MLAGEN_FOUR_PRODUCTS("tcgen05.mma.cta_group::1.kind::f16");
  }
}
#undef MLAGEN_FOUR_PRODUCTS

// One arrival when all products issued so far by this thread are done: at the own barrier, or at
// the same barrier of both CTAs.
template <bool kPair>
__device__ __forceinline__ void commit(mbarrier& barrier) {
  if constexpr (kPair) {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(smem_address(&barrier)),
        "h"(uint16_t(3))
        : "memory");
  } else {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            smem_address(&barrier))
        : "memory");
  }
}

}  // namespace mlagen
