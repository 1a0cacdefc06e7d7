// Reductions over the rows of a tile: one number per row, or one sum of rows.
// What scorers that need no queries read keys and values with; each row is read
// from memory once, as fast as it comes.
//
// A row's result depends on the row alone; fixed sequences of fp32 operations,
// so same bits on one machine. NaN passes through. Nothing here allocates.
// Thread-safe: no state.
#ifndef KERNELS_CPU_KEY_OPS_H_
#define KERNELS_CPU_KEY_OPS_H_

#include <cstdint>

#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

// Of the first num_rows K rows r of the tile; x: [head_dim]. The output holds
// num_rows rounded up to kRowGroup.
// REQUIRES: 0 < num_rows <= kTileRows.
//
// out[r] = <row r, row r>
void SquaredNorms(const KvTile& tile, int32_t num_rows, float* out);
// out[r] = <row r, x>
void DotRows(const KvTile& tile, int32_t num_rows, const float* x, float* out);
// out[r] = |row r - x|^2
void SquaredDistances(const KvTile& tile, int32_t num_rows, const float* x,
                      float* out);
// sum[i] = weights[0] * row 0 [i] + weights[1] * row 1 [i] + ..., [head_dim].
void WeightedRowSum(const KvTile& tile, int32_t num_rows, const float* weights,
                    float* sum);

}  // namespace blockmgr

#endif  // KERNELS_CPU_KEY_OPS_H_
