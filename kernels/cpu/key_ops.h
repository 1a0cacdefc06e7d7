// Reductions over rows of K or V: one number per row, or one sum of rows.
// Scorers that need no queries use them. Each row is read from memory once, at
// the speed of the memory.
//
// The result of a row depends on the row alone. It is a fixed sequence of fp32
// operations, so one machine always gives the same bits. NaN passes through.
// Nothing allocates. Thread-safe: no state.
#ifndef KERNELS_CPU_KEY_OPS_H_
#define KERNELS_CPU_KEY_OPS_H_

#include <cstddef>
#include <cstdint>

#include "blockmgr/base/dtype.h"
#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

// The largest number of rows that are prefetched ahead.
inline constexpr int32_t kMaxRowsAhead = 32;

// The rows to reduce now, followed by rows of later calls, which are prefetched
// meanwhile.
struct RowList {
  // The list. The pointers after the list, up to a multiple of kRowGroup from
  // the first, are readable rows too.
  const std::byte* const* rows = nullptr;
  int32_t num_rows = 0;    // rows to reduce now: the first of the list
  int32_t num_listed = 0;  // num_rows and up to kMaxRowsAhead more
  // Elements of a row: a multiple of 4, or of 8 for 2-byte types.
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
};

// An output with one number per row has room for num_rows, rounded up to
// kRowGroup. x, sum: [head_dim]. REQUIRES: 0 < num_rows <= num_listed.
//
// Sets out[r] = <row r, row r>.
void SquaredNorms(const RowList& rows, float* out);
// Sets out[r] = <row r, row r> for the rows of a tile. Nothing is prefetched.
void SquaredNorms(const KvTile& tile, int32_t num_rows, float* out);
// Sets out[r] = <row r, x>.
void DotRows(const RowList& rows, const float* x, float* out);
// Sets out[r] = |row r - x|^2.
void SquaredDistances(const RowList& rows, const float* x, float* out);
// Sets sum = row 0 + row 1 + ...
void SumRows(const RowList& rows, float* sum);
// Sets norms[r] = |row r| and sum = row 0 / max(norms[0], floor) + ...
void SumNormalizedRows(const RowList& rows, float floor, float* norms,
                       float* sum);

}  // namespace blockmgr

#endif  // KERNELS_CPU_KEY_OPS_H_
