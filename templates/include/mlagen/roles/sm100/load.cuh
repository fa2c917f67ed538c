// Role load (1 warp): keys and values of the CTA's work list to the ring, rope tiles to their own
// slot. Waits kv_empty and rope_empty; kv_full, rope_full and tail_full complete with the bytes.
//
// A stage is two slots of 64 keys x 256 columns. Rows form: a stage is a block, the same bytes are
// keys and values. Pair form: a stage is the CTA's 64 keys x 512 columns of a step, or its 256
// latent columns x 128 keys; in the order K0 K1 V0 K2 V1 ..., as the products need them. Ids of
// pages are read one step ahead and never past the row's last key. An id outside the cache is out
// of the tensor map's bounds: the box brings zeros.
#pragma once
#include "mlagen/arch/tma.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct Load {
  using T = Tiles<Traits>;
  static constexpr bool kPair = T::kPair;
  static constexpr int kPage = Traits::kPageSize;
  static constexpr int kBoxRows = kPage < kBlockN ? kPage : kBlockN;  // keys that one box brings
  static constexpr int kBoxes = kBlockN / kBoxRows;  // boxes of a whole block (times tiles below 8)
  static constexpr int kIds = kBoxes > 32 ? 2 : 1;   // ids a lane holds of a block

  struct Block {
    int first;  // first key
    int keys;   // keys that the row has of it; 0 or less: none
    int id[kIds];
    __device__ __forceinline__ int boxes() const {
      return keys <= 0 ? 0 : ceil_div(keys, kBoxRows);
    }
    __device__ __forceinline__ int bytes(int columns) const {
      return boxes() * kBoxRows * columns * 2;
    }
  };
  struct Step {
    Block block[T::kStepBlocks];
  };

  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  TensorMap const& tma_latent;
  TensorMap const& tma_rope;
  unsigned stages = 0;                        // stages of the ring filled so far
  unsigned steps = 0;                         // rope tiles so far
  typename Columns<Traits>::Cursor cursor{};  // next slot (columns form)

  __device__ __forceinline__ void find(WorkItem const& work, int step, Step& to) const {
    int const* const table = p.block_table + (long long)work.row * p.block_table_stride;
    int const end = T::end_key(work), lane = lane_id();
#pragma unroll
    for (int b = 0; b < T::kStepBlocks; ++b) {
      Block& block = to.block[b];
      block.first = T::first_key(work, step) + b * kBlockN;
      block.keys = min_of(end - block.first, kBlockN);
#pragma unroll
      for (int i = 0; i < kIds; ++i) {
        int const box = lane + 32 * i;
        if (box < block.boxes()) block.id[i] = __ldg(table + block.first / kPage + box);
      }
    }
  }

  // One box or one a lane, signalled at `barrier` (shared::cluster address).
  template <int kTiles>
  __device__ __forceinline__ void fetch(TensorMap const& map, unsigned barrier, unsigned to,
                                        int first_tile, Block const& block) const {
    int const lane = lane_id();
    if constexpr (kPage >= 8) {
      int const group = kPage > kBlockN ? block.first % kPage / 8 : 0;
      if (lane < block.boxes()) {
        tma_load_5d_at<kPair>(map, barrier, to + lane * (kBoxRows / 8 * kTiles * kAtomBytes),
                              first_tile, group, block.id[0]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kIds; ++i) {
        int const box = lane + 32 * i, key = box * kPage;
        unsigned const rows = to + key / 8 * (kTiles * kAtomBytes) + key % 8 * 128;
        if (box < block.boxes()) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t)
            tma_load_4d_at<kPair>(map, barrier, rows + t * kAtomBytes, first_tile + t, block.id[i]);
        }
      }
    }
  }

  // Where the leader waits: in a pair both CTAs' bytes count at the first one.
  __device__ __forceinline__ static unsigned full_at(mbarrier& barrier) {
    return kPair ? peer_address(&barrier, 0) : smem_address(&barrier);
  }
  // Each CTA's arrival at the leader's full barrier, with the bytes that it brings itself, even if
  // these are none: no phase completes that a CTA has not come to.
  __device__ __forceinline__ static void expect(mbarrier& barrier, int bytes) {
    if (lane_id() == 0) {
      if constexpr (kPair) {
        mbarrier_arrive_expect_remote(barrier, 0, bytes);
      } else {
        mbarrier_arrive_expect(barrier, bytes);
      }
    }
  }
  __device__ __forceinline__ unsigned slot(int index) const {
    return smem_address(smem.kv) + index * kHalfBytes;
  }
  // Wait: everybody has read the stage (both its slots). First use: parity 1 of a fresh barrier
  // passes.
  __device__ __forceinline__ int next_slot(int half) const {
    int const index = int(stages & 1) * 2 + half;
    mbarrier_wait(smem.kv_empty[index], ((stages >> 1) & 1) ^ 1);
    return index;
  }

  __device__ __forceinline__ void fetch_keys(Step const& step) {
    Block own = step.block[0];
    if (kPair && cluster_rank() == 1) own = step.block[T::kStepBlocks - 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const index = next_slot(half);
      expect(smem.kv_full[index], own.bytes(256));
      fetch<4>(tma_latent, full_at(smem.kv_full[index]), slot(index), half * 4, own);
    }
    ++stages;
    mbarrier_wait(smem.rope_empty[0], (steps & 1) ^ 1);
    expect(smem.rope_full[0], own.bytes(64));
    fetch<1>(tma_rope, full_at(smem.rope_full[0]), smem_address(smem.rope), 0, own);
    __syncwarp();
    ++steps;
  }
  // Pair form: this CTA's columns of all keys of a step. A ragged end is signalled at home, where
  // the softmax warps clear the rows past the end before the leader hears of it.
  __device__ __forceinline__ void fetch_values(Step const& step) {
    int const first_tile = cluster_rank() * 4;
    int bytes = 0;
#pragma unroll
    for (int b = 0; b < T::kStepBlocks; ++b) bytes += step.block[b].bytes(256);
    bool const tail = step.block[T::kStepBlocks - 1].keys < kBlockN;
    if (tail && lane_id() == 0) mbarrier_arrive_expect(smem.tail_full[0], bytes);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Block const& block = step.block[half % T::kStepBlocks];
      int const index = next_slot(half);
      expect(smem.kv_full[index], tail ? 0 : block.bytes(256));
      unsigned const barrier =
          tail ? peer_address(&smem.tail_full[0], cluster_rank()) : full_at(smem.kv_full[index]);
      fetch<4>(tma_latent, barrier, slot(index), first_tile, block);
    }
    ++stages;
  }

  // Columns form: a step in four slots of 128 columns, the same bytes keys and values.
  __device__ __forceinline__ void fetch_columns(Step const& step) {
    using C = Columns<Traits>;
    Block const &low = step.block[0], &high = step.block[T::kStepBlocks - 1];
#pragma unroll 1
    for (int piece = 0; piece < C::kPieces; ++piece, cursor.advance()) {
      mbarrier& full = smem.kv_full[cursor.index];
      // Wait: P V has read the slot. First use: parity 1 of a fresh barrier passes.
      mbarrier_wait(smem.kv_empty[cursor.index], cursor.parity ^ 1);
      expect(full, low.bytes(128) + high.bytes(128));
      unsigned const to = smem_address(smem.kv) + cursor.index * C::kSlotBytes;
      fetch<2>(tma_latent, smem_address(&full), to, piece * 2, low);
      fetch<2>(tma_latent, smem_address(&full), to + C::kSlotBytes / 2, piece * 2, high);
      __syncwarp();
    }
    mbarrier_wait(smem.rope_empty[0], (steps & 1) ^ 1);
    expect(smem.rope_full[0], low.bytes(64) + high.bytes(64));
    unsigned const full = smem_address(&smem.rope_full[0]);
    fetch<1>(tma_rope, full, smem_address(smem.rope), 0, low);
    fetch<1>(tma_rope, full, smem_address(smem.rope) + kTileBytes, 0, high);
    __syncwarp();
    ++steps;
  }
  __device__ __forceinline__ void fetch_step(Step const& step) {
    if constexpr (Traits::kColumnsForm) {
      fetch_columns(step);
    } else {
      fetch_keys(step);
    }
  }

  __device__ __forceinline__ void run_list() {
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const work = smem.work[0].item[item];
      int const steps = T::steps(work);
      if (steps == 0) continue;
      Step now, next;
      find(work, 0, now);
      fetch_step(now);
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        bool const more = step + 1 < steps;
        if (more) {
          find(work, step + 1, next);
          fetch_step(next);
        }
        if constexpr (kPair) fetch_values(now);
        now = next;
      }
    }
  }
};

}  // namespace mlagen
