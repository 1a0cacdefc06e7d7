// From attention weights to scores: snapkv's pooling and group reduction, and
// the sums of h2o.
#ifndef KERNELS_CUDA_SCORES_POOLED_SCORES_H_
#define KERNELS_CUDA_SCORES_POOLED_SCORES_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

inline constexpr int32_t kPoolThreads = kRowSplitEntries;
// Largest pooling kernel, as in eviction/policy.h: a tile and the entries
// around it must fit shared memory.
inline constexpr int32_t kMaxPoolKernel = 1023;

// ReduceSnapKv of eviction/select.h for every list: the same operations in the
// same order, and so the same bits from the same weights. Entries inside the
// window get +infinity.
struct PoolParams {
  EntryLists entries;
  const int32_t* lengths = nullptr;  // [sequences], tokens
  int32_t window = 0;
  int32_t group_size = 1;
  // What WindowColumns wrote; entries inside the window are not read.
  const float* attention = nullptr;
  bool max_pool = true;     // else the average, padding counted as zeros
  int32_t kernel = 7;       // odd, at most kMaxPoolKernel
  bool pool_first = false;  // order=kvpress: pool each query head's row
  bool group_max = false;   // else the mean
  float* scores = nullptr;  // [offsets[num_lists]]
  // critical(gqa_product): per list a matrix [group_size, entries] of norms at
  // group_size * its offset. Null: no products.
  const float* q_head_norms = nullptr;
  float product_eps = 0.0f;
  // The mean over the group of (pooled weight + eps) * norm; +infinity inside
  // the window.
  float* products = nullptr;  // [offsets[num_lists]]
};

// h2o: adds what one decode step's query paid to every live entry, summed over
// the group: exp(logit - lse) of the logits that DecodeAttention left. Of more
// tiles than max_tiles, as lengths on the device may have come to, nothing is
// added, and *error gets kTilesOutOfRoom; of entries beyond a list's room none
// is, and it gets kOffsetsOutOfLists. See RowError. REQUIRES: no window.
struct DecodeSumParams {
  AttentionLists lists;
  int32_t page_shift = 4;
  Divider num_heads;
  const int32_t* tile_offsets = nullptr;  // [num_lists + 1], of the decode
  const float* logits = nullptr;          // [64 * max_tiles, group_size]
  const float* lse = nullptr;             // [num_sequences, num_q_heads]
  int32_t max_tiles = 0;                  // the grid
  int32_t group_size = 1;
  // A list's sums begin at its offset, live entries in order of rank: those of
  // the region, then those of the tail. Its room ends at the next one's.
  const int64_t* sum_offsets = nullptr;  // [num_lists + 1]
  float* sums = nullptr;                 // [sum_offsets[num_lists]]
  uint32_t* error = nullptr;
};

// h2o's scores from its sums: / group_size and, by count, / the number of
// queries that saw the entry: min(num_queries, length - position).
struct H2oScoreParams {
  EntryLists entries;
  const int32_t* lengths = nullptr;      // [sequences]
  const int32_t* num_queries = nullptr;  // [sequences]; null: not by count
  int32_t group_size = 1;
  float* scores = nullptr;  // [offsets[num_lists]]: sums in, scores out
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_POOLED_SCORES_H_
