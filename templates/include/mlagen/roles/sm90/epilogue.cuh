// The end of one item, by one accumulator warpgroup: normalise its 64 x 256 half of O, exchange it with the other CTA where
// the pair split the keys, and write it: to the output, or as a partial in the workspace that merge.cuh picks up.
#pragma once
#include "mlagen/arch/cluster.cuh"
#include "mlagen/arch/global.cuh"
#include "mlagen/arch/math.cuh"
#include "mlagen/kv/tile_layout.cuh"
#include "mlagen/query_rows.cuh"
#include "mlagen/schedule.cuh"

namespace mlagen {

constexpr int kExchangeBytes = kHalfBytes + kBlockM * int(sizeof(float));  // a half of O and its 64 log-sum-exps

template <class Traits>
struct Epilogue {
  using Element = typename Traits::Element;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  int rank;  // CTA of the pair
  int half;
  FreshThread self;

  __device__ __forceinline__ void group_sync() const {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead) + half, Traits::kHalfReadThreads);
  }
  // Where the pair split the keys, CTA h writes half h of the columns.
  __device__ __forceinline__ bool writes(WorkItem const& work) const {
    return Traits::kCtaGroup == 1 || !work.pair_splits() || rank == half;
  }

  // Statistics of this thread's rows lane / 4 and lane / 4 + 8: log-sum-exp (log2) and 1 / sum.
  struct RowStats {
    float2 row0, row1;
  };

  // `staging`: the half stage whose last reader this warpgroup was; 32 KB.
  __device__ __forceinline__ void run(float (&o)[128], WorkItem const& work, unsigned char* staging,
                                      int slot, unsigned exchange) const {
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
    bool const split = work.split();
    int const slot_of_cta = int(blockIdx.x) * 2 + work.slot();
    QueryRows<Traits> const rows{p, work.row, work.tile};
    group_sync();  // the half tile is in `staging`
    if (split) {
      write_partial(staging, rows.count(), slot_of_cta);
    } else {
      write_output(staging, rows);
    }
    write_lse(stats, rows, split, slot_of_cta);
    fence_async_shared();  // generic -> async: TMA may overwrite `staging`
    group_sync();
    if (split && self.thread == 0) announce(work.slot());
  }

  // An item without keys: zeros and -inf.
  __device__ __forceinline__ void write_empty(WorkItem const& work) const {
    if (!writes(work)) return;
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const lane = self.lane();
    for (int row = self.warp(); row < rows.count(); row += 4) {
      *reinterpret_cast<uint4*>(rows.out(row) + half * kHalf + lane * 8) = make_uint4(0, 0, 0, 0);
      if (half == 0 && lane == 0 && p.lse != nullptr) *rows.lse(row) = negative_infinity();
    }
  }

 private:
  // O as rows of 512 bytes; 16-byte chunks permuted within each 128 so that neither side meets bank conflicts.
  __device__ __forceinline__ static int staged_chunk(int row, int chunk) { return row * 512 + ((chunk ^ (row & 7)) * 16); }

  __device__ __forceinline__ void stage_rows(float (&o)[128], RowStats const& stats, unsigned char* staging) const {
    int const lane = self.lane(), row = self.warp() * 16 + lane % 16;
    unsigned const address = smem_address(staging) + staged_chunk(row, lane / 16);  // the loop flips its chunk bits
    float const f0 = stats.row0.y, f1 = stats.row1.y;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float const* const v = o + 8 * j;
      stmatrix_x4(address ^ (j * 32), pack<Element>(v[0] * f0, v[1] * f0),
                  pack<Element>(v[2] * f1, v[3] * f1), pack<Element>(v[4] * f0, v[5] * f0),
                  pack<Element>(v[6] * f1, v[7] * f1));
    }
  }

  __device__ __forceinline__ void write_output(unsigned char const* staging, QueryRows<Traits> const& rows) const {
    int const lane = self.lane(), count = rows.count();
#pragma unroll 4
    for (int row = self.warp(); row < count; row += 4) {
      *reinterpret_cast<uint4*>(rows.out(row) + half * kHalf + lane * 8) =
          *reinterpret_cast<uint4 const*>(staging + staged_chunk(row, lane));
    }
  }
  __device__ __forceinline__ void write_partial(unsigned char const* staging, int count, int slot) const {
    int const lane = self.lane();
    auto* const partial = static_cast<Element*>(p.partial_out) + (long long)slot * (kBlockM * kLatent) + half * kHalf;
#pragma unroll 4
    for (int row = self.warp(); row < count; row += 4) {
      __stcg(reinterpret_cast<uint4*>(partial + row * kLatent + lane * 8),
             *reinterpret_cast<uint4 const*>(staging + staged_chunk(row, lane)));
    }
  }
  __device__ __forceinline__ void write_lse(RowStats const& stats, QueryRows<Traits> const& rows, bool split,
                                            int slot) const {
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

  // Arrive at the counter of the shared row: every round adds 2^31 in all, whatever the number of pieces, so bit 31 flips
  // when the last piece has come and nothing is ever reset.
  __device__ __forceinline__ void announce(int which) const {
    MergeDuty const& duty = smem.duty[which];
    unsigned* const counter = p.counters + Place<Traits>(p, int(blockIdx.x)).cta_of(p, duty.first_team) * 2 + half;
    __threadfence();
    smem.arrival[which * 2 + half] =
        atomic_add_acq_rel(counter, duty.index == 0 ? 0x80000000u - unsigned(duty.pieces - 1) : 1u);
  }

  // Sends this half of O, normalised, in the element type and in fragment order, and its log-sum-exps to the peer.
  __device__ __forceinline__ void send(float (&o)[128], RowStats const& stats, unsigned char* staging, unsigned parity) const {
    int const peer = rank ^ 1, thread = self.thread, lane = self.lane();
    unsigned const full = peer_address(&smem.exchange_full[0], peer);
    unsigned const to = peer_address(staging, peer) + thread * 16;
    // Wait: the peer's half stage is free and its barrier expects our bytes.
    mbarrier_wait(smem.exchange_empty[0], parity);
    float const f0 = stats.row0.y, f1 = stats.row1.y;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float const* const v = o + 8 * j;
      store_async(to + j * (kWarpGroup * 16),
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

  // Adds the peer's half; afterwards `o` times stats.y is the pair's normalised result and stats.x its log-sum-exp.
  __device__ __forceinline__ void receive(float (&o)[128], RowStats& stats, unsigned char* staging, unsigned parity) const {
    fence_async_shared();
    group_sync();  // nobody reads `staging` or peer_lse any more
    if (self.thread == 0) {
      mbarrier_arrive_expect(smem.exchange_full[0], kExchangeBytes);
      mbarrier_arrive_remote(smem.exchange_empty[0], rank ^ 1);
    }
    mbarrier_wait(smem.exchange_full[0], parity);  // the peer's half and its statistics have landed
    int const row = self.warp() * 16 + self.lane() / 4;
    float own0, own1;
    float const peer0 = join(stats.row0, smem.peer_lse[row], own0), peer1 = join(stats.row1, smem.peer_lse[row + 8], own1);
    unsigned const from = smem_address(staging) + self.thread * 16;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      uint4 const v = load_shared_16(from + j * (kWarpGroup * 16));
      float2 const a = unpack<Element>(v.x), b = unpack<Element>(v.y), c = unpack<Element>(v.z), d = unpack<Element>(v.w);
      float* const x = o + 8 * j;
      x[0] = x[0] * own0 + a.x * peer0;
      x[1] = x[1] * own0 + a.y * peer0;
      x[2] = x[2] * own1 + b.x * peer1;
      x[3] = x[3] * own1 + b.y * peer1;
      x[4] = x[4] * own0 + c.x * peer0;
      x[5] = x[5] * own0 + c.y * peer0;
      x[6] = x[6] * own1 + d.x * peer1;
      x[7] = x[7] * own1 + d.y * peer1;
    }
    group_sync();  // everybody has read its part of `staging`
  }
  // The factors of both parts of a row: returns the peer's, sets ours (1 / sum included), leaves the joint log-sum-exp and 1.
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
