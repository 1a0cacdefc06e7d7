// Turns attention weights into scores: snapkv's pooling and group reduction,
// and the sums of h2o.
#ifndef KERNELS_CUDA_SCORES_POOLED_SCORES_H_
#define KERNELS_CUDA_SCORES_POOLED_SCORES_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"
#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

inline constexpr int32_t kPoolThreads = kRowSplitEntries;
// The largest pooling kernel, as in eviction/policy.h. A tile and the entries
// around it must fit into shared memory.
inline constexpr int32_t kMaxPoolKernel = 1023;

// ReduceSnapKv of eviction/select.h for every list. The operations and their
// order are those of the CPU, so the same weights give the same bits. Entries
// inside the window get +infinity.
struct PoolParams {
  EntryLists entries;
  const int32_t* lengths = nullptr;  // [sequences], tokens
  int32_t window = 0;
  int32_t group_size = 1;
  // The result of WindowColumns. Entries inside the window are not read.
  const float* attention = nullptr;
  // False means the average, in which padding counts as zeros.
  bool max_pool = true;
  int32_t kernel = 7;  // odd, at most kMaxPoolKernel
  // True (order=kvpress) means that the row of each q_head is pooled before the
  // group is reduced. False means that the group is reduced first.
  bool pool_first = false;
  bool group_max = false;   // false means the mean
  float* scores = nullptr;  // [offsets[num_lists]]
  // critical(gqa_product): for each list a matrix [group_size, entries] of
  // norms at group_size * its offset. Null if no products are wanted.
  const float* q_head_norms = nullptr;
  float product_eps = 0.0f;
  // The mean over the group of (pooled weight + eps) * norm. Entries inside the
  // window get +infinity.
  float* products = nullptr;  // [offsets[num_lists]]
};

// h2o: adds the attention that the query of one decode step paid to every live
// entry, summed over the group: exp(logit - lse) of the logits of
// DecodeAttention.
//
// If the lists have more tiles than max_tiles, because lengths on the device
// have grown, nothing is added and *error gets kTilesOutOfRoom. Entries beyond
// the room of a list, or beyond `sums`, are not added, and *error gets
// kOffsetsOutOfLists. The offset of a list without entries does not matter. See
// RowError. REQUIRES: no window; error is not null.
struct DecodeSumParams {
  AttentionLists lists;
  int32_t page_shift = 4;
  Divider num_heads;
  const int32_t* tile_offsets = nullptr;  // [num_lists + 1], of DecodeParams
  const float* logits = nullptr;          // [64 * max_tiles, group_size]
  // DecodeParams::lse. If it includes sinks, the weights of a row add up to
  // less than 1.
  const float* lse = nullptr;  // [num_sequences, num_q_heads]
  int32_t max_tiles = 0;       // the grid
  int32_t group_size = 1;
  // The sums of a list begin at its offset. Live entries have the order of
  // their ranks: the region, then the tail. The room of a list ends at the next
  // offset.
  const int64_t* sum_offsets = nullptr;  // [num_lists + 1]
  float* sums = nullptr;                 // [num_sums]
  int64_t num_sums = 0;
  uint32_t* error = nullptr;
};

// Turns h2o's sums into scores: divides by group_size and, if num_queries is
// not null, also by the number of queries that saw the entry, min(num_queries,
// length - position).
struct H2oScoreParams {
  EntryLists entries;
  const int32_t* lengths = nullptr;  // [sequences]
  // [sequences]. Null for norm=none.
  const int32_t* num_queries = nullptr;
  int32_t group_size = 1;
  // [offsets[num_lists]]. The kernel replaces sums by scores.
  float* scores = nullptr;
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_POOLED_SCORES_H_
