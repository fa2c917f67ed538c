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
#include "mlagen/arch/cp_async.cuh"
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

  // Scratch in the (now idle) kv ring, of which two warpgroups each use their own halves of the
  // stages: the chunks of all pieces, up to max_split more than a tile has; for each piece its
  // partial slot and whether its slice was left to us; the weights.
  static constexpr bool kHalves = kColumns == kHalf;
  static constexpr int kTables = kHalves ? kStageBytes + kHalfBytes / 2 : 3 * kHalfBytes;
  __device__ __forceinline__ unsigned chunk_address(int i) const {
    constexpr int kInHalf = kHalfBytes / 16;
    int const stage = kHalves ? i / kInHalf : 0;
    return smem_address(smem.kv) + half * kHalfBytes + stage * (kStageBytes - kHalfBytes) + i * 16;
  }
  __device__ __forceinline__ int* slots() const {
    return reinterpret_cast<int*>(smem.kv + kTables + half * kHalfBytes);
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
    if (begin == end) return;
    gather(duty.pieces, begin, end);
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

  // Chunks [begin, end) of all pieces, and the log-sum-exps of their rows, to shared memory: all on
  // their way at once.
  __device__ __forceinline__ void gather(int pieces, int begin, int end) const {
    int const thread = thread_in_group(), first_row = begin / kChunks, count = end - begin;
    int const rows = ceil_div(end, kChunks) - first_row;
#pragma unroll 1
    for (int i = thread; i < rows * pieces; i += kWarpGroup) {
      int const row = int(unsigned(i) / unsigned(pieces)), piece = i - row * pieces;
      cp_async_4(smem_address(weights() + i),
                 p.partial_lse + (slots()[piece] * 2 + half) * kBlockM + first_row + row);
    }
    int piece = int(unsigned(thread) / unsigned(count)), chunk = thread - piece * count;
    int const pieces_on = int(unsigned(kWarpGroup) / unsigned(count)),
              chunks_on = kWarpGroup - pieces_on * count;
    auto const* const from = static_cast<Element const*>(p.partial_out) + half * kHalf;
#pragma unroll 2
    for (int i = thread; i < count * pieces; i += kWarpGroup) {
      int const at = begin + chunk;
      cp_async_16(chunk_address(i), from + (long long)slots()[piece] * (kBlockM * kLatent) +
                                        at / kChunks * kLatent + at % kChunks * 8);
      piece += pieces_on;
      chunk += chunks_on;
      if (chunk >= count) chunk -= count, ++piece;
    }
    cp_async_wait_all();
    group_sync();
  }

  // From log-sum-exps to what each piece counts for, in place, a few lanes a row; and the row's
  // log-sum-exp by the warpgroup that holds its first chunk.
  __device__ __forceinline__ void find_weights(int pieces, int begin, int end,
                                               QueryRows<Traits> const& rows) const {
    int const first_row = begin / kChunks, count = ceil_div(end, kChunks) - first_row;
    int lanes = 1;
    while (lanes < 32 && lanes < pieces) lanes *= 2;
    int const thread = thread_in_group(), lane = thread % lanes;
#pragma unroll 1
    for (int first = 0; first < count; first += kWarpGroup / lanes) {
      int const row = first + thread / lanes, mine = row < count ? pieces : 0;
      float* const weight = weights() + row * pieces;
      float top = negative_infinity(), sum = 0.f;
#pragma unroll 1
      for (int i = lane; i < mine; i += lanes) top = fmaxf(top, weight[i]);
#pragma unroll 1
      for (int s = lanes / 2; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, s));
      float const reference = top == negative_infinity() ? 0.f : top;
#pragma unroll 1
      for (int i = lane; i < mine; i += lanes) sum += exp2_approx(weight[i] - reference);
#pragma unroll 1
      for (int s = lanes / 2; s > 0; s /= 2) sum += __shfl_xor_sync(kFullWarp, sum, s);
      float const inverse = sum == 0.f ? 0.f : reciprocal(sum);
#pragma unroll 1
      for (int i = lane; i < mine; i += lanes) {
        weight[i] = exp2_approx(weight[i] - reference) * inverse;
      }
      // A row may reach over two slices.
      bool const starts_here = mine > 0 && (first_row + row) * kChunks >= begin;
      if (half == 0 && starts_here && lane == 0 && p.lse != nullptr) {
        *rows.lse(first_row + row) =
            sum == 0.f ? negative_infinity() : (reference + log2_approx(sum)) * kLn2;
      }
    }
  }

  // Chunks [begin, end) of the half tile, several threads a chunk where there are fewer chunks than
  // threads.
  __device__ __forceinline__ void add_up(int pieces, int begin, int end,
                                         QueryRows<Traits> const& rows) const {
    int const count = end - begin;
    int sharers = 1;
    while (sharers < 32 && 2 * sharers * count <= kWarpGroup) sharers *= 2;
    int const thread = thread_in_group(), sharer = thread % sharers, first_row = begin / kChunks;
#pragma unroll 1
    for (int first = 0; first < count; first += kWarpGroup / sharers) {
      int const chunk = first + thread / sharers, at = begin + chunk, row = at / kChunks;
      bool const valid = chunk < count;
      float sum[8] = {};
      if (valid) {
        float const* const weight = weights() + (row - first_row) * pieces;
#pragma unroll 2
        for (int i = sharer; i < pieces; i += sharers)
          add(sum, load_shared_16(chunk_address(i * count + chunk)), weight[i]);
      }
#pragma unroll 1
      for (int s = 1; s < sharers; s *= 2) {
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e] += __shfl_xor_sync(kFullWarp, sum[e], s);
      }
      if (valid && sharer == 0) {
        *reinterpret_cast<uint4*>(rows.out(row) + half * kHalf + at % kChunks * 8) =
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
