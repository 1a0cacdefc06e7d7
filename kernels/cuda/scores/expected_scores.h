// Scores from the attention that queries to come are expected to pay:
// expected_attention (2510.00636), as kernels/cpu/expected_attention.h states
// it.
//
// Three kernels. The first computes <k, S k> of all keys with every query
// head's covariance S on the tensor cores, without S k ever being in memory
// (row_products.cuh): 2 * head_dim^2 multiply-adds per entry and query head,
// for S comes in two parts of 16 bits. The second finds the softmax statistics,
// a CTA per list and query head; the third computes the weights and reads V for
// the values' sizes.
//
// Keys are exact, products add up in fp32, and S has 16 bits of each element's
// mantissa in bf16 and 22 in fp16: its error is below 2^-16 of every element,
// and that of a logit below 2^-17 scale^2 sum of |k_i S_ij k_j|. Without the
// second parts it would be 2^8 times that.
//
// Deterministic, and a list's scores depend on its own entries and queries
// alone.
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
  // Entries at positions below this get +infinity, and nobody pays them.
  int32_t n_sink = 0;
  // Of the queries to come, per list and query head of its group.
  const float* means = nullptr;  // [lists, group_size, head_dim]
  // Null: cov=false. Of the pool's element type, 16-byte aligned: each row of a
  // covariance as two rows side by side whose sum, times the unit, it is. See
  // SplitCovariance.
  const void* covariances = nullptr;  // [lists, group_size, head_dim, 2,
                                      //  head_dim]
  const float* units = nullptr;       // [lists, group_size]
  bool vnorm = true;                  // (weight + eps) |v|; else the weight
  float eps = 0.0f;
  // Workspace, both in log2: a list's logits are a matrix [group_size, entries]
  // at group_size * its offset.
  float* logits = nullptr;
  float* lse = nullptr;     // [lists, group_size]
  float* scores = nullptr;  // [offsets[num_lists]]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_EXPECTED_SCORES_H_
