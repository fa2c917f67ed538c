// Role softmax (4 warps) of the columns form: thread t holds key t of a step, for all rows. Waits
// and produces what softmax.cuh does, and moves references by the same vote.
//
// That a row outgrows its reference shows in any one key, so the loop needs no exchange between
// threads; maxima over the keys are formed only when references move, sums at the end of an item.
#pragma once
#include "mlagen/arch/math.cuh"
#include "mlagen/arch/packed.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct ColumnsSoftmax {
  using T = Tiles<Traits>;
  using C = Columns<Traits>;
  using Element = typename Traits::Element;
  static constexpr int kRows = C::kRows;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  unsigned tmem;

  float reference[kRows], sum[kRows];  // sums of this thread's keys
  unsigned steps = 0, items = 0;

  __device__ __forceinline__ ColumnsSoftmax(typename Traits::Params const& params,
                                            typename Traits::Smem& storage, unsigned address)
      : p(params), smem(storage), tmem(address) {}

  __device__ __forceinline__ static int thread() { return int(threadIdx.x); }
  __device__ __forceinline__ static int warp() { return thread() / 32; }
  __device__ __forceinline__ unsigned lanes() const { return tmem + (unsigned(warp() * 32) << 16); }
  __device__ __forceinline__ static void meet() {
    named_barrier_sync(int(Traits::NamedBarrier::kRowMaxima), Traits::kRowMaximaThreads);
  }

  __device__ __forceinline__ void take_scores(float (&s)[kRows]) {
    int const buffer = int(steps & 1);
    mbarrier_wait(smem.s_full[buffer], (steps >> 1) & 1);  // all products of the step are done
    tmem_fence_after();
    tmem_load(lanes() + Traits::kTmemScores + buffer * kRows, s);
    tmem_wait_load(s);
    tmem_fence_before();
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem.s_empty[buffer]);
  }

  // A key that a row does not see, or that lies past the end of the piece, does not take part.
  __device__ __forceinline__ void mask(float (&s)[kRows], WorkItem const& work, int step) const {
    int const key = T::first_key(work, step) + thread(), end = T::end_key(work);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int const seen = visible_keys<Traits>(p, work.length, QueryRows<Traits>::token(work.tile, r));
      if (key >= min_of(seen, end)) s[r] = negative_infinity();
    }
  }

  __device__ __forceinline__ void scaled(float const (&s)[kRows], float (&x)[kRows]) const {
    float_pair const scale = make_pair(p.scale_log2, p.scale_log2);
#pragma unroll
    for (int r = 0; r < kRows; r += 2) {
      split_pair(
          fma_pair(make_pair(s[r], s[r + 1]), scale, make_pair(-reference[r], -reference[r + 1])),
          x[r], x[r + 1]);
    }
  }
  __device__ __forceinline__ static float largest(float const (&x)[kRows]) {
    float low = x[0], high = x[1];
#pragma unroll
    for (int r = 2; r + 2 < kRows; r += 4) {
      low = max_of_three(low, x[r], x[r + 1]);
      high = max_of_three(high, x[r + 2], x[r + 3]);
    }
    return fmaxf(max_of_three(low, x[kRows - 2], x[kRows - 1]), high);
  }

  // Floats as integers of the same order, and back.
  __device__ __forceinline__ static int ordered(float x) {
    int const bits = __float_as_int(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
  }
  __device__ __forceinline__ static float unordered(int bits) {
    return __int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
  }

  // Moves the references of all rows to their maxima, and O with them unless the item begins.
  __device__ __forceinline__ void move_references(float const (&s)[kRows], bool begins) {
    int const lane = lane_id();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int const top = __reduce_max_sync(kFullWarp, ordered(s[r]));
      if (lane == r) smem.row_max[warp() * 32 + r] = unordered(top) * p.scale_log2;
    }
    meet();
    float factor[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float moved = reference[r];
#pragma unroll
      for (int w = 0; w < 4; ++w) moved = fmaxf(moved, smem.row_max[w * 32 + r]);
      factor[r] = exp2_approx(reference[r] - moved);
      reference[r] = moved;
      sum[r] *= factor[r];
    }
    if (begins) return;
    // Wait: P V of the step before has been added to O.
    mbarrier_wait(smem.probs_empty[0], (steps - 1) & 1);
    correct(factor);
  }
  __device__ __forceinline__ void correct(float const (&factor)[kRows]) const {
    tmem_fence_after();
#pragma unroll 1
    for (int piece = 0; piece < C::kPieces; ++piece) {
      unsigned const o = lanes() + Traits::kTmemOutput + piece * kRows;
      float v[kRows];
      tmem_load(o, v);
      tmem_wait_load(v);
#pragma unroll
      for (int r = 0; r < kRows; ++r) v[r] *= factor[r];
      tmem_store(o, v);
    }
    tmem_wait_store();
    tmem_fence_before();
  }

  __device__ __forceinline__ void store_probs(unsigned const (&packed)[kRows / 2]) const {
    // The swizzle flips the bits of the 16-byte chunk by those of the address above 128 bytes.
    constexpr int kRow = C::kProbsRowBytes, kChunks = kRow / 16;
    unsigned const row = smem_address(smem.probs) + thread() * kRow;
    int const flip = thread() * kRow / 128 % kChunks;
    // Wait: P V has read P of the step before. First use: parity 1 of a fresh barrier passes.
    mbarrier_wait(smem.probs_empty[0], (steps & 1) ^ 1);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      store_shared_16(row + ((c ^ flip) * 16), packed[4 * c], packed[4 * c + 1], packed[4 * c + 2],
                      packed[4 * c + 3]);
    }
  }

  // As Softmax::clear_tail: rows of V between the row's last key and the next multiple of 16.
  __device__ __forceinline__ void clear_tail(int keys) const {
    int const rows = (16 - keys % 16) % 16;
    for (int i = thread(); i < rows * 64; i += kWarpGroup) {
      int const key = keys + i / 64, chunk = i % 64;
      int const slot = (int(steps % C::kSlots) * C::kPieces + chunk / 16) % C::kSlots;
      store_shared_16(smem_address(smem.kv) + slot * C::kSlotBytes + key / 8 * C::kKeyGroupBytes +
                          chunk % 16 / 8 * kAtomBytes + key % 8 * 128 + chunk % 8 * 16,
                      0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ void run_step(WorkItem const& work, int step) {
    float s[kRows], x[kRows];
    unsigned packed[kRows / 2];
    take_scores(s);
    int const plain = work.blocks - max_of(work.masked, 0);  // blocks that every row sees whole
    if ((step + 1) * T::kStepBlocks > plain) mask(s, work, step);
    scaled(s, x);
    if (named_barrier_any(int(Traits::NamedBarrier::kRowMaxima), Traits::kRowMaximaThreads,
                          largest(x) > kReferenceSlack)) {
      move_references(s, step == 0);
      scaled(s, x);
    }
#pragma unroll
    for (int r = 0; r < kRows; r += 2) {
      float const a = exp2_approx(x[r]), b = exp2_approx(x[r + 1]);
      split_pair(add_pair(make_pair(sum[r], sum[r + 1]), make_pair(a, b)), sum[r], sum[r + 1]);
      packed[r / 2] = pack<Element>(a, b);
    }
    store_probs(packed);
    int const keys = T::keys(work, step);
    if (keys < T::kStepKeys) clear_tail(keys);
    fence_async_shared();  // generic -> async: P, and cleared rows of V, are read by the tensor
                           // core
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem.probs_full[0]);
    __syncwarp();
    ++steps;
  }

  // Sums over the warp's keys: lane l ends with that of row l % kRows.
  __device__ __forceinline__ float sum_of_lane() {
    int const lane = lane_id();
#pragma unroll
    for (int n = kRows / 2; n >= 1; n /= 2) {
      bool const upper = lane & n;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        float const keep = upper ? sum[i + n] : sum[i], send = upper ? sum[i] : sum[i + n];
        sum[i] = keep + __shfl_xor_sync(kFullWarp, send, n);
      }
    }
    float total = sum[0];
    if constexpr (kRows == 16) total += __shfl_xor_sync(kFullWarp, total, 16);
    return total;
  }
  // As Softmax::write_statistics.
  __device__ __forceinline__ void write_statistics() {
    int const lane = lane_id();
    float const mine = sum_of_lane();
    if (lane < kRows) smem.row_sum[warp() * 32 + lane] = mine;
    meet();
    if (warp() == 0) {
      // Wait: the epilogue has read those of the item before. First use: parity 1 passes.
      mbarrier_wait(smem.stats_empty[0], (items & 1) ^ 1);
      float all = 0.f, top = 0.f;
      if (lane < kRows) {
#pragma unroll
        for (int w = 0; w < 4; ++w) all += smem.row_sum[w * 32 + lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r) top = lane == r ? reference[r] : top;
        smem.stats[lane] = all == 0.f ? make_float2(negative_infinity(), 0.f)
                                      : make_float2(top + log2_approx(all), reciprocal(all));
      }
      __syncwarp();
      if (elect_lane()) mbarrier_arrive(smem.stats_full[0]);
    }
    __syncwarp();
    ++items;
  }

  __device__ __forceinline__ void run_list() {
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const work = smem.work[0].item[item];
      int const count = T::steps(work);
      if (count == 0) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) reference[r] = kNoReference, sum[r] = 0.f;
#pragma unroll 1
      for (int step = 0; step < count; ++step) run_step(work, step);
      write_statistics();
    }
  }
};

}  // namespace mlagen
