// How much an entry adds to the output of its layer: the size of its value
// after the output projection (CriticalKV, 2502.03805), without that product
// ever being in memory.
//
// A matrix product with the tensor cores whose epilogue adds up |.| along the
// rows: values stay in shared memory, columns of the projection stream through
// it, sums stay in registers. entries * head_dim * model_dim multiply-adds per
// query head; bytes: V once, the projection once per 256 entries (it stays in
// the second-level cache). An entry's norms depend on its value alone.
#ifndef KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_H_
#define KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

struct ValueNormParams {
  EntryLists entries;
  PagedPool pool;
  // Of the pool's element type, by query head: its output is v times its rows.
  // 16-byte aligned.
  const void* projection = nullptr;  // [num_q_heads, head_dim, model_dim]
  int64_t model_dim = 0;             // a multiple of 8
  int32_t group_size = 1;
  bool l2 = false;  // the root of the sum of squares instead of the sum of |.|
  // False: the mean over the group, [offsets[num_lists]]. True: per list a
  // matrix [group_size, entries] at group_size * its offset.
  bool per_query_head = false;
  float* norms = nullptr;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_H_
