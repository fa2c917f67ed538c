// Role epilogue (4 warps): O of an item from tensor memory, normalised, to the output or as a
// partial to the workspace that merge.cuh picks up. Waits stats_full and o_full, produces
// stats_empty and o_empty. Thread t writes row t % 64, half of the columns: 32 bytes at a time, so
// that nothing has to be staged in shared memory.
#pragma once
#include "mlagen/arch/global.cuh"
#include "mlagen/arch/math.cuh"
#include "mlagen/arch/packed.cuh"
#include "mlagen/merge.cuh"
#include "mlagen/roles/sm100/exchange.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

template <class Traits>
struct OutputRole {
  using T = Tiles<Traits>;
  using Element = typename Traits::Element;
  using Exchange = PairExchange<Traits>;
  static constexpr int kRows = Traits::kTileRows;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  unsigned tmem;
  unsigned items = 0;      // with blocks for this CTA
  unsigned exchanged = 0;  // chunks

  __device__ __forceinline__ static void meet() {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead), Traits::kHalfReadThreads);
  }

  // An item as this thread ends it.
  struct End {
    WorkItem work;
    QueryRows<Traits> rows;
    int thread, slot;
    bool shared;  // with the peer, half of the keys each
    int half;     // whose columns we write then
    __device__ __forceinline__ End(typename Traits::Params const& p, WorkItem const& item)
        : work(item),
          rows{p, item.row, item.tile},
          thread(FreshThread().thread),
          slot(int(blockIdx.x) * 2 + item.slot()),
          shared(bool(Traits::kPairSplits) && item.pair_splits()),
          half(shared ? cluster_rank() : 0) {}
    // Where columns of a row go: to the output, or as a partial.
    __device__ __forceinline__ Element* place(typename Traits::Params const& p, int row) const {
      if (!work.split()) return rows.out(row < rows.count() ? row : 0);
      return static_cast<Element*>(p.partial_out) + (long long)slot * (kBlockM * kLatent) +
             row * kLatent;
    }
  };

  // Log-sum-exp (log2) of one row.
  __device__ __forceinline__ void write_lse(End const& end, int row, float lse) const {
    if (end.work.split()) {
      __stcg(p.partial_lse + ((long long)end.slot * 2 + end.half) * kBlockM + row, lse);
    } else if (row < end.rows.count() && end.half == 0 && p.lse != nullptr) {
      *end.rows.lse(row) = lse * kLn2;
    }
  }
  __device__ __forceinline__ static float2 no_keys() {
    return make_float2(negative_infinity(), 0.f);
  }
  // Columns of tensor memory, zeros where this CTA has no keys.
  template <int kCount>
  __device__ __forceinline__ static void take(unsigned from, bool holds, float (&v)[kCount]) {
    if (holds) {
      tmem_load(from, v);
      tmem_wait_load(v);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v[i] = 0.f;
    }
  }

  __device__ __forceinline__ void run_item(WorkItem const& work) {
    End const end(p, work);
    bool const holds = work.blocks > 0;
    if (holds) mbarrier_wait(smem.stats_full[0], items & 1);
    if constexpr (Traits::kColumnsForm) {
      run_columns(end, holds);
    } else {
      run_rows(end, holds);
    }
    tmem_fence_before();
    __syncwarp();
    if (holds && elect_lane()) T::arrive_at_leader(smem.o_empty[0]);
    __syncwarp();
    if (work.split()) {
      meet();
      if (end.thread == 0 && work.tile < p.tiles) announce(work.slot(), end.half);
    }
    items += holds;
  }
  // Our statistics have been read; then O may be read once it is complete.
  __device__ __forceinline__ unsigned await_output(bool holds) const {
    __syncwarp();
    if (holds) {
      if (elect_lane()) mbarrier_arrive(smem.stats_empty[0]);
      mbarrier_wait(smem.o_full[0], items & 1);  // all P V of the item are done
      tmem_fence_after();
    }
    return tmem + (unsigned(FreshThread().warp() * 32) << 16) + Traits::kTmemOutput;
  }

  // Rows form and pair form: thread t has row t % 64.
  __device__ __forceinline__ void run_rows(End const& end, bool holds) {
    int const row = end.thread % kBlockM, upper = end.thread / kBlockM;
    float2 const stats = holds ? smem.stats[row] : no_keys();
    unsigned const from = await_output(holds);
    bool const writes = end.work.tile < p.tiles && row < end.rows.count();
    Element* const to = end.place(p, row);
    float lse = stats.x;
    if constexpr (Traits::kPairSplits) {
      if (end.shared) lse = join_rows(end, holds, stats, from, to, writes);
    }
    if (!end.shared) {
#pragma unroll 2
      for (int column = 0; column < 256; column += 32) {
        float v[32];
        take(from + column, true, v);
        if (writes) write_row(to + T::latent(column, upper), v, stats.y);
      }
    }
    if (upper == 0) write_lse(end, row, lse);
  }
  __device__ __forceinline__ static void write_row(Element* to, float const (&v)[32],
                                                   float factor) {
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
      uint4 const packed = make_uint4(pack<Element>(v[i] * factor, v[i + 1] * factor),
                                      pack<Element>(v[i + 2] * factor, v[i + 3] * factor),
                                      pack<Element>(v[i + 4] * factor, v[i + 5] * factor),
                                      pack<Element>(v[i + 6] * factor, v[i + 7] * factor));
      __stcg(reinterpret_cast<uint4*>(to + i), packed);
    }
  }
  // Our half of the columns with the peer's part added; returns the joint log-sum-exp.
  __device__ __forceinline__ float join_rows(End const& end, bool holds, float2 stats,
                                             unsigned from, Element* to, bool writes) {
    Exchange exchange{smem, exchanged, end.thread};
    int const row = end.thread % kBlockM, upper = end.thread / kBlockM;
    JointRow joint(no_keys(), negative_infinity());
#pragma unroll 1
    for (int chunk = 0; chunk < Exchange::kColumns; chunk += 32) {
      bool const first = chunk == 0;
      float v[32];
      unsigned words[16];
      exchange.expect(first);
      take(from + (end.half ^ 1) * 128 + chunk, holds, v);
#pragma unroll
      for (int i = 0; i < 16; ++i)
        words[i] = pack<Element>(v[2 * i] * stats.y, v[2 * i + 1] * stats.y);
      exchange.send(words, first, stats.x);
      take(from + end.half * 128 + chunk, holds, v);
      exchange.receive(words);
      if (first) joint = JointRow(stats, smem.peer_lse[row]);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float2 const other = unpack<Element>(words[i]);
        v[2 * i] = v[2 * i] * joint.own + other.x * joint.peer;
        v[2 * i + 1] = v[2 * i + 1] * joint.own + other.y * joint.peer;
      }
      if (writes) write_row(to + T::latent(end.half * 128 + chunk, upper), v, 1.f);
      exchange.finish();
    }
    return joint.lse;
  }

  // Columns form: lane l of O is a latent column, registers are rows.
  __device__ __forceinline__ void run_columns(End const& end, bool holds) {
    using C = Columns<Traits>;
    int const thread = end.thread;
    float2 stats[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) stats[r] = holds ? smem.stats[r] : no_keys();
    float lse = holds && thread < kRows ? smem.stats[thread % kRows].x : negative_infinity();
    unsigned const from = await_output(holds);
    if constexpr (Traits::kPairSplits) {
      if (end.shared) lse = join_columns(end, holds, stats, lse, from);
    }
    if (!end.shared) {
#pragma unroll
      for (int piece = 0; piece < C::kPieces; ++piece) {
        float v[kRows];
        take(from + piece * kRows, true, v);
#pragma unroll
        for (int r = 0; r < kRows; ++r) v[r] *= stats[r].y;
        write_columns(end, piece, v);
      }
    }
    if (thread < kRows) write_lse(end, thread, lse);
  }
  __device__ __forceinline__ float join_columns(End const& end, bool holds,
                                                float2 const (&stats)[kRows], float lse,
                                                unsigned from) {
    Exchange exchange{smem, exchanged, end.thread};
    float own[kRows], peer[kRows];
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      float v[kRows];
      unsigned words[kRows / 2];
      exchange.expect(chunk == 0);
      take(from + ((end.half ^ 1) * 2 + chunk) * kRows, holds, v);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        words[i] = pack<Element>(v[2 * i] * stats[2 * i].y, v[2 * i + 1] * stats[2 * i + 1].y);
      }
      exchange.send(words, chunk == 0, lse);
      take(from + (end.half * 2 + chunk) * kRows, holds, v);
      exchange.receive(words);
      if (chunk == 0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          JointRow const joint(stats[r], smem.peer_lse[r]);
          own[r] = joint.own, peer[r] = joint.peer;
          if (end.thread == r) lse = joint.lse;
        }
      }
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        float2 const other = unpack<Element>(words[i]);
        v[2 * i] = v[2 * i] * own[2 * i] + other.x * peer[2 * i];
        v[2 * i + 1] = v[2 * i + 1] * own[2 * i + 1] + other.y * peer[2 * i + 1];
      }
      write_columns(end, end.half * 2 + chunk, v);
      exchange.finish();
    }
    return lse;
  }
  // 128 latent columns of all rows. Each warp turns 32 columns of 16 rows at a time in its own part
  // of `turn`.
  __device__ __forceinline__ void write_columns(End const& end, int piece,
                                                float const (&v)[kRows]) const {
    FreshThread const self;
    int const lane = self.lane(), count = end.rows.count();
    unsigned const turn = smem_address(smem.turn) + self.warp() * 1024;
#pragma unroll
    for (int first = 0; first < kRows; first += 16) {
      __syncwarp();  // the part has been read
#pragma unroll
      for (int r = 0; r < 16; r += 2) {
        unsigned const pair = pack<Element>(v[first + r], v[first + r + 1]);
        store_shared_2(turn + r * 64 + lane * 2, pair & 0xffff);
        store_shared_2(turn + r * 64 + 64 + lane * 2, pair >> 16);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint4 const chunk = load_shared_16(turn + lane * 16 + i * 512);
        int const row = first + lane / 4 + 8 * i;
        if (row < count) {
          Element* const to = end.place(p, row) + piece * 128 + self.warp() * 32 + lane % 4 * 8;
          __stcg(reinterpret_cast<uint4*>(to), chunk);
        }
      }
    }
  }

  // An item without keys: zeros and -inf.
  __device__ __forceinline__ void write_empty(WorkItem const& work) const {
    if (work.tile >= p.tiles) return;
    if (Traits::kPairSplits && work.pair_splits() && cluster_rank() == 1) return;
    FreshThread const self;
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const lane = self.lane();
    for (int row = self.warp(); row < rows.count(); row += 4) {
      uint4* const to = reinterpret_cast<uint4*>(rows.out(row)) + lane;
      to[0] = to[32] = make_uint4(0, 0, 0, 0);
      if (lane == 0 && p.lse != nullptr) *rows.lse(row) = negative_infinity();
    }
  }

  // Arrive at the counter of the shared row: see merge.cuh.
  __device__ __forceinline__ void announce(int which, int half) const {
    MergeDuty const& duty = smem.duty[which];
    int const holder = Place<Traits>(p, int(blockIdx.x)).cta_of(p, duty.first_team);
    __threadfence();
    smem.arrival[which * 2 + half] =
        atomic_add_acq_rel(arrival_counter<Traits>(p, holder, half), arrival_weight(duty));
  }

  // After all items: rows that other teams share. See merge.cuh.
  __device__ __forceinline__ void merge() const {
    Place<Traits> const place(p, int(blockIdx.x));
#pragma unroll 1
    for (int which = 0; which < 2; ++which) {
      if (smem.duty[which].pieces == 0) continue;
      if constexpr (Traits::kPairSplits) {
        if (smem.duty[which].pair_splits) {
          Merge<Traits, kHalf>{p, smem, place, place.rank}.run(which);
          continue;
        }
      }
      Merge<Traits, kLatent>{p, smem, place, 0}.run(which);
    }
  }

  __device__ __forceinline__ void run_list() {
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const& work = smem.work[0].item[item];
      if (work.places() == 0) {
        write_empty(work);
      } else {
        run_item(work);
      }
    }
  }
};

}  // namespace mlagen
