// Role query (2 warps): Q of an item to shared memory, as nine K-major tiles of 64 columns. Waits
// q_empty, produces q_full.
#pragma once
#include "mlagen/arch/cp_async.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct Query {
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  unsigned items = 0;  // items loaded so far

  __device__ __forceinline__ void load(WorkItem const& work) const {
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const warp = int(threadIdx.x / 32) - Traits::QueryWarps::kFirstWarp, lane = lane_id();
    int const count = Tiles<Traits>::kPair && work.tile >= p.tiles ? 0 : rows.count();
    unsigned const base = smem_address(smem.q);
    // Rows past the tile's end are zero.
#pragma unroll 2
    for (int row = warp; row < Traits::kTileRows; row += Traits::QueryWarps::kWarps) {
      bool const valid = row < count;
      auto const* const from = rows.nope(valid ? row : 0) + lane * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        int const chunk = lane + 32 * i;
        cp_async_16(base + chunk / 8 * Tiles<Traits>::kQueryTileBytes + tile_chunk(row, chunk % 8),
                    from + i * 256, valid);
      }
    }
#pragma unroll 2
    for (int first = warp * 4; first < Traits::kTileRows; first += 4 * Traits::QueryWarps::kWarps) {
      int const row = first + lane / 8;
      bool const valid = row < count;
      cp_async_16(base + 8 * Tiles<Traits>::kQueryTileBytes + tile_chunk(row, lane % 8),
                  rows.pe(valid ? row : 0) + lane % 8 * 8, valid);
    }
    cp_async_wait_all();
    fence_async_shared();  // generic -> async: Q is read by the tensor core
    __syncwarp();
  }

  __device__ __forceinline__ void run_list() {
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const& work = smem.work[0].item[item];
      if (work.blocks == 0) continue;
      // Wait: all Q K^T of the item before have read Q. First use: parity 1 of a fresh barrier
      // passes.
      mbarrier_wait(smem.q_empty[0], (items & 1) ^ 1);
      load(work);
      if (elect_lane()) Tiles<Traits>::arrive_at_leader(smem.q_full[0]);
      __syncwarp();
      ++items;
    }
  }
};

}  // namespace mlagen
