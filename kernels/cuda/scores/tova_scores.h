// From attention weights to tova's scores (2401.06104): one score per position,
// the same for all heads.
#ifndef KERNELS_CUDA_SCORES_TOVA_SCORES_H_
#define KERNELS_CUDA_SCORES_TOVA_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// Positions that one CTA scores at a time.
inline constexpr int32_t kTovaThreads = kRowSplitEntries;

// AttentionScorer::Tova of kernels/cpu for every sequence: the same operations
// in the same order, and so the same bits from the same weights. The last
// token, which is the query's own, gets +infinity.
//
// One kernel: a CTA takes some positions of a sequence and adds up the weights
// of those heads that hold them, head by head; no two entries of a head are at
// one position, so none needs an atomic. Weights are read once, positions
// twice; per CTA and head there is a search of the head's positions.
struct TovaParams {
  EntryLists entries;
  const int32_t* lengths = nullptr;  // [sequences], tokens
  ListSplits tiles;  // of sequences and not lists, kTovaThreads tokens each
  int32_t group_size = 1;
  // What WindowColumns wrote for the last query; of the last token's entries
  // nothing is read.
  const float* attention = nullptr;
  float* scores = nullptr;  // [offsets[num_lists]]
  // critical(gqa_product): per list a matrix [group_size, entries] of norms at
  // group_size * its offset. Null: no products.
  const float* q_head_norms = nullptr;
  float product_eps = 0.0f;
  // The mean over the group of (weight + eps) * norm; +infinity for the last
  // token.
  float* products = nullptr;  // [offsets[num_lists]]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_TOVA_SCORES_H_
