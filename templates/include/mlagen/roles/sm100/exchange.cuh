// Two CTAs that split the keys of one tile join their parts over distributed shared memory: CTA h
// takes latent columns 256 h and on of both, chunk by chunk, and leaves the others to its peer.
//
// A chunk is 32 (rows form) or 16 (columns form) columns of tensor memory, normalised, in the
// element type. Both CTAs have the same threads in the same lanes, so what a thread sends is what
// the thread of the same number adds. Waits and arrivals are the epilogue's own: exchange_full
// completes with the peer's bytes, exchange_empty when the peer expects ours.
#pragma once
#include "mlagen/arch/math.cuh"
#include "mlagen/arch/packed.cuh"
#include "mlagen/roles/sm100/tiles.cuh"

namespace mlagen {

// The factors of both parts of a row and their joint log-sum-exp (log2).
struct JointRow {
  float own, peer, lse;
  // stats: log-sum-exp and 1 / sum of our part.
  __device__ __forceinline__ JointRow(float2 stats, float peer_lse) {
    float const top = fmaxf(stats.x, peer_lse);
    float const a = top == negative_infinity() ? 0.f : exp2_approx(stats.x - top);
    float const b = top == negative_infinity() ? 0.f : exp2_approx(peer_lse - top);
    float const sum = a + b, inverse = sum == 0.f ? 0.f : reciprocal(sum);
    own = a * inverse * stats.y;
    peer = b * inverse;
    lse = sum == 0.f ? negative_infinity() : top + log2_approx(sum);
  }
};

template <class Traits>
struct PairExchange {
  using Element = typename Traits::Element;
  static constexpr int kValues = Traits::kColumnsForm ? Traits::kTileRows : 32;  // of a chunk
  static constexpr int kWords = kValues / 2;                                     // as sent
  static constexpr int kChunkBytes = kWarpGroup * kWords * 4;
  static constexpr int kColumns = Traits::kColumnsForm ? 2 * kValues : 128;  // of each CTA
  typename Traits::Smem& smem;
  unsigned& count;  // chunks exchanged so far
  int thread;

  __device__ __forceinline__ static void meet() {
    named_barrier_sync(int(Traits::NamedBarrier::kHalfRead), Traits::kHalfReadThreads);
  }
  // Our buffer is free: expects the peer's chunk, with its log-sum-exps if it is the first of an
  // item.
  __device__ __forceinline__ void expect(bool first) const {
    if (thread == 0) {
      mbarrier_arrive_expect(smem.exchange_full[0],
                             kChunkBytes + (first ? Traits::kTileRows * 4 : 0));
      mbarrier_arrive_remote(smem.exchange_empty[0], cluster_rank() ^ 1);
    }
    __syncwarp();
  }
  // `lse`: of row `thread` of our part, sent with the first chunk.
  __device__ __forceinline__ void send(unsigned const (&words)[kWords], bool first,
                                       float lse) const {
    int const peer = cluster_rank() ^ 1;
    unsigned const full = peer_address(&smem.exchange_full[0], peer);
    unsigned const to = peer_address(smem.exchange, peer) + thread * 16;
    mbarrier_wait(smem.exchange_empty[0], count & 1);  // the peer expects it
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      store_async(to + i * (kWarpGroup * 4),
                  make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]), full);
    }
    if (first && thread < Traits::kTileRows)
      store_async(peer_address(&smem.peer_lse[thread], peer), lse, full);
  }
  __device__ __forceinline__ void receive(unsigned (&words)[kWords]) const {
    mbarrier_wait(smem.exchange_full[0], count & 1);
    unsigned const from = smem_address(smem.exchange) + thread * 16;
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      uint4 const v = load_shared_16(from + i * (kWarpGroup * 4));
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
  }
  // All threads have read the chunk.
  __device__ __forceinline__ void finish() const {
    meet();
    ++count;
  }
};

}  // namespace mlagen
