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

// Four bytes at a fixed distance from `address`, or zero: predicated, so that one address serves a
// whole row.
template <int kBytes>
__device__ __forceinline__ unsigned load_or_zero(void const* address, bool valid) {
  unsigned value;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@p ld.global.nc.b32 %0, [%1 + %3];\n"
      "}"
      : "=r"(value)
      : "l"(address), "r"(int(valid)), "n"(kBytes));
  return value;
}

}  // namespace mlagen
