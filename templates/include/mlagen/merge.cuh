// Merging the pieces of a row that several teams share. Every warpgroup that wrote a partial of
// half a row tile meets the others at a counter and then merges its own slice of that half: 1 /
// pieces of the 16-byte chunks. This is done after all items of a CTA are finished, so that nobody
// waits with work in hand.
//
// Nobody waits for ever: a warpgroup whose patience ends leaves its slice to the last one to
// arrive, so the kernel finishes even if its CTAs never run at the same time. Two exchanges of a
// slice's flag, in either order, settle who merges it:
//  - its owner puts kSeen when all have arrived in time, or kLeft when it goes;
//  - the last to arrive puts kDone, and merges the slice if it finds kLeft. An owner that puts
//  kLeft and finds kDone knows
//    that all have arrived after all, and merges.
// Whoever comes second puts the flag back to 0, for the next launch.
#pragma once
#include "mlagen/arch/cluster.cuh"
#include "mlagen/arch/global.cuh"
#include "mlagen/arch/math.cuh"
#include "mlagen/kv/tile_layout.cuh"
#include "mlagen/query_rows.cuh"
#include "mlagen/schedule.cuh"

namespace mlagen {

// What a piece adds to the counter: 2^31 for all pieces together.
__device__ __forceinline__ unsigned arrival_weight(MergeDuty const& duty) {
  return duty.index == 0 ? 0x80000000u - unsigned(duty.pieces - 1) : 1u;
}
__device__ __forceinline__ bool bit31_differs(unsigned a, unsigned b) { return (a ^ b) >> 31; }

// kColumns: of a row that one warpgroup writes; with all 512 of them there is no second half.
template <class Traits, int kColumns = kHalf>
struct Merge {
  using Element = typename Traits::Element;
  static constexpr int kChunks = kColumns / 8;  // 16-byte chunks of half a row
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  Place<Traits> const place;
  int half;

  enum Flag : unsigned { kDone = 1, kSeen = 2, kLeft = 3 };
  enum Verdict : unsigned { kNotOurs, kOurs, kLastOne };

  // Scratch in the warpgroup's own half of the (now idle) kv ring: for each piece its partial slot
  // and whether its slice was left to us; then the weights.
  __device__ __forceinline__ int* slots() const {
    return reinterpret_cast<int*>(smem.kv + half * kHalfBytes);
  }
  __device__ __forceinline__ int* left() const { return slots() + Traits::kMaxSplit; }
  __device__ __forceinline__ float* weights() const {
    return reinterpret_cast<float*>(left() + Traits::kMaxSplit);
  }
  __device__ __forceinline__ void group_sync() const {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead) + half, Traits::kHalfReadThreads);
  }

  __device__ __forceinline__ void run(int which) const {
    if (smem.duty[which].pieces == 0) return;
    MergeDuty const duty = smem.duty[which];
    if (Traits::kCtaGroup == 2 && duty.pair_splits && place.rank != half) return;
    find_slots(duty);
    unsigned& verdict = smem.arrival[which * 2 + half];
    if (thread_in_group() == 0) verdict = settle(duty, which, verdict);
    group_sync();  // unless the slice is not ours, all pieces are written
    if (verdict == kNotOurs) return;
    if (verdict == kLastOne) take_over(duty);
    // Our own slice first, then those that were left to us.
    int slice = duty.index;
    for (int next = 0; slice < duty.pieces;) {
      merge_slice(duty, slice);
      if (verdict != kLastOne) break;
      while (next < duty.pieces && left()[next] == 0) ++next;
      slice = next++;
    }
  }

 private:
  // One thread: waits until all pieces have arrived, or until it has no more patience. `before`:
  // the counter when we came.
  __device__ __forceinline__ unsigned settle(MergeDuty const& duty, int which,
                                             unsigned before) const {
    unsigned const* const counter =
        arrival_counter<Traits>(p, place.cta_of(p, duty.first_team), half);
    if (bit31_differs(before, before + arrival_weight(duty))) return kLastOne;
    bool all_here = false;
    for (int i = 0; i < Traits::kMergePatience && !all_here; ++i)
      all_here = bit31_differs(before, load_acquire(counter));
    unsigned* const flag = slice_flag<Traits>(p, int(blockIdx.x), half, which);
    bool const second = atomic_exchange_acq_rel(flag, all_here ? kSeen : kLeft) == kDone;
    if (second) *flag = 0;
    return all_here || second ? kOurs : kNotOurs;
  }
  // The last to arrive: which slices were left to it. All threads of the warpgroup.
  __device__ __forceinline__ void take_over(MergeDuty const& duty) const {
    for (int i = thread_in_group(); i < duty.pieces; i += kWarpGroup) {
      unsigned found = 0;
      if (i != duty.index) {
        unsigned* const flag = slice_flag<Traits>(p, slots()[i] / 2, half, slots()[i] % 2);
        found = atomic_exchange_acq_rel(flag, kDone);
        if (found != 0) *flag = 0;
      }
      left()[i] = found == kLeft;
    }
    group_sync();
  }
  __device__ __forceinline__ void merge_slice(MergeDuty const& duty, int slice) const {
    QueryRows<Traits> const rows{p, duty.row, duty.tile};
    int const all = rows.count() * kChunks;
    int const begin = slice * all / duty.pieces, end = (slice + 1) * all / duty.pieces;
    find_weights(duty.pieces, begin, end, rows);
    group_sync();
    add_up(duty.pieces, begin, end, rows);
    group_sync();  // the scratch may be used again
  }

  // The partial slot of every piece, in the order of the keys.
  __device__ __forceinline__ void find_slots(MergeDuty const& duty) const {
    Schedule<Traits> const schedule(p, smem.walk[0]);
    for (int i = thread_in_group(); i < duty.pieces; i += kWarpGroup) {
      RowCut<Traits> const cut{schedule, duty.base, duty.cost, 0, 1, max_of(duty.cuts, 1)};
      bool const scattered = duty.cuts > 0 && cut.scattered();
      int const team =
          scattered ? int(unsigned(cut.middle(i)) / unsigned(schedule.span)) : duty.first_team + i;
      slots()[i] = place.cta_of(p, team) * 2 + (i == 0 ? 1 : 0);
    }
  }

  // One warp a row: what each piece counts for, and the row's log-sum-exp by the warpgroup that
  // holds its first chunk.
  __device__ __forceinline__ void find_weights(int pieces, int begin, int end,
                                               QueryRows<Traits> const& rows) const {
    int const lane = lane_id(), first_row = begin / kChunks, end_row = ceil_div(end, kChunks);
    for (int row = first_row + warp_in_group(); row < end_row; row += 4) {
      float top = negative_infinity(), sum = 0.f;
#pragma unroll 1
      for (int i = lane; i < pieces; i += 32) top = fmaxf(top, partial_lse(i, row));
#pragma unroll
      for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, s));
      float const reference = top == negative_infinity() ? 0.f : top;
#pragma unroll 1
      for (int i = lane; i < pieces; i += 32) sum += exp2_approx(partial_lse(i, row) - reference);
#pragma unroll
      for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(kFullWarp, sum, s);
      float const inverse = sum == 0.f ? 0.f : reciprocal(sum);
#pragma unroll 1
      for (int i = lane; i < pieces; i += 32) {
        weights()[(row - first_row) * pieces + i] =
            exp2_approx(partial_lse(i, row) - reference) * inverse;
      }
      bool const starts_here = row * kChunks >= begin;  // a row may reach over two slices
      if (half == 0 && starts_here && lane == 0 && p.lse != nullptr) {
        *rows.lse(row) = sum == 0.f ? negative_infinity() : (reference + log2_approx(sum)) * kLn2;
      }
    }
  }
  __device__ __forceinline__ float partial_lse(int piece, int row) const {
    return __ldcg(p.partial_lse + ((long long)slots()[piece] * 2 + half) * kBlockM + row);
  }

  // Chunks [begin, end) of the half tile, several threads a chunk where there are fewer chunks than
  // threads.
  __device__ __forceinline__ void add_up(int pieces, int begin, int end,
                                         QueryRows<Traits> const& rows) const {
    int sharers = 1;
    while (sharers < 32 && 2 * sharers * (end - begin) <= kWarpGroup) sharers *= 2;
    int const thread = thread_in_group(), sharer = thread % sharers, first_row = begin / kChunks;
    int const rounds = ceil_div(end - begin, kWarpGroup / sharers);
    for (int r = 0; r < rounds; ++r) {
      int const chunk = begin + r * (kWarpGroup / sharers) + thread / sharers;
      bool const valid = chunk < end;
      int const row = chunk / kChunks, column = half * kHalf + chunk % kChunks * 8;
      float sum[8] = {};
      if (valid) {
        float const* const weight = weights() + (row - first_row) * pieces;
        auto const* const partial =
            static_cast<Element const*>(p.partial_out) + row * kLatent + column;
#pragma unroll 4
        for (int i = sharer; i < pieces; i += sharers) {
          uint4 const v = __ldcg(reinterpret_cast<uint4 const*>(partial + (long long)slots()[i] *
                                                                              (kBlockM * kLatent)));
          add(sum, v, weight[i]);
        }
      }
      for (int s = 1; s < sharers; s *= 2) {
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] += __shfl_xor_sync(kFullWarp, sum[e], s);
      }
      if (valid && sharer == 0) {
        *reinterpret_cast<uint4*>(rows.out(row) + column) =
            make_uint4(pack<Element>(sum[0], sum[1]), pack<Element>(sum[2], sum[3]),
                       pack<Element>(sum[4], sum[5]), pack<Element>(sum[6], sum[7]));
      }
    }
  }
  __device__ __forceinline__ static void add(float (&sum)[8], uint4 v, float weight) {
    unsigned const pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 const x = unpack<Element>(pairs[i]);
      sum[2 * i] += weight * x.x;
      sum[2 * i + 1] += weight * x.y;
    }
  }
};

}  // namespace mlagen
