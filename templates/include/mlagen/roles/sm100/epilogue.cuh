// Role epilogue (4 warps): O of an item from tensor memory, normalised, to the output or as a
// partial to the workspace that merge.cuh picks up. Waits stats_full and o_full, produces
// stats_empty and o_empty. Thread t writes row t % 64, half of the columns: 32 bytes at a time, so
// that nothing has to be staged in shared memory.
#pragma once
#include "mlagen/arch/global.cuh"
#include "mlagen/arch/math.cuh"
#include "mlagen/arch/packed.cuh"
#include "mlagen/merge.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct OutputRole {
  using T = Tiles<Traits>;
  using Element = typename Traits::Element;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  unsigned tmem;
  unsigned items = 0;

  __device__ __forceinline__ static void meet() {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead), Traits::kHalfReadThreads);
  }

  __device__ __forceinline__ void run_item(WorkItem const& work) {
    if constexpr (Traits::kColumnsForm) {
      run_columns(work);
    } else {
      run_rows(work);
    }
    ++items;
  }

  __device__ __forceinline__ void run_rows(WorkItem const& work) {
    FreshThread const self;
    int const row = self.thread % kBlockM, upper = self.thread / kBlockM;
    mbarrier_wait(smem.stats_full[0], items & 1);
    float2 const stats = smem.stats[row];
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem.stats_empty[0]);
    QueryRows<Traits> const rows{p, work.row, work.tile};
    bool const split = work.split(), writes = work.tile < p.tiles && row < rows.count();
    int const slot = int(blockIdx.x) * 2 + work.slot();
    Element* to = static_cast<Element*>(p.partial_out) + (long long)slot * (kBlockM * kLatent) +
                  row * kLatent;
    if (!split) to = rows.out(writes ? row : 0);
    mbarrier_wait(smem.o_full[0], items & 1);  // all P V of the item are done
    tmem_fence_after();
    unsigned const from = tmem + (unsigned(self.warp() * 32) << 16) + Traits::kTmemOutput;
#pragma unroll 2
    for (int column = 0; column < 256; column += 32) {
      float v[32];
      tmem_load(from + column, v);
      tmem_wait_load(v);
      Element* const place = to + T::latent(column, upper);
      if (writes) {
#pragma unroll
        for (int i = 0; i < 32; i += 8) {
          uint4 const packed = make_uint4(pack<Element>(v[i] * stats.y, v[i + 1] * stats.y),
                                          pack<Element>(v[i + 2] * stats.y, v[i + 3] * stats.y),
                                          pack<Element>(v[i + 4] * stats.y, v[i + 5] * stats.y),
                                          pack<Element>(v[i + 6] * stats.y, v[i + 7] * stats.y));
          __stcg(reinterpret_cast<uint4*>(place + i), packed);
        }
      }
    }
    tmem_fence_before();
    __syncwarp();
    if (elect_lane()) T::arrive_at_leader(smem.o_empty[0]);
    __syncwarp();
    if (upper == 0) {
      if (split) {
        __stcg(p.partial_lse + (long long)slot * 2 * kBlockM + row, stats.x);
      } else if (writes && p.lse != nullptr) {
        *rows.lse(row) = stats.x * kLn2;
      }
    }
    if (split) {
      meet();
      if (self.thread == 0 && work.tile < p.tiles) announce(work.slot());
    }
  }

  // Columns form: lane l of O is a latent column, registers are rows. Each warp turns 32 columns of
  // 16 rows at a time in its own part of `turn`.
  __device__ __forceinline__ void run_columns(WorkItem const& work) {
    using C = Columns<Traits>;
    constexpr int kRows = C::kRows, kChunks = kRows * 4 / 32;  // 16-byte chunks of a lane
    FreshThread const self;
    int const lane = self.lane(), thread = self.thread;
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const count = rows.count(), slot = int(blockIdx.x) * 2 + work.slot();
    bool const split = work.split();
    mbarrier_wait(smem.stats_full[0], items & 1);
    float inverse[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) inverse[r] = smem.stats[r].y;
    if (thread < count) {
      float const lse = smem.stats[thread].x;
      if (split) {
        __stcg(p.partial_lse + (long long)slot * 2 * kBlockM + thread, lse);
      } else if (p.lse != nullptr) {
        *rows.lse(thread) = lse * kLn2;
      }
    }
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem.stats_empty[0]);
    Element* to[kChunks];  // of this lane's rows lane / 4 + 8 i
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      int const row = lane / 4 + 8 * i;
      to[i] = split ? static_cast<Element*>(p.partial_out) + (long long)slot * (kBlockM * kLatent) +
                          row * kLatent
                    : rows.out(row < count ? row : 0);
      to[i] += self.warp() * 32 + lane % 4 * 8;
    }
    unsigned const turn = smem_address(smem.turn) + self.warp() * 1024;
    mbarrier_wait(smem.o_full[0], items & 1);  // all P V of the item are done
    tmem_fence_after();
    unsigned const from = tmem + (unsigned(self.warp() * 32) << 16) + Traits::kTmemOutput;
#pragma unroll
    for (int piece = 0; piece < C::kPieces; ++piece) {
      float v[kRows];
      tmem_load(from + piece * kRows, v);
      tmem_wait_load(v);
#pragma unroll
      for (int first = 0; first < kRows; first += 16) {
        __syncwarp();  // the part has been read
#pragma unroll
        for (int r = 0; r < 16; r += 2) {
          unsigned const pair = pack<Element>(v[first + r] * inverse[first + r],
                                              v[first + r + 1] * inverse[first + r + 1]);
          store_shared_2(turn + r * 64 + lane * 2, pair & 0xffff);
          store_shared_2(turn + r * 64 + 64 + lane * 2, pair >> 16);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint4 const chunk = load_shared_16(turn + lane * 16 + i * 512);
          int const row = first + lane / 4 + 8 * i;
          if (row < count) __stcg(reinterpret_cast<uint4*>(to[first / 8 + i] + piece * 128), chunk);
        }
      }
    }
    tmem_fence_before();
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem.o_empty[0]);
    __syncwarp();
    if (split) {
      meet();
      if (thread == 0) announce(work.slot());
    }
  }

  // An item without keys: zeros and -inf.
  __device__ __forceinline__ void write_empty(WorkItem const& work) const {
    if (work.tile >= p.tiles) return;
    FreshThread const self;
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const lane = self.lane();
    for (int row = self.warp(); row < rows.count(); row += 4) {
      uint4* const to = reinterpret_cast<uint4*>(rows.out(row)) + lane;
      to[0] = to[32] = make_uint4(0, 0, 0, 0);
      if (lane == 0 && p.lse != nullptr) *rows.lse(row) = negative_infinity();
    }
  }

  // Arrive at the counter of the shared row: see merge.cuh.
  __device__ __forceinline__ void announce(int which) const {
    MergeDuty const& duty = smem.duty[which];
    int const holder = Place<Traits>(p, int(blockIdx.x)).cta_of(p, duty.first_team);
    __threadfence();
    smem.arrival[which * 2] =
        atomic_add_acq_rel(arrival_counter<Traits>(p, holder, 0), arrival_weight(duty));
  }

  __device__ __forceinline__ void run_list() {
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const& work = smem.work[0].item[item];
      if (work.blocks == 0) {
        write_empty(work);
      } else {
        run_item(work);
      }
    }
  }
};

}  // namespace mlagen
