// Rows of K or V that lanes hold in registers, several lanes to a row.
#ifndef KERNELS_CUDA_ROW_LANES_CUH_
#define KERNELS_CUDA_ROW_LANES_CUH_

#include <cstdint>

#include "kernels/cuda/entry_lists.h"
#include "kernels/cuda/entry_rows.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Several lanes hold a row, 16 bytes each, and a warp several rows.
template <typename T, int kDim>
struct RowLanes {
  static constexpr int kRowLanes = kDim / kChunk;  // 8, 16 or 32
  static constexpr int kRows = 32 / kRowLanes;     // at a time
  static constexpr int kBatch = 4;                 // loads under way

  // Sum over the lanes of a row.
  static SIMT_DEVICE float Sum(float x) {
    SIMT_UNROLL
    for (int mask = 1; mask < kRowLanes; mask *= 2) {
      x += simt::ShuffleXor(x, static_cast<uint32_t>(mask));
    }
    return x;
  }
};

// 8 elements of a row.
template <typename T>
struct RowChunk {
  float x[kChunk];

  SIMT_DEVICE void Unpack(const simt::Vector16& bits) {
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const uint32_t word = bits.words[i / 2] >> (i % 2 * 16);
      x[i] = simt::ToFloat(T{static_cast<uint16_t>(word)});
    }
  }
};

// Which rows are read; of none all elements are zeros.
enum class RowPart { kNone, kKeys, kValues };

// Calls use(entry, chunk, exists) for the rows of this warp's share of a split,
// all lanes together; lanes of rows beyond the end get zeros. kSplitThreads.
template <typename T, int kDim, typename Use>
SIMT_DEVICE void ForEachRow(const PagedPool& pool, const EntrySpan& entries,
                            RowPart part, int32_t split, const Use& use) {
  using Lanes = RowLanes<T, kDim>;
  constexpr int kStep = Lanes::kRows * Lanes::kBatch;
  constexpr int32_t kShare = kSplitEntries / (kSplitThreads / 32);
  const int32_t begin = split * kSplitEntries + WarpIndex() * kShare;
  const int32_t end =
      begin + kShare < entries.size ? begin + kShare : entries.size;
  const int32_t lane_row = LaneIndex() / Lanes::kRowLanes;
  const int64_t lane_bytes =
      (part == RowPart::kValues ? pool.view.kv_stride : 0) +
      LaneIndex() % Lanes::kRowLanes * 16;
  for (int32_t first = begin; first < end; first += kStep) {
    simt::Vector16 bits[Lanes::kBatch];
    SIMT_UNROLL
    for (int i = 0; i < Lanes::kBatch; ++i) {
      const int32_t entry = first + i * Lanes::kRows + lane_row;
      bits[i] = simt::Vector16{{0, 0, 0, 0}};
      if (entry < end && part != RowPart::kNone) {
        bits[i] = simt::LoadGlobal16(SlotAddress(pool, entries.slots[entry]) +
                                     lane_bytes);
      }
    }
    SIMT_UNROLL
    for (int i = 0; i < Lanes::kBatch; ++i) {
      const int32_t entry = first + i * Lanes::kRows + lane_row;
      RowChunk<T> chunk;
      chunk.Unpack(bits[i]);
      use(entry, chunk, entry < end);
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ROW_LANES_CUH_
