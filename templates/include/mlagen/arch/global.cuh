// Global-memory accesses with the ordering that merging pieces of work needs. PTX ISA: atom,
// ld.acquire.
#pragma once

namespace mlagen {

__device__ __forceinline__ unsigned atomic_add_acq_rel(unsigned* address, unsigned value) {
  unsigned old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}
__device__ __forceinline__ unsigned atomic_exchange_acq_rel(unsigned* address, unsigned value) {
  unsigned old;
  asm volatile("atom.exch.acq_rel.gpu.global.b32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}
__device__ __forceinline__ unsigned load_acquire(unsigned const* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// Sixteen bytes at a fixed distance from `address`, or zeros: predicated, so that one address
// serves a whole row.
template <int kBytes>
__device__ __forceinline__ void load_or_zero_16(unsigned (&value)[4], void const* address,
                                                bool valid) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4 + %6];\n"
      "}"
      : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
      : "l"(address), "r"(int(valid)), "n"(kBytes));
}

// Brings a line to L2. PTX ISA: prefetch.
__device__ __forceinline__ void prefetch_l2(void const* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace mlagen
