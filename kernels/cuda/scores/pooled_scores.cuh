// The kernels of pooled_scores.h.
#ifndef KERNELS_CUDA_SCORES_POOLED_SCORES_CUH_
#define KERNELS_CUDA_SCORES_POOLED_SCORES_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/pooled_scores.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns the larger value, or NaN if one of the two is NaN. A poisoned score
// thus stays visible.
SIMT_DEVICE float MaxOrNan(float a, float b) { return b > a || b != b ? b : a; }

// The past of one list, and the part of it that a CTA scores.
struct PoolBlock {
  const PoolParams& params;
  EntrySpan entries;
  int32_t num_past = 0;
  int32_t begin = 0;  // first entry of the CTA
  int32_t reach = 0;  // entries to each side that pooling looks at

  SIMT_DEVICE const float* Row(int32_t q_head) const {
    return params.attention + entries.offset * params.group_size +
           int64_t{q_head} * entries.size;
  }
  // The weights of the group, reduced.
  SIMT_DEVICE float Reduced(int32_t entry) const {
    float value = params.group_max ? -INFINITY : 0.0f;
    for (int32_t g = 0; g < params.group_size; ++g) {
      const float weight = Row(g)[entry];
      value = params.group_max ? MaxOrNan(value, weight) : value + weight;
    }
    return params.group_max ? value
                            : value / static_cast<float>(params.group_size);
  }
};

// Fills shared memory with get(entry) of the CTA's entries and of the entries
// around them.
template <typename Get>
SIMT_DEVICE void StageWeights(const PoolBlock& block, const Get& get) {
  const auto staged = simt::Shared<float>(0, kPoolThreads + kMaxPoolKernel - 1);
  simt::SyncBlock();  // what was staged before is read
  for (int32_t i = Thread(); i < kPoolThreads + 2 * block.reach;
       i += kPoolThreads) {
    const int32_t entry = block.begin - block.reach + i;
    staged.Store(i, entry >= 0 && entry < block.num_past ? get(entry) : 0.0f);
  }
  simt::SyncBlock();
}

// Pools the staged values around this thread's entry, in ascending order.
SIMT_DEVICE float PoolStaged(const PoolBlock& block, int32_t entry) {
  const auto staged = simt::Shared<float>(0, kPoolThreads + kMaxPoolKernel - 1);
  const bool max = block.params.max_pool;
  float value = max ? -INFINITY : 0.0f;
  for (int32_t tap = -block.reach; tap <= block.reach; ++tap) {
    if (entry + tap < 0 || entry + tap >= block.num_past) continue;
    const float weight = staged.Load(entry - block.begin + block.reach + tap);
    value = max ? MaxOrNan(value, weight) : value + weight;
  }
  return max ? value : value / static_cast<float>(block.params.kernel);
}

// Returns the group's score of this thread's entry when each row is pooled by
// itself.
SIMT_DEVICE float PoolRowsFirst(const PoolBlock& block, int32_t entry) {
  const PoolParams& params = block.params;
  float value = params.group_max ? -INFINITY : 0.0f;
  for (int32_t g = 0; g < params.group_size; ++g) {
    const float* row = block.Row(g);
    StageWeights(block, [row](int32_t e) { return row[e]; });
    const float pooled = PoolStaged(block, entry);
    value = params.group_max ? MaxOrNan(value, pooled) : value + pooled;
  }
  return params.group_max ? value
                          : value / static_cast<float>(params.group_size);
}

SIMT_DEVICE float PoolProducts(const PoolBlock& block, int32_t entry) {
  const PoolParams& params = block.params;
  const float* norms =
      params.q_head_norms + block.entries.offset * params.group_size;
  float product = 0.0f;
  for (int32_t g = 0; g < params.group_size; ++g) {
    const float* row = block.Row(g);
    StageWeights(block, [row](int32_t e) { return row[e]; });
    const float pooled = PoolStaged(block, entry);
    if (entry < block.num_past) {
      product += simt::Multiply(pooled + params.product_eps,
                                norms[int64_t{g} * block.entries.size + entry]);
    }
  }
  return product / static_cast<float>(params.group_size);
}

// Grid: {row_splits.count}. Shared memory: kPoolSharedBytes.
inline constexpr int32_t kPoolSharedBytes =
    4 * (kPoolThreads + kMaxPoolKernel - 1);

SIMT_KERNEL(kPoolThreads, 6)
void PoolWindowScores(PoolParams params) {
  simt::AwaitEarlierKernels();
  const ListSplit mine = FindRowSplit(params.entries);
  PoolBlock block{params, LoadEntries(params.entries, mine.list)};
  block.begin = mine.split * kPoolThreads;
  const int32_t sequence = mine.list / params.entries.num_heads;
  block.num_past =
      block.entries.CountPast(params.lengths[sequence], params.window);
  block.reach = params.kernel / 2;
  const int32_t entry = block.begin + Thread();
  float score;
  if (params.pool_first) {
    score = PoolRowsFirst(block, entry);
  } else {
    StageWeights(block, [&block](int32_t e) { return block.Reduced(e); });
    score = PoolStaged(block, entry);
  }
  const float product =
      params.q_head_norms == nullptr ? 0.0f : PoolProducts(block, entry);
  if (entry >= block.entries.size) return;
  const bool past = entry < block.num_past;
  params.scores[block.entries.offset + entry] = past ? score : INFINITY;
  if (params.q_head_norms != nullptr) {
    params.products[block.entries.offset + entry] = past ? product : INFINITY;
  }
}

// Grid: {max_tiles} of kDecodeTileRanks threads.
SIMT_KERNEL(kDecodeTileRanks, 8)
void AddDecodeAttention(DecodeSumParams params) {
  simt::AwaitEarlierKernels();
  const int32_t num_lists = params.lists.num_sequences * params.lists.num_heads;
  const int32_t num_tiles = params.tile_offsets[num_lists];
  const int32_t tile = static_cast<int32_t>(simt::BlockX());
  if (num_tiles > params.max_tiles) {
    if (tile == 0 && Thread() == 0) {
      simt::AtomicOr(params.error, static_cast<uint32_t>(kTilesOutOfRoom));
    }
    return;
  }
  if (tile >= num_tiles) return;
  const ListSplit mine = FindSplit(params.tile_offsets, num_lists, tile);
  const int32_t list_index = mine.list;
  const int32_t sequence = Divide(list_index, params.num_heads);
  const AttentionList list =
      LoadList(params.lists, params.page_shift, sequence,
               list_index - sequence * params.lists.num_heads);
  const int64_t begin = params.sum_offsets[list_index];
  const int64_t next = params.sum_offsets[list_index + 1];
  const int64_t end = next < params.num_sums ? next : params.num_sums;
  const int64_t room = begin < 0 || end < begin ? 0 : end - begin;
  // An empty list has a first tile, too.
  const int32_t gap = list.region_slots - list.region_length;
  if (mine.split == 0 && Thread() == 0 && list.num_ranks - gap > room) {
    simt::AtomicOr(params.error, static_cast<uint32_t>(kOffsetsOutOfLists));
  }
  const int32_t rank = mine.split * kDecodeTileRanks + Thread();
  const int32_t entry = rank < list.region_length ? rank : rank - gap;
  if (!IsLive(list, rank) || entry >= room) return;
  const int64_t row = int64_t{tile} * kDecodeTileRanks + Thread();
  const float* logits = params.logits + row * params.group_size;
  const float* lse = params.lse + int64_t{list_index} * params.group_size;
  float* sum = params.sums + begin + entry;
  float total = *sum;
  for (int32_t g = 0; g < params.group_size; ++g) {
    total += simt::Exp2((logits[g] - lse[g]) * kLog2E);
  }
  *sum = total;
}

// Grid: {row_splits.count}.
SIMT_KERNEL(kPoolThreads, 2)
void FinishH2oScores(H2oScoreParams params) {
  simt::AwaitEarlierKernels();
  const ListSplit mine = FindRowSplit(params.entries);
  const EntrySpan entries = LoadEntries(params.entries, mine.list);
  const int32_t entry = mine.split * kPoolThreads + Thread();
  if (entry >= entries.size) return;
  float score = params.scores[entries.offset + entry] /
                static_cast<float>(params.group_size);
  if (params.num_queries != nullptr) {
    const int32_t sequence = mine.list / params.entries.num_heads;
    const int32_t since = params.lengths[sequence] - entries.positions[entry];
    const int32_t queries = params.num_queries[sequence];
    score /= static_cast<float>(since < queries ? since : queries);
  }
  params.scores[entries.offset + entry] = score;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_POOLED_SCORES_CUH_
