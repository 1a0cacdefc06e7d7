// Attention that the last queries of a sequence pay to its entries: the weights
// behind snapkv (2404.14469), tova and h2o, without the output.
//
// Three kernels. The first two find each query's softmax statistics; a caller
// whose attention kernel returns the log-sum-exp of the window's queries skips
// them. The third computes the weights and adds them up over queries. K is read
// once per kernel; weights are fp32 throughout and never stored one by one.
//
// Deterministic, and a list's results depend on its own entries and queries
// alone: keys are cut into splits of kSplitEntries, and sums run in an order
// that depends on the number of queries alone.
#ifndef KERNELS_CUDA_SCORES_WINDOW_SCORES_H_
#define KERNELS_CUDA_SCORES_WINDOW_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

inline constexpr int32_t kWindowThreads = 128;

struct WindowParams {
  EntryLists entries;
  PagedPool pool;
  // The last `window` queries of every sequence, oldest first, after rotation.
  const void* queries = nullptr;  // [sequences, window, num_q_heads, head_dim]
  int32_t window = 0;
  const int32_t* lengths = nullptr;  // [sequences], tokens; >= window
  int32_t group_size = 1;
  float scale = 1.0f;  // of products; above 0
  // Natural log of each query's softmax denominator over all entries at
  // positions up to its own. Written by MergeWindowStats or by the caller.
  float* lse = nullptr;  // [sequences, window, num_q_heads]
  // Workspace of WindowStats: {max, sum} in log2.
  float* partial_stats = nullptr;  // [window_splits.count, WindowRows, 2]
  // Either: per query head, the mean of the weights over the window, for
  // entries before the window only. A list's matrix begins at group_size *
  // offsets[list]: [group_size, entries of the list].
  float* attention = nullptr;
  // Or: += the weights, summed over the group, for all entries seen.
  float* sums = nullptr;  // [offsets[num_lists]]
};

// Rows of queries of one list: those of a query head rounded up to 16.
SIMT_HOST_DEVICE int32_t WindowRows(int32_t group_size, int32_t window) {
  return group_size * ((window + 15) / 16 * 16);
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_SCORES_H_
