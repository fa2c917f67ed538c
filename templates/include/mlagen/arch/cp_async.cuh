// 16- and 4-byte copies from global to shared memory that do not pass through registers. PTX ISA:
// cp.async.
#pragma once

namespace mlagen {

// Copies 16 bytes, or writes zeros where `valid` is false; the source must be a valid address
// either way.
__device__ __forceinline__ void cp_async_16(unsigned destination, void const* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_16(unsigned destination, void const* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}
__device__ __forceinline__ void cp_async_4(unsigned destination, void const* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace mlagen
