// The kernel of tova_scores.h.
#ifndef KERNELS_CUDA_SCORES_TOVA_SCORES_CUH_
#define KERNELS_CUDA_SCORES_TOVA_SCORES_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/tova_scores.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The positions of a CTA, [begin, end).
struct TovaTile {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t last_position = 0;  // of the sequence: the query's own
};

// TovaEntry is this thread's entry of one head at the tile's positions. The
// head's entries at these positions lie one after another from `first` on.
// There are at most as many of them as threads.
struct TovaEntry {
  EntrySpan entries;
  int32_t entry = 0;
  int32_t position = -1;  // negative: there is none

  SIMT_DEVICE TovaEntry(const TovaParams& params, const TovaTile& tile,
                        int32_t list, int32_t first) {
    entries = LoadEntries(params.entries, list);
    entry = first + Thread();
    if (entry >= entries.size) return;
    const int32_t at = entries.positions[entry];
    position = at < tile.end ? at : -1;
  }
  // Its index in arrays of shape [group_size, entries] per list.
  SIMT_DEVICE int64_t Index(const TovaParams& params, int32_t q_head) const {
    return entries.offset * params.group_size + int64_t{q_head} * entries.size +
           entry;
  }
};

SIMT_DEVICE float TovaProduct(const TovaParams& params, const TovaEntry& mine) {
  float product = 0.0f;
  for (int32_t g = 0; g < params.group_size; ++g) {
    const int64_t i = mine.Index(params, g);
    product += simt::Multiply(params.attention[i] + params.product_eps,
                              params.q_head_norms[i]);
  }
  return product / static_cast<float>(params.group_size);
}

// The shared memory: a sum for each position, then for each head the place
// where its entries at these positions begin.
inline int64_t TovaSharedBytes(int32_t num_heads) {
  return int64_t{4} * (kTovaThreads + num_heads);
}

// Grid: {tiles.count}. Shared memory: TovaSharedBytes.
SIMT_KERNEL(kTovaThreads, 2)
void TovaScores(TovaParams params) {
  simt::AwaitEarlierKernels();
  const ListSplit share =
      FindSplit(params.tiles.offsets, params.entries.num_sequences,
                static_cast<int32_t>(simt::BlockX()));
  const int32_t length = params.lengths[share.list];
  TovaTile tile;
  tile.begin = share.split * kTovaThreads;
  tile.end =
      length - tile.begin < kTovaThreads ? length : tile.begin + kTovaThreads;
  tile.last_position = length - 1;
  const int32_t num_heads = params.entries.num_heads;
  const int32_t first_list = share.list * num_heads;
  const auto sums = simt::Shared<float>(0, kTovaThreads);
  const auto begins = simt::Shared<int32_t>(4 * kTovaThreads, num_heads);
  for (int32_t h = WarpIndex(); h < num_heads; h += kTovaThreads / 32) {
    const int32_t begin =
        LoadEntries(params.entries, first_list + h).CountBelow(tile.begin);
    if (LaneIndex() == 0) begins.Store(h, begin);
  }
  sums.Store(Thread(), 0.0f);
  simt::SyncBlock();
  for (int32_t h = 0; h < num_heads; ++h) {
    const TovaEntry mine(params, tile, first_list + h, begins.Load(h));
    if (mine.position >= 0 && mine.position < tile.last_position) {
      const int32_t place = mine.position - tile.begin;
      float sum = sums.Load(place);
      for (int32_t g = 0; g < params.group_size; ++g) {
        sum += params.attention[mine.Index(params, g)];
      }
      sums.Store(place, sum);
    }
    // Another thread may have the position's entry of the next head.
    simt::SyncBlock();
  }
  const float num_q_heads =
      static_cast<float>(num_heads) * static_cast<float>(params.group_size);
  for (int32_t h = 0; h < num_heads; ++h) {
    const TovaEntry mine(params, tile, first_list + h, begins.Load(h));
    if (mine.position < 0) continue;
    const bool past = mine.position < tile.last_position;
    const int64_t i = mine.entries.offset + mine.entry;
    params.scores[i] =
        past ? sums.Load(mine.position - tile.begin) / num_q_heads : INFINITY;
    if (params.q_head_norms != nullptr) {
      params.products[i] = past ? TovaProduct(params, mine) : INFINITY;
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_TOVA_SCORES_CUH_
