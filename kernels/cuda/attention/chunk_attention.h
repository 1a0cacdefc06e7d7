// Attention of a chunk of a prompt over region and tail, causal in the tail.
// Block prompt processing, compressed prefix hits and replay use it.
//
// The kernel works like FlashAttention-2 (2307.08691). A CTA holds 64 rows of
// queries, a warp 16 of them. Tiles of 64 ranks stream through shared memory. A
// row is one (token, query head of the group), so that the group shares the K
// and V it reads. A query sees the whole region and the tail up to its own
// token, as far as its window reaches. Without a region, a CTA begins with the
// first tile that one of its rows sees.
//
// The kernel is deterministic. The bits of a token depend on its query and on
// the rows that it sees (with a window also on their ranks). They do not depend
// on the batch or on how the prompt was cut into chunks.
#ifndef KERNELS_CUDA_ATTENTION_CHUNK_ATTENTION_H_
#define KERNELS_CUDA_ATTENTION_CHUNK_ATTENTION_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

inline constexpr int32_t kChunkThreads = 128;
inline constexpr int32_t kChunkRows = 64;   // rows of queries per CTA
inline constexpr int32_t kChunkRanks = 64;  // ranks of a tile

struct ChunkParams {
  // tail_lengths include the tokens of the chunk.
  AttentionLists lists;
  PagedPool pool;
  // Sequence i has the tokens [query_offsets[i], query_offsets[i + 1]): the
  // last tokens of its tail, in order.
  const int32_t* query_offsets = nullptr;  // [num_sequences + 1]
  // The exclusive prefix sums of CountChunkBlocks over the sequences.
  const int32_t* block_offsets = nullptr;  // [num_sequences + 1]
  const void* queries = nullptr;           // [tokens, num_q_heads, head_dim]
  void* output = nullptr;                  // the same shape
  // As in DecodeParams: logits that join the denominators. May be null.
  const float* sinks = nullptr;  // [num_q_heads]
  // [tokens, num_q_heads], natural log, with the sinks; may be null.
  float* lse = nullptr;
  int32_t group_size = 1;
  float scale = 1.0f;
};

// Returns the number of CTAs for the queries of one sequence and head.
inline int32_t CountChunkBlocks(int32_t num_queries, int32_t group_size) {
  return (num_queries * group_size + kChunkRows - 1) / kChunkRows;
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_CHUNK_ATTENTION_H_
