// The kernel that plans decode attention: prefix sums of the tiles of all
// lists.
#ifndef KERNELS_CUDA_ATTENTION_DECODE_PLAN_CUH_
#define KERNELS_CUDA_ATTENTION_DECODE_PLAN_CUH_

#include <cstdint>

#include "kernels/cuda/attention/decode_attention.h"
#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

inline constexpr int32_t kDecodePlanThreads = 1024;
inline constexpr int32_t kDecodePlanSharedBytes = 32 * 4;

// Returns the number of tiles of a list. Reads its lengths only.
SIMT_DEVICE int32_t TilesOfList(const DecodePlanParams& params, int32_t list) {
  const int32_t sequence = Divide(list, params.num_heads);
  const AttentionLists& lists = params.lists;
  const int32_t slot = lists.sequence_slots == nullptr
                           ? sequence
                           : lists.sequence_slots[sequence];
  int32_t ranks = 0;
  if (lists.region_lengths != nullptr) {
    const int32_t mask = (1 << params.page_shift) - 1;
    const int64_t index = int64_t{slot} * lists.num_heads + list -
                          int64_t{sequence} * lists.num_heads;
    ranks = (lists.region_lengths[index] + mask) & ~mask;
  }
  const bool has_region = ranks > 0;
  ranks += lists.tail_lengths[slot];
  const int32_t first_read = has_region ? 0 : FirstRank(lists, ranks);
  const int32_t tiles = (ranks + kDecodeTileRanks - 1) / kDecodeTileRanks -
                        first_read / kDecodeTileRanks;
  return tiles > 0 ? tiles : 1;
}

// Grid: one block.
SIMT_KERNEL(kDecodePlanThreads, 1)
void PlanDecode(DecodePlanParams params) {
  simt::AwaitEarlierKernels();
  const auto warp_sums = simt::Shared<int32_t>(0, 32);
  const int32_t num_lists = params.lists.num_sequences * params.lists.num_heads;
  int32_t before = 0;
  for (int32_t first = 0; first < num_lists; first += kDecodePlanThreads) {
    const int32_t list = first + Thread();
    const int32_t tiles = list < num_lists ? TilesOfList(params, list) : 0;
    const int32_t in_warp = WarpPrefix(tiles);
    if (LaneIndex() == 31) {
      warp_sums.Store(static_cast<uint32_t>(WarpIndex()), in_warp);
    }
    simt::SyncBlock();
    // Every warp scans the sums of all warps.
    const int32_t warps = WarpPrefix(warp_sums.Load(simt::Lane()));
    const int32_t total = simt::Shuffle(warps, 31);
    const int32_t below = simt::Shuffle(
        warps, static_cast<uint32_t>(WarpIndex() > 0 ? WarpIndex() - 1 : 0));
    const int32_t begin =
        before + in_warp - tiles + (WarpIndex() > 0 ? below : 0);
    if (list < num_lists) params.tile_offsets[list] = begin;
    before += total;
    simt::SyncBlock();
  }
  if (Thread() == 0) params.tile_offsets[num_lists] = before;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_DECODE_PLAN_CUH_
