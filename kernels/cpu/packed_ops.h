// Products of many vectors with a tile of rows: what scorers spend their time
// on. The tile is packed once, turned so that a vector register holds the same
// element of several rows; then each row's result is one chain of fused
// multiply-adds over the elements in order. It is the same chain, to the bit,
// whatever other rows and vectors are in the call, on one machine.
//
// Nothing here allocates. Thread-safe: no state.
#ifndef KERNELS_CPU_PACKED_OPS_H_
#define KERNELS_CPU_PACKED_OPS_H_

#include <cstdint>
#include <span>

#include <hwy/aligned_allocator.h>

#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

using AlignedFloats = hwy::AlignedFreeUniquePtr<float[]>;

// Floats of a packed tile, and room for one; contents are opaque.
constexpr int64_t PackedSize(int64_t head_dim) { return head_dim * kTileRows; }
AlignedFloats AllocatePacked(int64_t head_dim, int64_t num_tiles = 1);

// Packs the K rows that the tile points at. Rows past num_rows come out as
// anything. REQUIRES: 0 < num_rows <= kTileRows; all kTileRows pointers are
// readable.
void PackRows(const KvTile& tile, int32_t num_rows, float* packed);

// out[v * stride + r] = scale * <vectors[v], row r>. Up to kTileRows of each
// row of `out` are overwritten. REQUIRES: stride >= kTileRows.
void DotPacked(const float* packed, int64_t head_dim, int32_t num_rows,
               float scale, std::span<const float* const> vectors, float* out,
               int64_t stride);

// sums[r] += |<vectors[0], row r>| + |<vectors[1], row r>| + ..., in order.
// sums: [kTileRows].
void AddAbsDots(const float* packed, int64_t head_dim, int32_t num_rows,
                std::span<const float* const> vectors, float* sums);

// forms[r] = <row r, M row r> where M has the given rows. forms: [kTileRows].
// REQUIRES: head_dim rows.
void QuadraticForms(const float* packed, int32_t num_rows,
                    std::span<const float* const> rows, float* forms);

}  // namespace blockmgr

#endif  // KERNELS_CPU_PACKED_OPS_H_
