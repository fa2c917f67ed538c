// Role scorer (warps 0-3): S = Q K^T, mask, softmax, P.
// Consumes the kv ring (kv_full, rope_full), produces P, the rescale factors and the row statistics
// for the accumulators. Owns Q: tiles 0..6 as register fragments, tiles 7 and 8 in shared memory.
// Warp w holds rows 16 w .. 16 w + 15.
#pragma once
#include "mlagen/arch/global.cuh"
#include "mlagen/arch/math.cuh"
#include "mlagen/arch/mbarrier.cuh"
#include "mlagen/kv/tile_layout.cuh"
#include "mlagen/query_rows.cuh"
#include "mlagen/schedule.cuh"

namespace mlagen {

constexpr int kQueryFragments = 28;  // 16-column steps of Q tiles 0..6, kept in registers
constexpr float kRescaleSlack =
    8.f;  // log2: O is rescaled when a row outgrows its reference by more than 2^8
constexpr float kNoMaximum =
    -1e30f;  // reference of a row that has seen no key: finite, so that no inf - inf arises
// Issuing a wgmma with A in registers blocks the warp, so the place in the issue order is the time:
// P of the block before is stored after tile 4 and released after tile 6. H200, CUDA 13.0,
// 2026-11-30: 2430 -> 2220 cycles per block.
constexpr int kStoreAfterTile = 4, kReleaseAfterTile = 6;

template <class Traits>
struct Scorer {
  using Atoms = WgmmaAtoms<typename Traits::Element>;
  typename Traits::Params const& p;
  typename Traits::Smem& smem;

  unsigned q[kQueryFragments][4];
  float s[32];
  unsigned packed[16];           // P of the current block while S of the next accumulates
  float max0, max1, sum0, sum1;  // rows lane / 4 and lane / 4 + 8, log2 domain
  int stage = 0;
  // Parities, in one register: bit s < 3 that of the next use of stage s; then those of the blocks
  // and of the items so far.
  static constexpr int kBlockBit = 3, kItemBit = 4;
  unsigned parity = 0;
  bool ready = false;

  __device__ __forceinline__ unsigned bit(int b) const { return (parity >> b) & 1; }

  // The next item of the list with blocks for this CTA, or the list's length.
  __device__ __forceinline__ int next_item(int after) const {
    int i = after + 1;
    while (i < smem.work[0].count && smem.work[0].item[i].blocks == 0) ++i;
    return __shfl_sync(kFullWarp, i, 0);  // the same in all lanes: a uniform register is enough
  }

  // The row of which this lane loads 16 bytes of each tile, the j-th of four.
  __device__ __forceinline__ static int loaded_row(int j) {
    FreshThread const self;
    return self.warp() * 16 + 4 * j + self.lane() / 8;
  }

  // Tiles 0..6 on their way to registers, row by row. Rows past the tile's end are zero.
  __device__ __forceinline__ void load_query(int item) {
    WorkItem const& work = smem.work[0].item[item];
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const count = rows.count();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int const row = loaded_row(j);
      bool const has = row < count;
      load_row(rows.nope(has ? row : 0) + FreshThread().lane() % 8 * 8, has, j, NumbersBelow<7>{});
    }
  }
  template <int... kTile>
  __device__ __forceinline__ void load_row(void const* from, bool valid, int j, Numbers<kTile...>) {
    (load_or_zero_16<kTile * 128>(q[kTile * 4 + j], from, valid), ...);
  }

  // From rows to fragments, through the warp's own rows of the place of tiles 7 and 8; then those
  // two, which stay there for wgmma to read.
  __device__ __forceinline__ void place_query(int item) {
    WorkItem const& work = smem.work[0].item[item];
    QueryRows<Traits> const rows{p, work.row, work.tile};
    int const count = rows.count();
    unsigned tail[8][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int const row = loaded_row(j), chunk = FreshThread().lane() % 8 * 8;
      bool const has = row < count;
      load_or_zero_16<7 * 128>(tail[j], rows.nope(has ? row : 0) + chunk, has);
      load_or_zero_16<0>(tail[4 + j], rows.pe(has ? row : 0) + chunk, has);
    }
    FreshThread const self;
    int const lane = self.lane(), first = self.warp() * 16;
    unsigned const place = smem_address(smem.q_tail);
    unsigned const to = place + tile_chunk(first + lane / 8, lane % 8);
    unsigned const from = place + tile_chunk(first + lane % 16, lane / 16);
#pragma unroll
    for (int t = 0; t < 7; ++t) {
      int const buffer = t % 2 * kTileBytes;
      store_rows(to + buffer, q[4 * t], q[4 * t + 1], q[4 * t + 2], q[4 * t + 3]);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 4; ++k) ldmatrix_x4(q[4 * t + k], (from + buffer) ^ (k * 32));
    }
    __syncwarp();
    store_rows(to, tail[0], tail[1], tail[2], tail[3]);
    store_rows(to + kTileBytes, tail[4], tail[5], tail[6], tail[7]);
    // The async proxy may read them.
    fence_async_shared();
    named_barrier_sync(int(Traits::NamedBarrier::kQueryReady), Traits::kQueryReadyThreads);
  }
  // Q of the item after this one, if any, to L2: by the time it is loaded it should be near.
  __device__ __forceinline__ void prefetch_query(int item) const {
    int const next = next_item(item);
    if (next == smem.work[0].count) return;
    WorkItem const& work = smem.work[0].item[next];
    QueryRows<Traits> const rows{p, work.row, work.tile};
    FreshThread const self;
    int const row = self.thread / 2;
    if (row >= rows.count()) return;
    auto const* const nope = rows.nope(row);
#pragma unroll 1
    for (int line = self.thread % 2; line < 8; line += 2) prefetch_l2(nope + line * 64);
    if (self.thread % 2 == 0) prefetch_l2(rows.pe(row));
  }
  // Rows lane / 8 + 4 j, j = 0..3: the swizzle flips bit 2 of the chunk from one j to the next.
  __device__ __forceinline__ static void store_rows(unsigned to, unsigned const (&a)[4],
                                                    unsigned const (&b)[4], unsigned const (&c)[4],
                                                    unsigned const (&d)[4]) {
    store_shared_16(to, a);
    store_shared_16((to ^ 64) + 4 * 128, b);
    store_shared_16(to + 8 * 128, c);
    store_shared_16((to ^ 64) + 12 * 128, d);
  }

  template <bool kLast>
  __device__ __forceinline__ void store_probs() {
    // Wait: P V of the block before has read the slot. First use: parity 1 of a fresh barrier
    // passes at once.
    mbarrier_wait(smem.probs_empty[0], bit(kBlockBit) ^ 1);
    // Also true now: the statistics of the item before the last one have been read, whose place
    // these take.
    if constexpr (kLast) write_statistics();
    // Chunk 2 j + lane / 16 of the row, swizzled: one address, whose chunk bits the loop flips.
    FreshThread const self;
    unsigned const address = smem_address(smem.probs) +
                             tile_chunk(self.warp() * 16 + self.lane() % 16, self.lane() / 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      stmatrix_x4(address ^ (j * 32), packed[4 * j], packed[4 * j + 1], packed[4 * j + 2],
                  packed[4 * j + 3]);
    }
    fence_async_shared();  // generic -> async: P is read by wgmma
  }
  // Arrive: P, its factors and, behind the last block, the statistics are written; half of V(i) has
  // long landed.
  __device__ __forceinline__ void release_probs() {
    __syncwarp();
    if (elect_lane()) mbarrier_arrive(smem.probs_full[bit(kBlockBit)]);
    parity ^= 1u << kBlockBit;
  }

  // Issues S = Q K^T of the next block of the ring. If P of the block before is pending, hands it
  // over on the way.
  __device__ __forceinline__ void issue_scores(bool pending) {
    unsigned const stage_parity = bit(stage);
    mbarrier& full0 = smem.kv_full[stage * 2];
    mbarrier& full1 = smem.kv_full[stage * 2 + 1];
    // The block bit still counts the block before the one scored here if its P is pending.
    unsigned const rope_parity = bit(kBlockBit) ^ unsigned(pending);
    unsigned long long const keys = key_descriptor(smem_address(smem.kv) + stage * kStageBytes);
    unsigned long long const tail = tile_descriptor(smem_address(smem.q_tail));
    unsigned long long const rope = tile_descriptor(smem_address(smem.rope));
#pragma unroll
    for (int t = 0; t < 9; ++t) {
      if (t == 0) {
        if (!ready) mbarrier_wait(full0, stage_parity);  // columns 0..255 have landed
      } else if (t == 2) {
        ready = mbarrier_test(full1, stage_parity);
      } else if (t == 4) {
        if (!ready) mbarrier_wait(full1, stage_parity);  // columns 256..511
        ready = mbarrier_test(smem.rope_full[0], rope_parity);
      } else if (t == 8) {
        if (!ready) mbarrier_wait(smem.rope_full[0], rope_parity);  // rope columns
      }
      if (t % 4 == 0) wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        unsigned long long const b = t < 8 ? keys + desc_offset(key_tile_offset(t) + k * kStep)
                                           : rope + desc_offset(k * kStep);
        if (t < 7) {
          wgmma_rs<typename Atoms::ScoreRs>(q[t < 7 ? t * 4 + k : 0], b, s,
                                            t + k == 0 ? ScaleOut::Zero : ScaleOut::One);
        } else {
          wgmma_ss<typename Atoms::ScoreSs>(tail + desc_offset((t - 7) * kTileBytes + k * kStep), b,
                                            s, ScaleOut::One);
        }
      }
      if (t == 8) wgmma_commit();
      if (t == kStoreAfterTile && pending) store_probs<false>();
      if (t == kReleaseAfterTile && pending) release_probs();
    }
    parity ^= 1u << stage;
    advance_stage(1);
  }
  __device__ __forceinline__ void advance_stage(int places) {
    stage += places;
    if (stage >= Traits::kStages) stage -= Traits::kStages;
  }
  // Wait: S is complete in registers. Arrive: the rope tile has been read.
  __device__ __forceinline__ void finish_scores() {
    wgmma_wait<0>();
    pin(s);
    if (elect_lane()) mbarrier_arrive(smem.rope_empty[0]);
  }

  // Keys at or past a row's visible count do not take part.
  __device__ __forceinline__ void mask(int item, int left) {
    WorkItem const& work = smem.work[0].item[item];
    FreshThread const self;
    int const tile = work.tile, lane = self.lane();
    int const row = self.warp() * 16 + lane / 4;
    int const first = (work.first_block + work.blocks - left) * kBlockN + (lane % 4) * 2;
    int const left0 =
        visible_keys<Traits>(p, work.length, QueryRows<Traits>::token(tile, row)) - first;
    int const left1 =
        visible_keys<Traits>(p, work.length, QueryRows<Traits>::token(tile, row + 8)) - first;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (j * 8 + e >= left0) s[4 * j + e] = negative_infinity();
        if (j * 8 + e >= left1) s[4 * j + 2 + e] = negative_infinity();
      }
    }
  }

  __device__ __forceinline__ void reset_rows() {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0.f;
    pin(s);  // the zeros are in their registers before the wgmma.fence
    max0 = max1 = kNoMaximum;
    sum0 = sum1 = 0.f;
  }

  // Moves the references of the warp's rows if one of them is outgrown, and tells the accumulators
  // by how much. The slot's readers are done: P V of the block before the last one has been waited
  // for.
  __device__ __forceinline__ void move_reference(float top0, float top1) {
    bool const rescale =
        __any_sync(kFullWarp, top0 > max0 + kRescaleSlack || top1 > max1 + kRescaleSlack);
    FreshThread const self;
    int const slot = int(bit(kBlockBit)), warp = self.warp(), lane = self.lane();
    if (elect_lane()) smem.rescale_flag[slot * 4 + warp] = rescale;
    if (!rescale) return;
    float const new0 = fmaxf(max0, top0), new1 = fmaxf(max1, top1);
    float const factor0 = exp2_approx(max0 - new0), factor1 = exp2_approx(max1 - new1);
    max0 = new0;
    max1 = new1;
    sum0 *= factor0;
    sum1 *= factor1;
    if (lane % 4 == 0) {
      smem.rescale[slot * kBlockM + warp * 16 + lane / 4] = factor0;
      smem.rescale[slot * kBlockM + warp * 16 + lane / 4 + 8] = factor1;
    }
  }

  // Softmax of the block in `s` with a lazily moved reference: exact, since the factors are carried
  // along.
  __device__ __forceinline__ void softmax() {
    float top0 = s[0], top1 = s[2];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      top0 = fmaxf(top0, fmaxf(s[4 * j], s[4 * j + 1]));
      top1 = fmaxf(top1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
#pragma unroll
    for (int i = 1; i <= 2; i *= 2) {
      top0 = fmaxf(top0, __shfl_xor_sync(kFullWarp, top0, i));
      top1 = fmaxf(top1, __shfl_xor_sync(kFullWarp, top1, i));
    }
    float const scale = p.scale_log2;
    top0 *= scale;
    top1 *= scale;
    move_reference(top0, top1);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float const a = exp2_approx(fmaf(s[4 * j], scale, -max0)),
                  b = exp2_approx(fmaf(s[4 * j + 1], scale, -max0));
      float const c = exp2_approx(fmaf(s[4 * j + 2], scale, -max1)),
                  d = exp2_approx(fmaf(s[4 * j + 3], scale, -max1));
      sum0 += a + b;
      sum1 += c + d;
      packed[2 * j] = pack<typename Traits::Element>(a, b);
      packed[2 * j + 1] = pack<typename Traits::Element>(c, d);
    }
  }

  // Always true: P has no sign bits. Asking makes the compiler finish packing before it issues Q
  // K^T, which ptxas would rather do later, with P in twice the registers and spills. CUDA 13.0,
  // 2026-12-01: 12 bytes of spills -> 0.
  __device__ __forceinline__ bool all_packed() const {
    unsigned any = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) any |= packed[i];
    return any != 0xffffffffu;
  }

  // Log-sum-exp (log2) and 1 / sum of each row, for the accumulators; a row without visible keys
  // gives -inf and 0.
  __device__ __forceinline__ void write_statistics() {
#pragma unroll
    for (int i = 1; i <= 2; i *= 2) {
      sum0 += __shfl_xor_sync(kFullWarp, sum0, i);
      sum1 += __shfl_xor_sync(kFullWarp, sum1, i);
    }
    FreshThread const self;
    int const lane = self.lane(), row = int(bit(kItemBit)) * kBlockM + self.warp() * 16 + lane / 4;
    if (lane % 4 == 0) {
      smem.stats[row] = statistics(max0, sum0);
      smem.stats[row + 8] = statistics(max1, sum1);
    }
  }
  __device__ __forceinline__ static float2 statistics(float maximum, float sum) {
    return sum == 0.f ? make_float2(negative_infinity(), 0.f)
                      : make_float2(maximum + log2_approx(sum), reciprocal(sum));
  }

  // All of an item but the softmax of its last block: that comes while the next item's Q is on its
  // way. `left` counts the blocks down; nothing else of the item stays in registers.
  __device__ __forceinline__ void score_item(int item) {
    WorkItem const& work = smem.work[0].item[item];
    int left = __shfl_sync(kFullWarp, work.blocks, 0);
    bool pending = false;
    ready = false;
    place_query(item);
    reset_rows();
#pragma unroll 1
    while (true) {
      issue_scores(pending);
      if (!pending) prefetch_query(item);
      finish_scores();
      if (left <= work.masked) mask(item, left);
      if (--left == 0) break;
      softmax();
      pending = true;
      ready = all_packed() && mbarrier_test(smem.kv_full[stage * 2], bit(stage));
    }
  }
  __device__ __forceinline__ void finish_item() {
    softmax();
    store_probs<true>();
    release_probs();
    parity ^= 1u << kItemBit;
  }

  __device__ __forceinline__ void run_list() {
    int before = -1, item = next_item(-1);
    bool unfinished = false;
#pragma unroll 1
    while (true) {
      bool const more = item < smem.work[0].count;
      if (more) {
        // All warps have finished reading Q of the item before.
        named_barrier_sync(int(Traits::NamedBarrier::kQueryReady), Traits::kQueryReadyThreads);
        load_query(item);
      }
      if (unfinished) finish_item();
      if constexpr (Traits::kCtaGroup == 2) skip_places(before, item);
      if (!more) break;
      score_item(item);
      unfinished = true;
      if constexpr (Traits::kCtaGroup == 2) before = item;
      item = next_item(item);
    }
  }

  // Places of the ring that belong to the peer alone, of the item before and of items without
  // blocks for this CTA.
  __device__ __forceinline__ void skip_places(int before, int item) {
    int places = 0;
    for (int i = max_of(before, 0); i < item; ++i) {
      places += smem.work[0].item[i].places() - smem.work[0].item[i].blocks;
    }
    advance_stage(places % Traits::kStages);
  }
};

}  // namespace mlagen
