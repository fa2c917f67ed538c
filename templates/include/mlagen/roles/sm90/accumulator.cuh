// Role accumulator (warps 4-7 and 8-11): O += P V for 256 of the 512 latent columns, and all
// loading of the kv ring. Warpgroup h owns columns 256 h .. and half h of every stage: it refills
// what it alone has read. Warp 0 loads the halves, warp 3 of the first warpgroup the rope tile.
// Consumes probs_full, produces kv_full, rope_full, probs_empty.
#pragma once
#include "mlagen/arch/cluster.cuh"
#include "mlagen/kv/pages.cuh"
#include "mlagen/merge.cuh"
#include "mlagen/roles/sm90/epilogue.cuh"

namespace mlagen {

template <class Traits>
struct Accumulator {
  using Atoms = WgmmaAtoms<typename Traits::Element>;
  static constexpr bool kPair = Traits::kCtaGroup == 2;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;
  TensorMap const& tma_latent;
  TensorMap const& tma_rope;
  int const half;
  int const warp;
  PageWalk<Traits> walk;  // warp 0: halves of blocks, three places ahead; warp 3 of half 0: rope,
                          // two blocks ahead
  bool const loads_half, loads_rope;

  float o[128];
  int stage = 0;
  unsigned block_count = 0;  // blocks accumulated by this CTA
  // Parities, in one register: bit s < 3 of pair_kv_empty[s], then of pair_rope_empty, of the items
  // with blocks, of the items that the pair splits. Above them the stage of a refill that waits for
  // the peer (2SM), plus 1; 0 for none.
  static constexpr int kRopeBit = 3, kItemBit = 4, kExchangeBit = 5, kPendingShift = 6;
  unsigned parity = 0;
  unsigned rope_count =
      0;  // rope tiles loaded: two more than blocks accumulated, where there are as many

  __device__ __forceinline__ Accumulator(typename Traits::Params const& params,
                                         typename Traits::Smem& storage, TensorMap const& latent,
                                         TensorMap const& rope, int h)
      : p(params),
        smem(storage),
        tma_latent(latent),
        tma_rope(rope),
        half(h),
        warp(warp_in_group()),
        walk{params, storage},
        loads_half(warp == 0),
        loads_rope(h == 0 && warp == 3) {}

  // Read where it is needed: it has no register to live in.
  __device__ __forceinline__ static int rank() { return cluster_rank(); }
  __device__ __forceinline__ unsigned bit(int b) const { return (parity >> b) & 1; }
  __device__ __forceinline__ void group_sync() const {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead) + half, Traits::kHalfReadThreads);
  }
  __device__ __forceinline__ unsigned char* half_of(int s) const {
    return smem.kv + s * kStageBytes + half * kHalfBytes;
  }

  // -- loading
  // ------------------------------------------------------------------------------------------------------
  // Warp 0: the next place of the list into `s`, whose half nobody reads any more. Unless
  // `patient`, a refill that the peer is not ready for is left for later.
  __device__ __forceinline__ void refill(int s, bool patient) {
    if (!loads_half || walk.ended()) return;
    bool done = true;
    if (walk.has_block()) {
      // Arrive: the phase completes with these bytes.
      if (lane_id() == 0) mbarrier_arrive_expect(smem.kv_full[s * 2 + half], walk.bytes(kHalf));
      if constexpr (kPair) {
        bool const shared = walk.shared_by_pair();
        // Arrive at the CTA that loads this half for both: our copy is free and its barrier expects
        // the bytes.
        if (shared && lane_id() == 0) mbarrier_arrive_remote(smem.pair_kv_empty[s], half);
        if (!shared || rank() == half) {
          done = !shared || patient ||
                 __all_sync(kFullWarp, mbarrier_test(smem.pair_kv_empty[s], bit(s)));
          if (done) {
            fetch_half(s);
          } else {
            parity |= unsigned(s + 1) << kPendingShift;
          }
        }
      } else {
        fetch_half(s);
      }
    }
    if (done) walk.advance();
  }
  // Fetches the half of the walk's place, into both CTAs once both copies are free where the pair
  // shares it.
  __device__ __forceinline__ void fetch_half(int s) {
    if constexpr (kPair) {
      if (walk.shared_by_pair()) {
        mbarrier_wait(smem.pair_kv_empty[s], bit(s));
        parity ^= 1u << s;
      }
    }
    walk.template fetch<4>(tma_latent, smem.kv_full[s * 2 + half], half_of(s), half * 4);
  }
  // Warp 0 of a loading CTA: keeps the promise of a refill that was left for later.
  __device__ __forceinline__ void finish_pending() {
    int const s = int(parity >> kPendingShift) - 1;
    if (s < 0) return;
    fetch_half(s);
    parity &= (1u << kPendingShift) - 1;
    walk.advance();
  }
  // Warp 3 of half 0: rope tiles up to two ahead. Unless `patient`, stops where the scorer has not
  // read the tile before: behind an item's last block that is far ahead, and the epilogue should
  // not wait for it.
  __device__ __forceinline__ void load_rope(bool patient) {
    if (!loads_rope) return;
    while (rope_count != block_count + 2 && !walk.ended()) {
      if (walk.has_block()) {
        unsigned const free = (rope_count & 1) ^ 1;
        if (!patient && !__all_sync(kFullWarp, mbarrier_test(smem.rope_empty[0], free))) return;
        // Wait: Q K^T of the block before has read the tile. First use: parity 1 of a fresh barrier
        // passes at once.
        mbarrier_wait(smem.rope_empty[0], free);
        fetch_rope();
        ++rope_count;
      }
      walk.advance();
    }
  }
  __device__ __forceinline__ void fetch_rope() {
    if (lane_id() == 0) mbarrier_arrive_expect(smem.rope_full[0], walk.bytes(64));
    bool loads = true;
    if constexpr (kPair) {
      if (walk.shared_by_pair()) {  // the first CTA loads for both
        if (lane_id() == 0) mbarrier_arrive_remote(smem.pair_rope_empty[0], 0);
        loads = rank() == 0;
        if (loads) {
          mbarrier_wait(smem.pair_rope_empty[0], bit(kRopeBit));  // both tiles are free
          parity ^= 1u << kRopeBit;
        }
      }
    }
    if (loads) walk.template fetch<1>(tma_rope, smem.rope_full[0], smem.rope, 0);
  }

  // -- one block
  // ----------------------------------------------------------------------------------------------------
  __device__ __forceinline__ void rescale_output() {
    int const slot = block_count & 1, lane = lane_id();
    if (smem.rescale_flag[slot * 4 + warp] == 0) return;
    float const f0 = smem.rescale[slot * kBlockM + warp * 16 + lane / 4];
    float const f1 = smem.rescale[slot * kBlockM + warp * 16 + lane / 4 + 8];
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      o[4 * j] *= f0;
      o[4 * j + 1] *= f0;
      o[4 * j + 2] *= f1;
      o[4 * j + 3] *= f1;
    }
  }
  // Rows of V past the row's last key hold whatever the page holds, NaN included; 0 x NaN must not
  // reach O.
  __device__ __forceinline__ void clear_rows(int first) {
    unsigned char* const base = half_of(stage);
    for (int i = first * 32 + FreshThread().thread; i < kBlockN * 32; i += kWarpGroup) {
      int const row = i / 32, chunk = i % 32;
      auto* const to =
          base + row / 8 * kGroupBytes + chunk / 8 * kAtomBytes + row % 8 * 128 + chunk % 8 * 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    fence_async_shared();  // generic -> async: V is read by wgmma, and later overwritten by TMA
    group_sync();
  }
  __device__ __forceinline__ void multiply() {
    unsigned long long const probs = tile_descriptor(smem_address(smem.probs));
    unsigned long long const values = value_descriptor(smem_address(half_of(stage)));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_ss<typename Atoms::OutputSs>(probs + desc_offset(k * kStep),
                                         values + desc_offset(k * kValueStep), o, ScaleOut::One);
    }
    wgmma_commit();
  }
  // O += P V of one block; `clear_from` < 64: the first row of V past the row's keys.
  __device__ __forceinline__ void accumulate(bool last, int clear_from) {
    // Wait: P, its factors and, with the last block of an item, the statistics are written; V has
    // landed.
    mbarrier_wait(smem.probs_full[block_count & 1], (block_count >> 1) & 1);
    rescale_output();
    if (clear_from < kBlockN) clear_rows(clear_from);
    __syncwarp();
    multiply();
    ++block_count;
    if constexpr (kPair) finish_pending_warp();
    load_rope(!last);  // while P V runs
    __syncwarp();
    wgmma_wait<0>();
    pin(o);
    group_sync();  // all four warps have read P and this half of V
    if (thread_in_group() == 0) mbarrier_arrive(smem.probs_empty[0]);
  }
  __device__ __forceinline__ void finish_pending_warp() {
    if (loads_half) finish_pending();
    __syncwarp();
  }

  __device__ __forceinline__ void advance_stage() {
    stage = stage + 1 == Traits::kStages ? 0 : stage + 1;
  }

  // -- the list
  // -----------------------------------------------------------------------------------------------------
  __device__ __forceinline__ void run_list() {
    if (loads_half || loads_rope) walk.start();
#pragma unroll 1
    for (int i = 0; i < Traits::kStages; ++i) refill((stage + i) % Traits::kStages, true);
    load_rope(true);  // the second tile waits until the first block is scored
    __syncwarp();
    for (int item = 0; item < smem.work[0].count; ++item) {
      WorkItem const& work = smem.work[0].item[item];
      if (work.places() == 0) {
        Epilogue<Traits>{p, smem, half}.write_empty(work);
        continue;
      }
      // Zeros rather than a first wgmma that overwrites: the old values would occupy their
      // registers between items.
#pragma unroll
      for (int i = 0; i < 128; ++i) o[i] = 0.f;
      pin(o);
#pragma unroll 1
      for (int i = 0; i < work.places(); ++i) {
        if (!kPair || i < work.blocks) {
          accumulate(i + 1 == work.blocks, work.length - (work.first_block + i) * kBlockN);
        }
        bool const last = i + 1 == work.places();
        if (last) {
          if (kPair && work.blocks == 0) finish_pending_warp();
          Epilogue<Traits>{p, smem, half}.run(o, work, smem_address(half_of(stage)),
                                              int(bit(kItemBit)), bit(kExchangeBit));
        }
        refill(stage, false);
        if (last) load_rope(true);
        __syncwarp();
        advance_stage();
      }
      if (work.blocks > 0) parity ^= 1u << kItemBit;
      if (kPair && work.pair_splits()) parity ^= 1u << kExchangeBit;
    }
  }
};

}  // namespace mlagen
