// Turns attention weights into tova's scores (2401.06104): one score per
// position, the same for all heads.
#ifndef KERNELS_CUDA_SCORES_TOVA_SCORES_H_
#define KERNELS_CUDA_SCORES_TOVA_SCORES_H_

#include <cstdint>

#include "kernels/cuda/scores/entry_lists.h"

namespace blockmgr {

// The positions that one CTA scores at a time.
inline constexpr int32_t kTovaThreads = kRowSplitEntries;

// TovaScorer of kernels/cpu for every sequence. The operations and their order
// are those of the CPU, so the same weights give the same bits. The last token,
// which is the query's own, gets +infinity.
//
// There is one kernel. A CTA takes some positions of a sequence and adds up the
// weights of the heads that hold them, head by head. A head has at most one
// entry at a position, so no addition needs an atomic. Weights are read once,
// positions twice. Each CTA searches the positions of each head once.
struct TovaParams {
  EntryLists entries;
  const int32_t* lengths = nullptr;  // [sequences], tokens
  // Tiles of sequences, not of lists. A tile has kTovaThreads tokens.
  ListSplits tiles;
  int32_t group_size = 1;
  // The result of WindowColumns for the last query. The entries of the last
  // token are not read.
  const float* attention = nullptr;
  float* scores = nullptr;  // [offsets[num_lists]]
  // critical(gqa_product): for each list a matrix [group_size, entries] of
  // norms at group_size * its offset. Null if no products are wanted.
  const float* q_head_norms = nullptr;
  float product_eps = 0.0f;
  // The mean over the group of (weight + eps) * norm. The last token gets
  // +infinity.
  float* products = nullptr;  // [offsets[num_lists]]
};

}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_TOVA_SCORES_H_
