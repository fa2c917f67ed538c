// Where things stand inside the shared-memory tiles, and the wgmma descriptors that read them.
//
// A stage holds columns 0..511 of 64 keys in two halves of 256 columns. Inside a half, groups of 8
// keys follow each other (4096 B apart), in a group the four 64-column tiles (1024 B apart), in a
// tile 8 rows of 128 B in the 128-byte swizzle: just what one tensor-map box of 64 columns x 8 rows
// x 4 tiles x 8 groups writes. The rope tile is the same with one tile.
#pragma once
#include "mlagen/arch/wgmma.cuh"
#include "mlagen/base.cuh"

namespace mlagen {

constexpr int kAtomBytes = 1024;             // 8 rows x 128 B: one swizzle atom
constexpr int kGroupBytes = 4 * kAtomBytes;  // 8 keys x 256 columns
constexpr int kHalfBytes = 8 * kGroupBytes;  // 64 keys x 256 columns
constexpr int kStageBytes = 2 * kHalfBytes;
constexpr int kTileBytes = 8 * kAtomBytes;  // 64 rows x 64 columns
constexpr int kStep = 32;                   // 16 elements along k in a K-major tile

// K-major operands: column tile `tile` (0..7) of a stage as B of Q K^T; a 64 x 64 tile with atoms
// in a row (rope, Q, P).
__device__ __forceinline__ unsigned long long key_descriptor(unsigned stage) {
  return smem_descriptor(stage, 16, kGroupBytes);
}
__device__ __forceinline__ constexpr int key_tile_offset(int tile) {
  return (tile / 4) * kHalfBytes + (tile % 4) * kAtomBytes;
}
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned tile) {
  return smem_descriptor(tile, 16, kAtomBytes);
}
// MN-major operand: one half as B of P V, 256 columns by 64 keys.
__device__ __forceinline__ unsigned long long value_descriptor(unsigned half) {
  return smem_descriptor(half, kAtomBytes, kGroupBytes);
}
// 16 keys further: two groups.
constexpr int kValueStep = 2 * kGroupBytes;

// Descriptors advance in units of 16 bytes.
__device__ __forceinline__ constexpr unsigned long long desc_offset(int bytes) {
  return static_cast<unsigned long long>(bytes >> 4);
}

// Byte offset of the 16-byte chunk `chunk` (0..7) of row `row` in a 64 x 64 tile.
__device__ __forceinline__ constexpr int tile_chunk(int row, int chunk) {
  return row * 128 + ((chunk ^ (row & 7)) * 16);
}

}  // namespace mlagen
