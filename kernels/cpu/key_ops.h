// Reductions over rows of K or V: one number per row, or one sum of rows. What
// scorers that need no queries read keys and values with; each row is read from
// memory once, as fast as it comes.
//
// A row's result depends on the row alone; fixed sequences of fp32 operations,
// so same bits on one machine. NaN passes through. Nothing here allocates.
// Thread-safe: no state.
#ifndef KERNELS_CPU_KEY_OPS_H_
#define KERNELS_CPU_KEY_OPS_H_

#include <cstddef>
#include <cstdint>

#include "blockmgr/base/dtype.h"
#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

// Rows further ahead than this are never fetched.
inline constexpr int32_t kMaxRowsAhead = 32;

// Rows, and those that will be read after them: these are fetched meanwhile.
struct RowList {
  // The list; pointers past it, up to a multiple of kRowGroup from the first,
  // are readable rows too.
  const std::byte* const* rows = nullptr;
  int32_t num_rows = 0;    // to reduce now: the first of the list
  int32_t num_listed = 0;  // these, and up to kMaxRowsAhead more
  // Elements of a row; a multiple of 4, for 2-byte types of 8.
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
};

// Outputs with one number per row hold num_rows rounded up to kRowGroup.
// x, sum: [head_dim]. REQUIRES: 0 < num_rows <= num_listed.
//
// out[r] = <row r, row r>
void SquaredNorms(const RowList& rows, float* out);
// The same of a tile, whose next rows are unknown.
void SquaredNorms(const KvTile& tile, int32_t num_rows, float* out);
// out[r] = <row r, x>
void DotRows(const RowList& rows, const float* x, float* out);
// out[r] = |row r - x|^2
void SquaredDistances(const RowList& rows, const float* x, float* out);
// sum = row 0 + row 1 + ...
void SumRows(const RowList& rows, float* sum);
// norms[r] = |row r|, sum = row 0 / max(norms[0], floor) + ...
void SumNormalizedRows(const RowList& rows, float floor, float* norms,
                       float* sum);

}  // namespace blockmgr

#endif  // KERNELS_CPU_KEY_OPS_H_
