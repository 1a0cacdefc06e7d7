// The size of what an entry adds to the output of its layer: the norm of its
// value after the output projection (CriticalKV, 2502.03805). The projected
// value is never stored in memory.
//
// The kernel is a matrix product on the tensor cores whose epilogue adds up |.|
// along the rows. Values stay in shared memory, the columns of the projection
// stream through shared memory, and sums stay in registers. Cost: entries *
// head_dim * model_dim multiply-adds per query head. V is read once. The
// projection is read once per 256 entries, and stays in the second-level cache.
// The norms of an entry depend on its value alone.
#ifndef KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_H_
#define KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

struct ValueNormParams {
  EntryLists entries;
  PagedPool pool;
  // The projection by query head, in the pool's element type, 16-byte aligned.
  // The output of a query head is v times the rows of the head.
  const void* projection = nullptr;  // [num_q_heads, head_dim, model_dim]
  int64_t model_dim = 0;             // a multiple of 8
  int32_t group_size = 1;
  // True means the root of the sum of squares. False means the sum of
  // absolute values.
  bool l2 = false;
  // False means the mean over the group, [offsets[num_lists]]. True means a
  // matrix [group_size, entries] for each list, at group_size * its offset.
  bool per_query_head = false;
  float* norms = nullptr;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_H_
