// Words that every mlagen kernel uses: tile sizes of MLA, warp ranges, register hand-over.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// NVRTC has no offsetof; this is the operator that its front end implements it with.
#define MLAGEN_OFFSETOF(type, member) __INTADDR__(&((static_cast<type*>(nullptr))->member))

namespace mlagen {

using uint16_t = unsigned short;
using uint64_t = unsigned long long;

// A list of numbers as a type, to expand arrays into arguments: 0, 1, ..., kN - 1.
template <int... kI>
struct Numbers {};
template <int kN, int... kI>
struct CountDown : CountDown<kN - 1, kN - 1, kI...> {};
template <int... kI>
struct CountDown<0, kI...> {
  using Result = Numbers<kI...>;
};
template <int kN>
using NumbersBelow = typename CountDown<kN>::Result;

constexpr int kBlockM = 64;   // rows of S: (query token, head) pairs of one tile
constexpr int kBlockN = 64;   // kv tokens of one block
constexpr int kLatent = 512;  // latent columns: both K and V
constexpr int kHalf = 256;    // columns of O that one accumulator warpgroup owns
constexpr int kWarpGroup = 128;
constexpr unsigned kFullWarp = 0xffffffffu;

template <int kFirst, int kCount, int kRegisters>
struct Warps {
  static constexpr int kFirstWarp = kFirst;
  static constexpr int kWarps = kCount;
  static constexpr int kRegs = kRegisters;
  __device__ static constexpr bool contains(int warp) {
    return warp >= kFirst && warp < kFirst + kCount;
  }
};

// PTX ISA: setmaxnreg. Executed by all warps of a warpgroup, once.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Numbers of threads go through unsigned arithmetic: a shift or a mask where signed division would
// need four instructions.
__device__ __forceinline__ int thread_in_group() { return int(threadIdx.x % kWarpGroup); }
__device__ __forceinline__ int warp_in_group() {
  return __shfl_sync(kFullWarp, int(threadIdx.x % kWarpGroup / 32), 0);
}
__device__ __forceinline__ int lane_id() { return int(threadIdx.x % 32); }

// One lane of a whole warp, which needs no register to know itself. PTX ISA: elect.sync.
__device__ __forceinline__ bool elect_lane() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// The thread within its warpgroup, read again at this place: what a rare path derives from it is
// not kept in registers through the main loop.
struct FreshThread {
  int thread;
  __device__ __forceinline__ FreshThread() {
    unsigned index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    thread = int(index % kWarpGroup);
  }
  __device__ __forceinline__ int lane() const { return int(unsigned(thread) % 32); }
  __device__ __forceinline__ int warp() const { return int(unsigned(thread) / 32); }
};

// For numbers that are not negative.
__device__ __forceinline__ constexpr int ceil_div(int a, int b) {
  return int(unsigned(a + b - 1) / unsigned(b));
}
__device__ __forceinline__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ constexpr int clamp_to(int x, int low, int high) {
  return min_of(max_of(x, low), high);
}

}  // namespace mlagen
