// Role mma (1 warp, one lane of it; in a pair that of the first CTA): S = Q K^T, O += P V.
// Waits q_full, kv_full, rope_full, s_empty, probs_full, o_empty; its commits complete q_empty,
// kv_empty, rope_empty, s_full, probs_empty, o_full, in a pair in both CTAs.
//
// Q K^T of a step is issued before P V of the one before: the softmax of one runs under the other.
#pragma once
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct MultiplyRole {
  using T = Tiles<Traits>;
  static constexpr bool kPair = T::kPair;
  typename Traits::Smem& smem;
  unsigned tmem;
  unsigned stages = 0;  // stages of the ring waited for
  unsigned values = 0;  // stage of the next values (rows form)
  unsigned scored = 0;  // steps scored
  unsigned added = 0;   // steps added to O
  unsigned items = 0;

  template <bool kWait>
  __device__ __forceinline__ int slot_of(unsigned stage, int half) const {
    int const index = int(stage & 1) * 2 + half;
    if constexpr (kWait) mbarrier_wait(smem.kv_full[index], (stage >> 1) & 1);
    return index;
  }

  __device__ __forceinline__ void score() {
    int const buffer = int(scored & 1);
    // Wait: the softmax warps have read this buffer. First uses: parity 1 of a fresh barrier
    // passes.
    mbarrier_wait(smem.s_empty[buffer], ((scored >> 1) & 1) ^ 1);
    tmem_fence_after();
    unsigned const s = tmem + Traits::kTmemScores + buffer * T::kScoreColumns;
    uint64_t const query = operand_descriptor(smem_address(smem.q), 16, kAtomBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const index = slot_of<true>(stages, half);
      uint64_t const keys =
          operand_descriptor(smem_address(smem.kv) + index * kHalfBytes, 16, kGroupBytes);
#pragma unroll
      for (int t = 0; t < 4; ++t) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          multiply<T::kForm>(s, query + desc_offset((half * 4 + t) * kTileBytes + k * kStep),
                             keys + desc_offset(t * kAtomBytes + k * kStep), T::kScoreShape,
                             half + t + k > 0);
        }
      }
      if constexpr (kPair) commit<kPair>(smem.kv_empty[index]);
    }
    ++stages;
    mbarrier_wait(smem.rope_full[0], scored & 1);
    uint64_t const rope = operand_descriptor(smem_address(smem.rope), 16, kAtomBytes);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      multiply<T::kForm>(s, query + desc_offset(8 * kTileBytes + k * kStep),
                         rope + desc_offset(k * kStep), T::kScoreShape, true);
    }
    commit<kPair>(smem.rope_empty[0]);
    commit<kPair>(smem.s_full[buffer]);
    ++scored;
  }

  // 16 keys: 256 columns of O a product, two of them.
  __device__ __forceinline__ void add_keys(uint64_t probs, uint64_t values, int piece,
                                           bool add) const {
    multiply<T::kForm>(tmem + Traits::kTmemOutput + piece * 128, probs, values, T::kOutputShape,
                       add);
  }

  // `keys`: of the step that the row has; products of 16 keys past them are left out.
  __device__ __forceinline__ void add(int keys, bool first) {
    int const buffer = int(added % Traits::kProbsFullStages);
    mbarrier_wait(smem.probs_full[buffer], (added / Traits::kProbsFullStages) & 1);
    uint64_t const probs =
        operand_descriptor(smem_address(smem.probs) + buffer * T::kProbsBytes, 16, kAtomBytes);
    if (keys >= T::kStepKeys) {
      add_step<false>(probs, keys, first);
    } else {
      add_step<true>(probs, keys, first);
    }
    commit<kPair>(smem.probs_empty[buffer]);
    ++added;
  }
  template <bool kRagged>
  __device__ __forceinline__ void add_step(uint64_t probs, int keys, bool first) {
    unsigned const stage = kPair ? stages : values;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const index = slot_of<kPair>(stage, half);
      if (half == 0) tmem_fence_after();
      unsigned const slot = smem_address(smem.kv) + index * kHalfBytes;
      uint64_t const v = operand_descriptor(slot, kAtomBytes, kGroupBytes);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (kPair) {
          if (kRagged && half * 64 + k * 16 >= keys) continue;
#pragma unroll
          for (int piece = 0; piece < 2; ++piece) {
            add_keys(probs + desc_offset(half * kTileBytes + k * kStep),
                     v + desc_offset(piece * 2 * kAtomBytes + k * kValueStep), piece,
                     !first || half + k > 0);
          }
        } else {
          if (kRagged && k * 16 >= keys) continue;
          add_keys(probs + desc_offset(k * kStep), v + desc_offset(k * kValueStep), half,
                   !first || k > 0);
        }
      }
      commit<kPair>(smem.kv_empty[index]);
    }
    if constexpr (kPair) {
      ++stages;
    } else {
      ++values;
    }
  }

  __device__ __forceinline__ void run_item(WorkItem const& work) {
    int const steps = T::steps(work);
    if (steps == 0) return;
    mbarrier_wait(smem.q_full[0], items & 1);
    score();
    if (steps == 1) commit<kPair>(smem.q_empty[0]);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) score();
      if (step + 2 == steps) commit<kPair>(smem.q_empty[0]);
      // Wait: the epilogue has read O of the item before. First use: parity 1 of a fresh barrier.
      if (step == 0) mbarrier_wait(smem.o_empty[0], (items & 1) ^ 1);
      add(T::keys(work, step), step == 0);
    }
    commit<kPair>(smem.o_full[0]);
    ++items;
  }
  __device__ __forceinline__ void run_list() {
    if (T::leads() && elect_lane()) {
      for (int item = 0; item < smem.work[0].count; ++item) run_item(smem.work[0].item[item]);
    }
    __syncwarp();
  }
};

}  // namespace mlagen
