// Copies of the rows at consecutive ranks of an attention list.
#ifndef KERNELS_CUDA_ATTENTION_RANK_ROWS_CUH_
#define KERNELS_CUDA_ATTENTION_RANK_ROWS_CUH_

#include <cstdint>

#include "kernels/cuda/attention_list.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The ranks that a warp copies at once: a page, or half of a page.
inline constexpr int32_t kRankRows = 16;

// Returns how many of the kRankRows ranks from `rank` on are outside every
// window. These are the first of them. `rank` is a multiple of kRankRows. The
// result may be negative.
SIMT_DEVICE int32_t RowsBeforeWindow(const AttentionList& list, int32_t rank) {
  if (rank < list.region_slots) return 0;
  return list.first_rank - rank;
}

// Returns the end of the live rows after those. The rows are all in the region
// or all in the tail, because both begin at page boundaries. The result is at
// most kRankRows. It is 0 or negative if there are no live rows.
SIMT_DEVICE int32_t LiveRows(const AttentionList& list, int32_t rank) {
  const int32_t end =
      rank < list.region_slots ? list.region_length : list.num_ranks;
  if (RowsBeforeWindow(list, rank) >= kRankRows) return 0;
  const int32_t num_live = end - rank;
  return num_live < kRankRows ? num_live : kRankRows;
}

// Starts copies of K and V of the kRankRows ranks from `rank` on by one warp,
// to the rows [first_row, ..) of two tiles. The rows lie in one page. Dead rows
// become zeros: they may hold NaN, and 0 * NaN would be in the result. Does not
// commit the copies.
template <int kDim, typename T>
SIMT_DEVICE void CopyRankRows(const PagedPool& pool, const AttentionList& list,
                              int32_t layer, int32_t rank, int32_t first_row,
                              T* keys, T* values) {
  constexpr int kChunks = kDim / kChunk;
  const int32_t num_before = RowsBeforeWindow(list, rank);
  const int32_t num_live = LiveRows(list, rank);
  const char* source = Nowhere(pool);
  if (num_live > 0) source = RankAddress(pool, list, layer, rank);
  SIMT_UNROLL
  for (int i = 0; i < kRankRows * kChunks / 32; ++i) {
    const int32_t element = i * 32 + LaneIndex();
    const int32_t row = element / kChunks;
    const int32_t chunk = element % kChunks;
    const bool live = row >= num_before && row < num_live;
    const char* from =
        live ? source + row * pool.token_stride + chunk * 16 : source;
    const int32_t to = SwizzledChunk<kDim>(first_row + row, chunk);
    simt::CopyAsync16(keys + to, from, live);
    simt::CopyAsync16(values + to, live ? from + pool.kv_stride : from, live);
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ATTENTION_RANK_ROWS_CUH_
