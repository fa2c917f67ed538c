// The end of one item, by one accumulator warpgroup: normalise its 64 x 256 half of O, exchange it
// with the other CTA where the pair split the keys, and write it: to the output, or as a partial in
// the workspace that merge.cuh picks up.
#pragma once
#include "mlagen/arch/cluster.cuh"
#include "mlagen/arch/global.cuh"
#include "mlagen/arch/math.cuh"
#include "mlagen/kv/tile_layout.cuh"
#include "mlagen/merge.cuh"
#include "mlagen/query_rows.cuh"
#include "mlagen/schedule.cuh"

namespace mlagen {

constexpr int kExchangeBytes =
    kHalfBytes + kBlockM * int(sizeof(float));  // a half of O and its 64 log-sum-exps

template <class Traits>
struct Epilogue {
  using Element = typename Traits::Element;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  int half;

  __device__ __forceinline__ void group_sync() const {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead) + half, Traits::kHalfReadThreads);
  }
  // Where the pair split the keys, CTA h writes half h of the columns.
  __device__ __forceinline__ bool writes(WorkItem const& work) const {
    return Traits::kCtaGroup == 1 || !work.pair_splits() || cluster_rank() == half;
  }

  // Statistics of this thread's rows lane / 4 and lane / 4 + 8: log-sum-exp (log2) and 1 / sum.
  struct RowStats {
    float2 row0, row1;
  };

  // `staging`: shared address of the half stage whose last reader this warpgroup was; 32 KB.
  __device__ __forceinline__ void run(float (&o)[128], WorkItem const& work, unsigned staging,
                                      int slot, unsigned exchange) const {
    FreshThread const self;
    int const row = slot * kBlockM + self.warp() * 16 + self.lane() / 4;
    RowStats stats{make_float2(negative_infinity(), 0.f), make_float2(negative_infinity(), 0.f)};
    if (Traits::kCtaGroup == 1 || work.blocks > 0) {  // otherwise the peer has all keys
      stats = {smem.stats[row], smem.stats[row + 8]};
    }
    if constexpr (Traits::kCtaGroup == 2) {
      if (work.pair_splits()) {
        if (!writes(work)) {
          send(o, stats, staging, exchange);
          return;
        }
        receive(o, stats, staging, exchange);
      }
    }
    stage_rows(o, stats, staging);
    fence_async_shared();  // generic -> async: TMA may overwrite `staging` when it has been read
    bool const split = work.split();
    int const slot_of_cta = int(blockIdx.x) * 2 + work.slot();
    QueryRows<Traits> const rows{p, work.row, work.tile};
    group_sync();  // the half tile is in `staging`
    if constexpr (Traits::kCtaGroup == 2) {
      if (work.pair_splits()) joint_lse(stats);
    }
    if (split) {
      write_partial(staging, rows.count(), slot_of_cta);
    } else {
      write_output(staging, rows);
    }
    write_lse(stats, rows, split, slot_of_cta);
    group_sync();
    if (split && self.thread == 0) announce(work.slot());
  }

  // An item without keys: zeros and -inf.
  __device__ __forceinline__ void write_empty(WorkItem const& work) const {
    FreshThread const self;
    if (!writes(work)) return;
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const lane = self.lane();
    for (int row = self.warp(); row < rows.count(); row += 4) {
      *reinterpret_cast<uint4*>(rows.out(row) + half * kHalf + lane * 8) = make_uint4(0, 0, 0, 0);
      if (half == 0 && lane == 0 && p.lse != nullptr) *rows.lse(row) = negative_infinity();
    }
  }

 private:
  // O as rows of 512 bytes; 16-byte chunks permuted within each 128 so that neither side meets bank
  // conflicts.
  __device__ __forceinline__ static int staged_chunk(int row, int chunk) {
    return row * 512 + ((chunk ^ (row & 7)) * 16);
  }

  __device__ __forceinline__ void stage_rows(float (&o)[128], RowStats const& stats,
                                             unsigned staging) const {
    FreshThread const self;
    int const lane = self.lane(), row = self.warp() * 16 + lane % 16;
    unsigned const address =
        staging + staged_chunk(row, lane / 16);  // the loop flips its chunk bits
    float const f0 = stats.row0.y, f1 = stats.row1.y;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float const* const v = o + 8 * j;
      stmatrix_x4(address ^ (j * 32), pack<Element>(v[0] * f0, v[1] * f0),
                  pack<Element>(v[2] * f1, v[3] * f1), pack<Element>(v[4] * f0, v[5] * f0),
                  pack<Element>(v[6] * f1, v[7] * f1));
    }
  }

  __device__ __forceinline__ void write_output(unsigned staging,
                                               QueryRows<Traits> const& rows) const {
    FreshThread const self;
    int const lane = self.lane(), count = rows.count();
#pragma unroll 4
    for (int row = self.warp(); row < count; row += 4) {
      *reinterpret_cast<uint4*>(rows.out(row) + half * kHalf + lane * 8) =
          load_shared_16(staging + staged_chunk(row, lane));
    }
  }
  __device__ __forceinline__ void write_partial(unsigned staging, int count, int slot) const {
    FreshThread const self;
    int const lane = self.lane();
    auto* const partial =
        static_cast<Element*>(p.partial_out) + (long long)slot * (kBlockM * kLatent) + half * kHalf;
#pragma unroll 4
    for (int row = self.warp(); row < count; row += 4) {
      __stcg(reinterpret_cast<uint4*>(partial + row * kLatent + lane * 8),
             load_shared_16(staging + staged_chunk(row, lane)));
    }
  }
  __device__ __forceinline__ void write_lse(RowStats const& stats, QueryRows<Traits> const& rows,
                                            bool split, int slot) const {
    FreshThread const self;
    int const lane = self.lane(), row = self.warp() * 16 + lane / 4;
    if (lane % 4 != 0) return;
    if (split) {
      float* const partial = p.partial_lse + ((long long)slot * 2 + half) * kBlockM + row;
      __stcg(partial, stats.row0.x);
      __stcg(partial + 8, stats.row1.x);
    } else if (half == 0 && p.lse != nullptr) {
      if (row < rows.count()) *rows.lse(row) = stats.row0.x * kLn2;
      if (row + 8 < rows.count()) *rows.lse(row + 8) = stats.row1.x * kLn2;
    }
  }

  // Arrive at the counter of the shared row: every round adds 2^31 in all, whatever the number of
  // pieces, so bit 31 flips when the last piece has come and nothing is ever reset.
  __device__ __forceinline__ void announce(int which) const {
    MergeDuty const& duty = smem.duty[which];
    int const holder = Place<Traits>(p, int(blockIdx.x)).cta_of(p, duty.first_team);
    smem.arrival[which * 2 + half] =
        atomic_add_acq_rel(arrival_counter<Traits>(p, holder, half), arrival_weight(duty));
  }

  // Sends this half of O, normalised, in the element type and in fragment order, and its
  // log-sum-exps to the peer.
  __device__ __forceinline__ void send(float (&o)[128], RowStats const& stats, unsigned staging,
                                       unsigned parity) const {
    FreshThread const self;
    int const peer = cluster_rank() ^ 1, thread = self.thread, lane = self.lane();
    unsigned const full = peer_address(&smem.exchange_full[0], peer);
    unsigned const to = peer_address(staging, peer) + thread * 16;
    // Wait: the peer's half stage is free and its barrier expects our bytes.
    mbarrier_wait(smem.exchange_empty[0], parity);
    float const f0 = stats.row0.y, f1 = stats.row1.y;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float const* const v = o + 8 * j;
      store_async(
          to + j * (kWarpGroup * 16),
          make_uint4(pack<Element>(v[0] * f0, v[1] * f0), pack<Element>(v[2] * f1, v[3] * f1),
                     pack<Element>(v[4] * f0, v[5] * f0), pack<Element>(v[6] * f1, v[7] * f1)),
          full);
    }
    if (lane % 4 == 0) {
      unsigned const at = peer_address(&smem.peer_lse[self.warp() * 16 + lane / 4], peer);
      store_async(at, stats.row0.x, full);
      store_async(at + 8 * int(sizeof(float)), stats.row1.x, full);
    }
  }

  // Adds the peer's half; afterwards `o` times stats.y is the pair's normalised result and stats.x
  // its log-sum-exp.
  __device__ __forceinline__ void receive(float (&o)[128], RowStats& stats, unsigned staging,
                                          unsigned parity) const {
    FreshThread const self;
    fence_async_shared();
    group_sync();  // nobody reads `staging` or peer_lse any more
    if (self.thread == 0) {
      mbarrier_arrive_expect(smem.exchange_full[0], kExchangeBytes);
      mbarrier_arrive_remote(smem.exchange_empty[0], cluster_rank() ^ 1);
    }
    mbarrier_wait(smem.exchange_full[0], parity);  // the peer's half and its statistics have landed
    int const row = self.warp() * 16 + self.lane() / 4;
    float own0, own1;
    float const peer0 = join(stats.row0, smem.peer_lse[row], own0),
                peer1 = join(stats.row1, smem.peer_lse[row + 8], own1);
    __syncwarp();                // the four lanes of a row have read it
    if (self.lane() % 4 == 0) {  // out of the registers until write_lse
      smem.peer_lse[row] = stats.row0.x;
      smem.peer_lse[row + 8] = stats.row1.x;
    }
    __syncwarp();
    unsigned from = staging + FreshThread().thread * 16;
    // Two passes: four factors at once are more than the registers hold.
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      o[4 * j] *= own0;
      o[4 * j + 1] *= own0;
      o[4 * j + 2] *= own1;
      o[4 * j + 3] *= own1;
    }
    pin(o);
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      uint2 const v = load_shared_8(from + j / 2 * (kWarpGroup * 16) + j % 2 * 8);
      float2 const a = unpack<Element>(v.x), b = unpack<Element>(v.y);
      o[4 * j] += a.x * peer0;
      o[4 * j + 1] += a.y * peer0;
      o[4 * j + 2] += b.x * peer1;
      o[4 * j + 3] += b.y * peer1;
      // Changes nothing, addresses being above 255; but ptxas would have more loads in flight than
      // there are registers.
      if (j % 4 == 3) from = max(from, v.x & 0xffu);
    }
    group_sync();  // everybody has read its part of `staging`
  }
  // What receive() put away.
  __device__ __forceinline__ void joint_lse(RowStats& stats) const {
    FreshThread const self;
    int const row = self.warp() * 16 + self.lane() / 4;
    stats.row0.x = smem.peer_lse[row];
    stats.row1.x = smem.peer_lse[row + 8];
  }
  // The factors of both parts of a row: returns the peer's, sets ours (1 / sum included), leaves
  // the joint log-sum-exp and 1.
  __device__ __forceinline__ static float join(float2& stats, float peer_lse, float& own) {
    float const top = fmaxf(stats.x, peer_lse);
    float const a = top == negative_infinity() ? 0.f : exp2_approx(stats.x - top);
    float const b = top == negative_infinity() ? 0.f : exp2_approx(peer_lse - top);
    float const sum = a + b, inverse = sum == 0.f ? 0.f : reciprocal(sum);
    own = a * inverse * stats.y;
    stats = make_float2(sum == 0.f ? negative_infinity() : top + log2_approx(sum), 1.f);
    return b * inverse;
  }
};

}  // namespace mlagen
