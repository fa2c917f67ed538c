// Rows of a tile: (query token, head) pairs, packed token after token.
#pragma once
#include "mlagen/base.cuh"

namespace mlagen {

template <class Traits>
struct QueryRows {
  using Element = typename Traits::Element;
  typename Traits::Params const& p;
  int batch_row, tile;

  __device__ __forceinline__ int count() const {
    return min_of(p.s_q * Traits::kHeads - tile * Traits::kTileRows, Traits::kTileRows);
  }
  __device__ __forceinline__ static int token(int tile, int row) {
    return (tile * Traits::kTileRows + row) / Traits::kHeads;
  }
  __device__ __forceinline__ static int head(int tile, int row) {
    return (tile * Traits::kTileRows + row) % Traits::kHeads;
  }

  __device__ __forceinline__ Element const* nope(int row) const {
    return static_cast<Element const*>(p.q_nope) + batch_row * p.q_nope_stride_b +
           token(tile, row) * p.q_nope_stride_s + head(tile, row) * p.q_nope_stride_h;
  }
  __device__ __forceinline__ Element const* pe(int row) const {
    return static_cast<Element const*>(p.q_pe) + batch_row * p.q_pe_stride_b +
           token(tile, row) * p.q_pe_stride_s + head(tile, row) * p.q_pe_stride_h;
  }
  __device__ __forceinline__ Element* out(int row) const {
    return static_cast<Element*>(p.out) + batch_row * p.out_stride_b +
           token(tile, row) * p.out_stride_s + head(tile, row) * p.out_stride_h;
  }
  __device__ __forceinline__ float* lse(int row) const {
    return p.lse + batch_row * p.lse_stride_b + token(tile, row) * p.lse_stride_s +
           head(tile, row) * p.lse_stride_h;
  }
};

// Keys that a query token sees: with a causal mask the last token sees all, each one before it one
// less.
template <class Traits>
__device__ __forceinline__ int visible_keys(typename Traits::Params const& p, int length,
                                            int token) {
  return p.causal ? max_of(length - p.s_q + 1 + token, 0) : length;
}

}  // namespace mlagen
