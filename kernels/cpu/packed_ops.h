// Products of many vectors with a tile of rows. Scorers spend most of their
// time here.
//
// A tile is packed once: it is transposed, so that a vector register holds the
// same element of several rows. The result of a row is one chain of fused
// multiply-adds over its elements in order. On one machine the chain is the
// same, bit for bit, for all other rows and vectors of the call.
#ifndef KERNELS_CPU_PACKED_OPS_H_
#define KERNELS_CPU_PACKED_OPS_H_

#include <cstdint>
#include <span>

#include <hwy/aligned_allocator.h>

#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

using AlignedFloats = hwy::AlignedFreeUniquePtr<float[]>;

// PackedSize returns the number of floats of a packed tile. AllocatePacked
// allocates room for tiles. The contents are opaque.
constexpr int64_t PackedSize(int64_t head_dim) { return head_dim * kTileRows; }
AlignedFloats AllocatePacked(int64_t head_dim, int64_t num_tiles = 1);

// Packs the K rows of the tile. Rows after num_rows are packed as any value.
// REQUIRES: 0 < num_rows <= kTileRows; all kTileRows pointers are readable.
void PackRows(const KvTile& tile, int32_t num_rows, float* packed);

// Sets out[v * stride + r] = scale * <vectors[v], row r>. Up to kTileRows
// floats of each row of `out` are overwritten. REQUIRES: stride >= kTileRows.
void DotPacked(const float* packed, int64_t head_dim, int32_t num_rows,
               float scale, std::span<const float* const> vectors, float* out,
               int64_t stride);

// Adds |<vectors[0], row r>| + |<vectors[1], row r>| + ..., in order, to
// sums[r]. sums: [kTileRows].
void AddAbsDots(const float* packed, int64_t head_dim, int32_t num_rows,
                std::span<const float* const> vectors, float* sums);

// Sets forms[r] = <row r, M row r>, where M has the given rows. forms:
// [kTileRows]. REQUIRES: head_dim rows.
void QuadraticForms(const float* packed, int32_t num_rows,
                    std::span<const float* const> rows, float* forms);

}  // namespace blockmgr

#endif  // KERNELS_CPU_PACKED_OPS_H_
