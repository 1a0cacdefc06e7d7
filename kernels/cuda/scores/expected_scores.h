// Scores from the attention that future queries are expected to pay:
// expected_attention (2510.00636), as kernels/cpu/expected_attention.h defines
// it.
//
// There are three kernels. The first kernel computes <k, S k> of all keys with
// the covariance S of every query head on the tensor cores. S k is never stored
// in memory (row_products.cuh). The cost is 2 * head_dim^2 multiply-adds per
// entry and query head, because S has two parts of 16 bits. The second kernel
// finds the softmax statistics, one CTA per list and query head. The third
// kernel computes the weights and reads V for the sizes of the values.
//
// Keys are exact, and products are added up in fp32. S has 16 bits of each
// element's mantissa in bf16 and 22 bits in fp16. Its error is below 2^-16 of
// every element, and the error of a logit is below 2^-17 scale^2 sum of |k_i
// S_ij k_j|. Without the second parts the error would be 2^8 times as large.
//
// The kernels are deterministic. The scores of a list depend on its own entries
// and queries alone.
#ifndef KERNELS_CUDA_SCORES_EXPECTED_SCORES_H_
#define KERNELS_CUDA_SCORES_EXPECTED_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

struct ExpectedParams {
  EntryLists entries;
  PagedPool pool;
  int32_t group_size = 1;
  float scale = 1.0f;
  // Entries at positions below n_sink get +infinity, and get no attention.
  int32_t n_sink = 0;
  // The means of the future queries, per list and query head of its group.
  const float* means = nullptr;  // [lists, group_size, head_dim]
  // Null if cov=false. In the pool's element type, 16-byte aligned. Each row of
  // a covariance is two rows side by side. Their sum, times the unit, is the
  // row. See SplitCovariance.
  const void* covariances = nullptr;  // [lists, group_size, head_dim, 2,
                                      //  head_dim]
  const float* units = nullptr;       // [lists, group_size]
  // Scores are (weight + eps) |v| if true, and the weights if false.
  bool vnorm = true;
  float eps = 0.0f;
  // The workspace, in log2. The logits of a list are a matrix [group_size,
  // entries] at group_size * its offset.
  float* logits = nullptr;
  float* lse = nullptr;     // [lists, group_size]
  float* scores = nullptr;  // [offsets[num_lists]]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_EXPECTED_SCORES_H_
