// The walk of one loading warp over the blocks of its CTA's work list, and the boxes that fetch one
// block.
//
// A page of 64 tokens or more gives a block in one box; a page of 8 to 32 is one box of whole 8-key
// groups, one lane a page; a smaller page is one box a column tile, one lane a page. Ids of the
// next block are read while this one is in flight, and never past the row's last key. An id outside
// the cache is out of the tensor map's bounds: the box brings zeros.
#pragma once
#include "mlagen/arch/cluster.cuh"
#include "mlagen/arch/tma.cuh"
#include "mlagen/kv/tile_layout.cuh"
#include "mlagen/schedule.cuh"

namespace mlagen {

template <class Traits>
struct PageWalk {
  static constexpr int kPage = Traits::kPageSize;
  static constexpr int kBoxRows = kPage < kBlockN ? kPage : kBlockN;  // keys that one box brings
  static constexpr int kBoxes = kBlockN / kBoxRows;  // boxes of a whole block (times tiles below 8)
  static constexpr int kIds = kBoxes > 32 ? 2 : 1;   // ids a lane holds

  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  int item = -1;  // in the work list; its length when the walk has ended
  int block = 0;  // next block, absolute
  int id[kIds];

  __device__ __forceinline__ bool ended() const { return item >= smem.work[0].count; }
  __device__ __forceinline__ WorkItem const& work() const { return smem.work[0].item[item]; }

  // To the first place of the list.
  __device__ __forceinline__ void start() {
    item = -1;
    next_item();
  }
  // To the place behind this one.
  __device__ __forceinline__ void advance() {
    ++block;
    if (block == work().first_block + work().places()) {
      next_item();
    } else {
      fetch_ids();
    }
  }
  // Does the current place hold a block for this CTA? Always in 1SM; in 2SM the last place of an
  // item may not.
  __device__ __forceinline__ bool has_block() const {
    return Traits::kCtaGroup == 1 || block < work().first_block + work().blocks;
  }
  __device__ __forceinline__ bool shared_by_pair() const {
    return Traits::kCtaGroup == 2 && !work().pair_splits();
  }

  // Keys of the current block that the row has.
  __device__ __forceinline__ int keys() const {
    return min_of(work().length - block * kBlockN, kBlockN);
  }
  __device__ __forceinline__ int boxes() const { return ceil_div(keys(), kBoxRows); }
  // Bytes of `columns` columns of the current block that the boxes bring.
  __device__ __forceinline__ int bytes(int columns) const {
    return boxes() * kBoxRows * columns * int(sizeof(typename Traits::Element));
  }

  // Fetches the current block: kTiles column tiles from tile `first_tile` on, into this CTA or into
  // both of a pair that shares it. All lanes.
  template <int kTiles>
  __device__ __forceinline__ void fetch(TensorMap const& map, mbarrier& full,
                                        unsigned char* destination, int first_tile) const {
    constexpr bool kPair = Traits::kCtaGroup == 2;
    int const lane = lane_id();
    uint16_t const mask = uint16_t(!kPair ? 0 : shared_by_pair() ? 3 : 1 << cluster_rank());
    if constexpr (kPage >= 8) {
      constexpr int kBoxBytes = kBoxRows / 8 * kTiles * kAtomBytes;
      int const group = kPage > kBlockN ? block % (kPage / kBlockN) * (kBlockN / 8) : 0;
      if (lane < boxes()) {
        tma_load_5d<kPair>(map, full, destination + lane * kBoxBytes, mask, first_tile, group,
                           id[0]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kIds; ++i) {
        int const box = lane + 32 * i, key = box * kPage;
        unsigned char* const rows = destination + key / 8 * (kTiles * kAtomBytes) + key % 8 * 128;
        if (box < boxes()) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            tma_load_4d<kPair>(map, full, rows + t * kAtomBytes, mask, first_tile + t, id[i]);
          }
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void next_item() {
    ++item;
    while (!ended()) {
      if (work().places() > 0) {
        block = work().first_block;
        fetch_ids();
        return;
      }
      ++item;
    }
  }
  __device__ __forceinline__ void fetch_ids() {
    if (!has_block()) return;
    int const lane = lane_id();
    int const* const table = p.block_table + (long long)work().row * p.block_table_stride;
    int const first = kPage > kBlockN ? block / (kPage / kBlockN) : block * kBoxes;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      if (lane + 32 * i < boxes()) id[i] = __ldg(table + first + lane + 32 * i);
    }
  }
};

}  // namespace mlagen
