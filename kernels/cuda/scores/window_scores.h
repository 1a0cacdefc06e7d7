// The attention that the last queries of a sequence pay to its entries: the
// weights of snapkv (2404.14469), tova and h2o, without the output of
// attention.
//
// There are three kernels. The first two kernels find the softmax statistics of
// each query. A caller whose attention kernel returns the log-sum-exp of the
// window's queries skips them. The third kernel computes the weights and adds
// them up over queries. Each kernel that reads K reads it once for every 128
// rows of queries (64 with head_dim 256). Weights are in fp32 and are never
// stored one by one.
//
// The kernels are deterministic. The results of a list depend on its own
// entries and queries alone: keys are cut into splits of kSplitEntries, and the
// order of the sums depends on the number of queries alone.
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
  float scale = 1.0f;  // above 0
  // The natural logarithm of each query's softmax denominator, over all entries
  // at positions up to the query's own. MergeWindowStats or the caller writes
  // it.
  float* lse = nullptr;  // [sequences, window, num_q_heads]
  // The workspace of WindowStats: {reference, sum} in log2. The sum is relative
  // to 2^reference.
  float* partial_stats = nullptr;  // [window_splits.count, WindowRows, 2]
  // One of `attention` and `sums` is set. `attention` gets per query head the
  // mean of the weights over the window, for entries before the window only.
  // The matrix of a list begins at group_size * offsets[list]: [group_size,
  // entries of the list].
  float* attention = nullptr;
  // `sums` gets the weights added, summed over the group, for all entries that
  // were seen.
  float* sums = nullptr;  // [offsets[num_lists]]
};

// Returns the number of query rows of one list. Each query head has `window`
// rows, rounded up to 16.
SIMT_HOST_DEVICE int32_t WindowRows(int32_t group_size, int32_t window) {
  return group_size * ((window + 15) / 16 * 16);
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_SCORES_H_
