// Role softmax (4 warps): masks S, makes P, keeps maxima and sums, and corrects O.
// Waits s_full, probs_empty, stats_empty and, for a ragged end of a pair, tail_full; produces
// s_empty, probs_full, stats_full. Thread t holds row t % 64 and half t / 64 of the keys of a step.
//
// A row's reference moves only when the row outgrows it by 2^8. One barrier with a vote tells
// whether any row of the CTA did; if none, which is nearly always, no maximum is exchanged and O is
// not touched, so that O needs no warps of its own that ask after every step. The factors are
// carried along, so this is exact.
#pragma once
#include "mlagen/arch/math.cuh"
#include "mlagen/arch/packed.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct Softmax {
  using T = Tiles<Traits>;
  using Element = typename Traits::Element;
  static constexpr bool kPair = T::kPair;
  static constexpr int kKeys = T::kStepKeys / 2;  // of a step in one thread
  static constexpr int kParts = kKeys / 32;       // loads of 32 columns
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  unsigned tmem;

  unsigned probs_row;  // shared address of the thread's first chunk of P
  float reference, sum;
  unsigned steps = 0, items = 0, tails = 0;

  __device__ __forceinline__ Softmax(typename Traits::Params const& params,
                                     typename Traits::Smem& storage, unsigned address)
      : p(params), smem(storage), tmem(address) {}

  __device__ __forceinline__ static int thread() { return int(threadIdx.x); }
  __device__ __forceinline__ static int row() { return thread() % kBlockM; }
  __device__ __forceinline__ static int upper() { return thread() / kBlockM; }
  __device__ __forceinline__ unsigned lanes() const {  // the warp's part of tensor memory
    return tmem + (unsigned(thread() / 32 * 32) << 16);
  }
  __device__ __forceinline__ static void meet() {
    named_barrier_sync(int(Traits::NamedBarrier::kRowMaxima), Traits::kRowMaximaThreads);
  }

  // S of the step to registers; the buffer is free again.
  __device__ __forceinline__ void take_scores(float (&s)[kParts][32]) {
    int const buffer = int(steps & 1);
    mbarrier_wait(smem.s_full[buffer], (steps >> 1) & 1);  // all products of the step are done
    tmem_fence_after();
    unsigned const from = lanes() + Traits::kTmemScores + buffer * T::kScoreColumns;
#pragma unroll
    for (int i = 0; i < kParts; ++i) tmem_load(from + i * 32, s[i]);
    if constexpr (kParts == 2) {
      tmem_wait_load(s[0], s[kParts - 1]);
    } else {
      tmem_wait_load(s[0]);
    }
    tmem_fence_before();
    __syncwarp();
    if (elect_lane()) T::arrive_at_leader(smem.s_empty[buffer]);
  }

  // Keys at or past the row's visible count, or past the end of the piece, do not take part.
  __device__ __forceinline__ void mask(float (&s)[kParts][32], WorkItem const& work,
                                       int step) const {
    int const seen =
        min_of(visible_keys<Traits>(p, work.length, QueryRows<Traits>::token(work.tile, row())),
               T::end_key(work));
    int const left = seen - T::first_key(work, step) - upper() * kKeys;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        if (i * 32 + j >= left) s[i][j] = negative_infinity();
      }
    }
  }

  __device__ __forceinline__ static float largest(float const (&s)[kParts][32]) {
    float top[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) top[c] = max_of_three(s[0][c], s[0][c + 4], s[0][c + 8]);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
#pragma unroll
      for (int j = i == 0 ? 12 : 0; j + 8 <= 32; j += 8) {
#pragma unroll
        for (int c = 0; c < 4; ++c) top[c] = max_of_three(top[c], s[i][j + c], s[i][j + c + 4]);
      }
      if (i == 0) {
#pragma unroll
        for (int c = 0; c < 4; ++c) top[c] = fmaxf(top[c], s[0][28 + c]);
      }
    }
    return fmaxf(max_of_three(top[0], top[1], top[2]), top[3]);
  }

  // Moves the references of all rows to their maxima, and O with them unless the item begins.
  __device__ __forceinline__ void move_references(float top, bool begins) {
    smem.row_max[thread()] = top;
    meet();
    float const moved = fmaxf(reference, fmaxf(top, smem.row_max[thread() ^ kBlockM]));
    float const factor = exp2_approx(reference - moved);
    reference = moved;
    sum *= factor;
    if (begins) return;
    // Wait: P V of the step before has been added to O.
    unsigned const before = steps - 1;
    mbarrier_wait(smem.probs_empty[before % Traits::kProbsFullStages],
                  (before / Traits::kProbsFullStages) & 1);
    if (__any_sync(kFullWarp, factor != 1.f)) correct(factor);
  }
  // O of the warp's lanes times a factor each.
  __device__ __forceinline__ void correct(float factor) const {
    tmem_fence_after();
    unsigned const o = lanes() + Traits::kTmemOutput;
    float_pair const factors = make_pair(factor, factor);
#pragma unroll
    for (int column = 0; column < 256; column += 32) {
      float v[32];
      tmem_load(o + column, v);
      tmem_wait_load(v);
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        split_pair(mul_pair(make_pair(v[i], v[i + 1]), factors), v[i], v[i + 1]);
      }
      tmem_store(o + column, v);
    }
    tmem_wait_store();
    tmem_fence_before();
  }

  // P of the step, packed; adds to the sum.
  __device__ __forceinline__ void exponentiate(float (&s)[kParts][32],
                                               unsigned (&packed)[kKeys / 2]) {
    float_pair const scale = make_pair(p.scale_log2, p.scale_log2);
    float_pair const shift = make_pair(-reference, -reference);
    float_pair sums[2] = {make_pair(sum, 0.f), make_pair(0.f, 0.f)};
#pragma unroll
    for (int i = 0; i < kKeys; i += 2) {
      float a, b;
      split_pair(fma_pair(make_pair(s[i / 32][i % 32], s[i / 32][i % 32 + 1]), scale, shift), a, b);
      a = exp2_approx(a);
      b = exp2_approx(b);
      sums[i / 2 % 2] = add_pair(sums[i / 2 % 2], make_pair(a, b));
      packed[i / 2] = pack<Element>(a, b);
    }
    float low, high;
    split_pair(add_pair(sums[0], sums[1]), low, high);
    sum = low + high;
  }

  __device__ __forceinline__ void store_probs(unsigned const (&packed)[kKeys / 2]) const {
    int const buffer = int(steps % Traits::kProbsFullStages);
    unsigned const to = probs_row + buffer * T::kProbsBytes;
    // Wait: P V has read the buffer. First uses: parity 1 of a fresh barrier passes.
    mbarrier_wait(smem.probs_empty[buffer], ((steps / Traits::kProbsFullStages) & 1) ^ 1);
#pragma unroll
    for (int c = 0; c < kKeys / 8; ++c) {
      store_shared_16(to ^ (c * 16), packed[4 * c], packed[4 * c + 1], packed[4 * c + 2],
                      packed[4 * c + 3]);
    }
  }

  // Rows of V past the row's last key hold whatever the page holds, NaN included, and 0 x NaN must
  // not reach O. Products of whole groups of 16 keys past the end are left out; the rest of the
  // last group is cleared.
  __device__ __forceinline__ void clear_tail(int keys) {
    int stage = int(steps & 1), column_slots = 2;
    if constexpr (kPair) {
      mbarrier_wait(smem.tail_full[0], tails & 1);  // the values of the step have landed
      ++tails;
      column_slots = 1;
      stage = int(value_stage() & 1);
    }
    int const rows = (16 - keys % 16) % 16;
    for (int i = thread(); i < rows * 32 * column_slots; i += kWarpGroup) {
      int const key = keys + i / (32 * column_slots), chunk = i % 32;
      int const slot = stage * 2 + (kPair ? key / 64 : i / 32 % 2);
      unsigned const to = smem_address(smem.kv) + slot * kHalfBytes + key % 64 / 8 * kGroupBytes +
                          chunk / 8 * kAtomBytes + key % 8 * 128 + chunk % 8 * 16;
      store_shared_16(to, 0, 0, 0, 0);
    }
  }
  // Pair form: stages of the ring before the values of this step. Keys of the step itself and of
  // all before it, values of all before it, and the keys of the next step if the item has one; a
  // ragged end is the last step of its item.
  __device__ __forceinline__ unsigned value_stage() const { return 2 * steps + 1; }

  __device__ __forceinline__ void run_step(WorkItem const& work, int step) {
    float s[kParts][32];
    unsigned packed[kKeys / 2];
    take_scores(s);
    int const plain = work.blocks - max_of(work.masked, 0);  // blocks that every row sees whole
    if ((step + 1) * T::kStepBlocks > plain) mask(s, work, step);
    float const top = largest(s) * p.scale_log2;
    if (named_barrier_any(int(Traits::NamedBarrier::kRowMaxima), Traits::kRowMaximaThreads,
                          top > reference + kReferenceSlack)) {
      move_references(top, step == 0);
    }
    exponentiate(s, packed);
    store_probs(packed);
    int const keys = T::keys(work, step);
    if (keys < T::kStepKeys) clear_tail(keys);
    fence_async_shared();  // generic -> async: P, and cleared rows of V, are read by the tensor
                           // core
    __syncwarp();
    if (elect_lane()) {
      T::arrive_at_leader(smem.probs_full[steps % Traits::kProbsFullStages]);
    }
    __syncwarp();
    ++steps;
  }

  // Log-sum-exp (log2) and 1 / sum of each row, for the epilogue; without visible keys -inf and 0.
  __device__ __forceinline__ void write_statistics() {
    smem.row_sum[thread()] = sum;
    meet();
    if (thread() < kBlockM) {
      float const all = sum + smem.row_sum[thread() + kBlockM];
      // Wait: the epilogue has read those of the item before. First use: parity 1 passes.
      mbarrier_wait(smem.stats_empty[0], (items & 1) ^ 1);
      smem.stats[thread()] = all == 0.f
                                 ? make_float2(negative_infinity(), 0.f)
                                 : make_float2(reference + log2_approx(all), reciprocal(all));
      __syncwarp();
      if (elect_lane()) mbarrier_arrive(smem.stats_full[0]);
    }
    __syncwarp();
    ++items;
  }

  __device__ __forceinline__ void run_list() {
    int const first = kPair ? 0 : upper() * (kKeys / 8);  // 16-byte chunk of the row
    probs_row =
        smem_address(smem.probs) + (kPair ? upper() * kTileBytes : 0) + tile_chunk(row(), first);
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const work = smem.work[0].item[item];
      int const count = T::steps(work);
      if (count == 0) continue;
      reference = kNoReference;
      sum = 0.f;
#pragma unroll 1
      for (int step = 0; step < count; ++step) run_step(work, step);
      write_statistics();
    }
  }
};

}  // namespace mlagen
