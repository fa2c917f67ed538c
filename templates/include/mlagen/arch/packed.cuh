// Two fp32 operations in one instruction, and a maximum of three: sm_100 and up. PTX ISA: fma, add,
// mul .f32x2, max with three inputs; bar.red.
#pragma once
#include "mlagen/base.cuh"

namespace mlagen {

using float_pair = unsigned long long;  // two floats in a 64-bit register

__device__ __forceinline__ float_pair make_pair(float low, float high) {
  float_pair r;
  asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "f"(low), "f"(high));
  return r;
}
__device__ __forceinline__ void split_pair(float_pair pair, float& low, float& high) {
  asm("mov.b64 {%0, %1}, %2;" : "=f"(low), "=f"(high) : "l"(pair));
}
__device__ __forceinline__ float_pair fma_pair(float_pair a, float_pair b, float_pair c) {
  float_pair r;
  asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(r) : "l"(a), "l"(b), "l"(c));
  return r;
}
__device__ __forceinline__ float_pair add_pair(float_pair a, float_pair b) {
  float_pair r;
  asm("add.rn.f32x2 %0, %1, %2;" : "=l"(r) : "l"(a), "l"(b));
  return r;
}
__device__ __forceinline__ float_pair mul_pair(float_pair a, float_pair b) {
  float_pair r;
  asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(r) : "l"(a), "l"(b));
  return r;
}
__device__ __forceinline__ float max_of_three(float a, float b, float c) {
  float r;
  asm("max.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}

// 16 bytes to shared memory.
__device__ __forceinline__ void store_shared_16(unsigned address, unsigned a, unsigned b,
                                                unsigned c, unsigned d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

// The lower 2 bytes to shared memory.
__device__ __forceinline__ void store_shared_2(unsigned address, unsigned value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(uint16_t(value)) : "memory");
}

// Meets `threads` threads at a named barrier and says whether any of them brought true.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool mine) {
  unsigned any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.b32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(unsigned(mine))
      : "memory");
  return any != 0;
}

}  // namespace mlagen
