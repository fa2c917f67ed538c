// What the roles of sm_100 share: the forms of the products, where operands stand in shared and in
// tensor memory, and who leads a pair.
//
// Rows form (one CTA): 64 rows of Q by 64 keys, `.ws`. Pair form (two CTAs): 64 rows in each by 128
// keys, of which each CTA holds 64 as keys and 256 latent columns as values. Both put row r into
// lanes r and r + 64: the lower half of an accumulator's columns into the lower lanes, the upper
// half into the upper ones.
//
// Columns form (one CTA, few heads): 128 keys by 16 or 32 rows of Q, all transposed. Key k of a
// step is lane k of S, latent column l is lane l % 128 of O, rows are columns: nothing is padded
// to 64.
#pragma once
#include "mlagen/arch/cluster.cuh"
#include "mlagen/arch/tcgen05.cuh"
#include "mlagen/kv/tile_layout.cuh"
#include "mlagen/query_rows.cuh"
#include "mlagen/schedule.cuh"

namespace mlagen {

constexpr float kReferenceSlack =
    8.f;  // log2: O is rescaled when a row outgrows its reference by more
constexpr float kNoReference = -1e30f;  // of a row that has seen no key: finite, so no inf - inf
constexpr int kQueryTiles = 9;          // 64-column tiles of Q: 8 latent, 1 rope

template <class Traits>
struct Tiles {
  static constexpr bool kPair = Traits::kPairForm;
  static constexpr int kStepKeys = Traits::kStepKeys;      // keys of one softmax step
  static constexpr int kStepBlocks = kStepKeys / kBlockN;  // blocks of the schedule in it
  static constexpr int kProbsBytes = kStepKeys / 64 * kTileBytes;
  static constexpr int kScoreColumns = kStepKeys / 2;  // of tensor memory
  static constexpr int kQueryTileBytes = Traits::kTileRows * 128;
  static constexpr ProductForm kForm = kPair ? ProductForm::kPair : ProductForm::kFolded;
  static constexpr int kM = kPair ? 128 : 64;
  static constexpr unsigned kScoreShape =
      product_descriptor<typename Traits::Element>(kM, kStepKeys, false, false);
  static constexpr unsigned kOutputShape =
      product_descriptor<typename Traits::Element>(kM, 256, false, true);

  __device__ __forceinline__ static bool leads() { return !kPair || cluster_rank() == 0; }
  __device__ __forceinline__ static int steps(WorkItem const& work) {
    return ceil_div(work.blocks, kStepBlocks);
  }
  // First key of a step, and keys of it that the row has.
  __device__ __forceinline__ static int first_key(WorkItem const& work, int step) {
    return work.first_block * kBlockN + step * kStepKeys;
  }
  __device__ __forceinline__ static int end_key(WorkItem const& work) {
    return min_of((work.first_block + work.blocks) * kBlockN, work.length);
  }
  __device__ __forceinline__ static int keys(WorkItem const& work, int step) {
    return min_of(end_key(work) - first_key(work, step), kStepKeys);
  }
  // Latent column that column `column` of O holds in the lower (0) or upper (1) lanes.
  __device__ __forceinline__ static constexpr int latent(int column, int upper) {
    return kPair ? column + upper * 256 : column / 128 * 256 + upper * 128 + column % 128;
  }
  // An arrival at the leader's barrier.
  __device__ __forceinline__ static void arrive_at_leader(mbarrier& barrier) {
    if constexpr (kPair) {
      mbarrier_arrive_remote(barrier, 0);
    } else {
      mbarrier_arrive(barrier);
    }
  }
};

// Columns form: slots of 128 keys x 128 latent columns, groups of 8 keys 2 KB apart.
template <class Traits>
struct Columns {
  static constexpr int kRows = Traits::kTileRows;       // 16 or 32
  static constexpr int kSlots = Traits::kKvFullStages;  // of the ring
  static constexpr int kPieces = kLatent / 128;         // slots of a step, accumulators of O
  static constexpr int kSlotBytes = 128 * 128 * 2;
  static constexpr int kKeyGroupBytes = 2 * kAtomBytes;
  static constexpr int kProbsRowBytes = 2 * kRows;  // a key's P: one row of a swizzle atom as wide
  static constexpr unsigned kScoreShape =
      product_descriptor<typename Traits::Element>(128, kRows, false, false);
  static constexpr unsigned kOutputShape =
      product_descriptor<typename Traits::Element>(128, kRows, true, true);

  // A place in the ring.
  struct Cursor {
    int index = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void advance() {
      if (++index == kSlots) index = 0, parity ^= 1;
    }
  };
};

}  // namespace mlagen
