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
        multiply_four<T::kForm, kStep, kStep>(s, query + desc_offset((half * 4 + t) * kTileBytes),
                                              keys + desc_offset(t * kAtomBytes), T::kScoreShape,
                                              half + t > 0);
      }
      if constexpr (kPair) commit<kPair>(smem.kv_empty[index]);
    }
    ++stages;
    mbarrier_wait(smem.rope_full[0], scored & 1);
    uint64_t const rope = operand_descriptor(smem_address(smem.rope), 16, kAtomBytes);
    multiply_four<T::kForm, kStep, kStep>(s, query + desc_offset(8 * kTileBytes), rope,
                                          T::kScoreShape, true);
    commit<kPair>(smem.rope_empty[0]);
    commit<kPair>(smem.s_full[buffer]);
    ++scored;
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
      // Pair form: 64 keys of the step, in two pieces of 2 x 128 columns. Rows form: all of its
      // keys, 256 columns.
#pragma unroll
      for (int i = 0; i < (kPair ? 2 : 1); ++i) {
        int const piece = kPair ? i : half, first_key = kPair ? half * 64 : 0;
        unsigned const o = tmem + Traits::kTmemOutput + piece * 128;
        uint64_t const a = probs + desc_offset(kPair ? half * kTileBytes : 0);
        uint64_t const b = v + desc_offset(kPair ? piece * 2 * kAtomBytes : 0);
        bool const overwrites = first && (!kPair || half == 0);
        if constexpr (!kRagged) {
          multiply_four<T::kForm, kStep, kValueStep>(o, a, b, T::kOutputShape, !overwrites);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (first_key + k * 16 < keys) {
              multiply<T::kForm>(o, a + desc_offset(k * kStep), b + desc_offset(k * kValueStep),
                                 T::kOutputShape, !overwrites || k > 0);
            }
          }
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

  __device__ __forceinline__ void run_item(WorkItem work) {
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

// The same in the columns form: S = K Q^T, O += V^T P^T. A whole step nearly fills the ring, so its
// products come one after the other; memory goes on in the slots that P V leaves.
template <class Traits>
struct ColumnsMultiply {
  using T = Tiles<Traits>;
  using C = Columns<Traits>;
  static constexpr ProductForm kForm = ProductForm::kOne;
  static constexpr int kValueStep16 = 2 * C::kKeyGroupBytes;   // 16 keys of V
  static constexpr int kProbsStep16 = 16 * C::kProbsRowBytes;  // 16 keys of P
  typename Traits::Smem& smem;
  unsigned tmem;
  typename C::Cursor keys_at{}, values_at{};
  unsigned steps = 0, items = 0;

  __device__ __forceinline__ unsigned slot(int index) const {
    return smem_address(smem.kv) + index * C::kSlotBytes;
  }

  __device__ __forceinline__ void score() {
    int const buffer = int(steps & 1);
    // Wait: the softmax warps have read this buffer. First uses: parity 1 of a fresh barrier
    // passes.
    mbarrier_wait(smem.s_empty[buffer], ((steps >> 1) & 1) ^ 1);
    tmem_fence_after();
    unsigned const s = tmem + Traits::kTmemScores + buffer * C::kRows;
    uint64_t const query = operand_descriptor(smem_address(smem.q), 16, kAtomBytes);
#pragma unroll
    for (int piece = 0; piece < C::kPieces; ++piece, keys_at.advance()) {
      mbarrier_wait(smem.kv_full[keys_at.index], keys_at.parity);
      uint64_t const keys = operand_descriptor(slot(keys_at.index), 16, C::kKeyGroupBytes);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        multiply_four<kForm, kStep, kStep>(
            s, keys + desc_offset(t * kAtomBytes),
            query + desc_offset((piece * 2 + t) * T::kQueryTileBytes), C::kScoreShape,
            piece + t > 0);
      }
    }
    mbarrier_wait(smem.rope_full[0], steps & 1);
    uint64_t const rope = operand_descriptor(smem_address(smem.rope), 16, kAtomBytes);
    multiply_four<kForm, kStep, kStep>(s, rope, query + desc_offset(8 * T::kQueryTileBytes),
                                       C::kScoreShape, true);
    commit<false>(smem.rope_empty[0]);
    commit<false>(smem.s_full[buffer]);
  }

  // `keys`: of the step that the row has; products of 16 keys past them are left out.
  __device__ __forceinline__ void add(int keys, bool first) {
    mbarrier_wait(smem.probs_full[0], steps & 1);
    tmem_fence_after();
    uint64_t const probs =
        operand_descriptor(smem_address(smem.probs), 16, 8 * C::kProbsRowBytes, C::kProbsRowBytes);
#pragma unroll
    for (int piece = 0; piece < C::kPieces; ++piece, values_at.advance()) {
      uint64_t const values =
          operand_descriptor(slot(values_at.index), kAtomBytes, C::kKeyGroupBytes);
      unsigned const o = tmem + Traits::kTmemOutput + piece * C::kRows;
      if (keys == T::kStepKeys) {
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
          multiply_four<kForm, kValueStep16, kProbsStep16>(
              o, values + desc_offset(k * kValueStep16), probs + desc_offset(k * kProbsStep16),
              C::kOutputShape, !first || k > 0);
        }
      } else {
#pragma unroll 1
        for (int k = 0; k * 16 < keys; ++k) {
          multiply<kForm>(o, values + desc_offset(k * kValueStep16),
                          probs + desc_offset(k * kProbsStep16), C::kOutputShape, !first || k > 0);
        }
      }
      commit<false>(smem.kv_empty[values_at.index]);
    }
    commit<false>(smem.probs_empty[0]);
  }

  __device__ __forceinline__ void run_item(WorkItem work) {
    int const count = T::steps(work);
    if (count == 0) return;
    mbarrier_wait(smem.q_full[0], items & 1);
#pragma unroll 1
    for (int step = 0; step < count; ++step, ++steps) {
      score();
      if (step + 1 == count) commit<false>(smem.q_empty[0]);
      // Wait: the epilogue has read O of the item before. First use: parity 1 of a fresh barrier.
      if (step == 0) mbarrier_wait(smem.o_empty[0], (items & 1) ^ 1);
      add(T::keys(work, step), step == 0);
    }
    commit<false>(smem.o_full[0]);
    ++items;
  }
  __device__ __forceinline__ void run_list() {
    if (elect_lane()) {
      for (int item = 0; item < smem.work[0].count; ++item) run_item(smem.work[0].item[item]);
    }
    __syncwarp();
  }
};

}  // namespace mlagen
