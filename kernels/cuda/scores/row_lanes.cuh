// Rows of K or V in registers. Several lanes hold one row.
#ifndef KERNELS_CUDA_SCORES_ROW_LANES_CUH_
#define KERNELS_CUDA_SCORES_ROW_LANES_CUH_

#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_lists.h"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Several lanes hold a row, 16 bytes each. A warp holds several rows.
template <typename T, int kDim>
struct RowLanes {
  static constexpr int kRowLanes = kDim / kChunk;  // 8, 16 or 32
  static constexpr int kRows = 32 / kRowLanes;     // at a time
  // The loads that a lane has under way. A load is 512 bytes per warp, so the
  // 32 warps of a multiprocessor at 64 registers have 64 KiB under way; an H100
  // needs about 40. More than four loads do not fit into these registers: ptxas
  // then waits for the first row before it loads the last.
  static constexpr int kBatch = 4;

  // Returns the sum over the lanes of a row.
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

  SIMT_DEVICE float Square() const {
    float sum = 0.0f;
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) sum += x[i] * x[i];
    return sum;
  }
};

// The rows that are read. With none, all elements are zeros.
enum class RowPart { kNone, kKeys, kValues };

// Takes the rows of this warp's share of a split of kRowSplitEntries, in turns.
// All lanes together call measure(entry, chunk, exists), which must return the
// same value on all lanes of a row. After the last row the last row is measured
// again. At the end of a turn one lane per existing row passes the value to
// store(entry, ..). Lanes finish many rows at once, so no store delays a load.
// kRowSplitThreads threads.
//
// One lane per row loads the slot and finds the address, 32 rows at once. The
// slots of the next 32 rows are loaded before the current rows.
template <typename T, int kDim, typename Measure, typename Store>
SIMT_DEVICE void ForEachRow(const PagedPool& pool, const EntrySpan& entries,
                            RowPart part, int32_t split, const Measure& measure,
                            const Store& store) {
  using Lanes = RowLanes<T, kDim>;
  constexpr int kBatch = Lanes::kBatch;
  constexpr int32_t kShare = kRowSplitEntries / (kRowSplitThreads / 32);
  const int32_t begin = split * kRowSplitEntries + WarpIndex() * kShare;
  const int32_t end =
      begin + kShare < entries.size ? begin + kShare : entries.size;
  if (begin >= end) return;
  const int32_t lane_row = LaneIndex() / Lanes::kRowLanes;
  const int32_t row_lane = LaneIndex() % Lanes::kRowLanes;
  // Lanes pass on offsets from this address. If a lane passed an address as a
  // number, the compiler would not know that it is an address of global memory.
  const char* const origin = Nowhere(pool);
  const char* const lane_origin =
      origin + (part == RowPart::kValues ? pool.kv_stride : 0) + row_lane * 16;
  const auto load_slot = [&](int32_t entry) -> int64_t {
    if (part == RowPart::kNone) return 0;
    return entries.slots[entry < end ? entry : end - 1];
  };
  int64_t slot = load_slot(begin + LaneIndex());
  for (int32_t first = begin; first < end; first += 32) {
    const int64_t place =
        part == RowPart::kNone ? 0 : SlotAddress(pool, slot) - origin;
    slot = load_slot(first + 32 + LaneIndex());
    for (int32_t turn = 0; turn < 32 && first + turn < end;
         turn += Lanes::kRows * kBatch) {
      simt::Vector16 bits[kBatch] = {};
      SIMT_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int64_t from = simt::Shuffle(
            place, static_cast<uint32_t>(turn + i * Lanes::kRows + lane_row));
        if (part != RowPart::kNone) {
          bits[i] = simt::LoadGlobal16(lane_origin + from);
        }
      }
      // All loads come before their uses. A compiler mixes the two to save
      // registers, and the first rows are then awaited before the others are
      // loaded.
      simt::SyncWarp();
      decltype(measure(0, RowChunk<T>(), true)) mine{};
      SIMT_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int32_t entry = first + turn + i * Lanes::kRows + lane_row;
        RowChunk<T> chunk;
        chunk.Unpack(bits[i]);
        const auto measured = measure(entry, chunk, entry < end);
        if (row_lane == i) mine = measured;
      }
      const int32_t entry = first + turn + row_lane * Lanes::kRows + lane_row;
      if (row_lane < kBatch && entry < end) store(entry, mine);
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ROW_LANES_CUH_
