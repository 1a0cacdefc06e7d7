// The device code of window_scores.h.
#ifndef KERNELS_CUDA_SCORES_WINDOW_SCORES_CUH_
#define KERNELS_CUDA_SCORES_WINDOW_SCORES_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/window_scores.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The shared memory: kStages tiles of K that all warps read, the column sums,
// and the addresses of rows. A warp holds kMTiles times 16 rows of queries in
// registers.
template <typename T, int kDim>
struct WindowShape {
  static constexpr int kWarps = kWindowThreads / 32;
  static constexpr int kStages = 3;
  static constexpr int kMTiles = kDim == 256 ? 1 : 2;
  static constexpr int kBlockMTiles = kWarps * kMTiles;  // of one pass
  static constexpr int kTileElements = kEntryTile * kDim;
  static constexpr size_t kTileBytes = sizeof(T) * kStages * kTileElements;
  static constexpr int kSumFloats = kBlockMTiles * kEntryTile;
  static constexpr size_t kAddressesAt =
      kTileBytes + sizeof(float) * kSumFloats;
  static constexpr size_t kSharedBytes =
      kAddressesAt + sizeof(uint64_t) * kSplitEntries;
  static_assert(kSharedBytes <= kMaxSharedBytes, "does not fit an SM");

  static SIMT_HOST_DEVICE int32_t RowBlocks(const WindowParams& params) {
    constexpr int32_t kBlockRows = 16 * kBlockMTiles;
    return (WindowRows(params.group_size, params.window) + kBlockRows - 1) /
           kBlockRows;
  }
};

// C. Finds the list of a split.
SIMT_DEVICE ListSplit FindWindowSplit(const EntryLists& lists, int32_t split) {
  return FindSplit(lists.window_splits.offsets, CountLists(lists), split);
}

// The sequence and the head whose queries a list has.
struct WindowList {
  int32_t sequence = 0;
  int32_t head = 0;
  int32_t tiles_per_head = 0;  // 16 queries each

  SIMT_DEVICE WindowList(const WindowParams& params, int32_t list)
      : sequence(Divide(list, params.pool.by_heads)),
        head(list - sequence * params.entries.num_heads),
        tiles_per_head((params.window + 15) / 16) {}

  SIMT_DEVICE int32_t num_m_tiles(const WindowParams& params) const {
    return tiles_per_head * params.group_size;
  }
};

// The work of a CTA.
struct WindowBlock : WindowList {
  using WindowList::WindowList;

  EntrySpan entries;
  int32_t first_position = 0;  // of the window
  int32_t num_past = 0;        // entries before it
  int32_t begin = 0;           // entries of this split
  int32_t end = 0;
};

SIMT_DEVICE WindowBlock MakeWindowBlock(const WindowParams& params,
                                        const ListSplit& mine, bool past_only) {
  WindowBlock block(params, mine.list);
  const int32_t length = params.lengths[block.sequence];
  block.entries = LoadEntries(params.entries, mine.list);
  block.first_position = length - params.window;
  block.num_past = block.entries.CountPast(length, params.window);
  const int32_t size = past_only ? block.num_past : block.entries.size;
  block.begin = mine.split * kSplitEntries;
  block.end =
      block.begin + kSplitEntries < size ? block.begin + kSplitEntries : size;
  return block;
}

// The queries of a lane's rows: rows 16 tile + lane / 4 and + 8. A tile belongs
// to one query head.
struct WindowRow {
  int32_t q_head = 0;  // of the group
  int32_t query = 0;   // of the window; at or beyond its end: padding

  SIMT_DEVICE WindowRow(const WindowBlock& block, int32_t m_tile,
                        int32_t half) {
    q_head = m_tile / block.tiles_per_head;
    query = (m_tile - q_head * block.tiles_per_head) * 16 + LaneIndex() / 4 +
            half * 8;
  }
  SIMT_DEVICE bool Exists(const WindowParams& params) const {
    return q_head < params.group_size && query < params.window;
  }
  // Returns the row in arrays of shape [sequences, window, num_q_heads].
  SIMT_DEVICE int64_t Index(const WindowParams& params,
                            const WindowBlock& block) const {
    const int64_t num_q_heads =
        int64_t{params.entries.num_heads} * params.group_size;
    return (int64_t{block.sequence} * params.window + query) * num_q_heads +
           block.head * params.group_size + q_head;
  }
};

// The queries as A operands. Padding is zeros.
template <int kDim>
struct WindowQueries {
  uint32_t a[kDim / 16][4];

  SIMT_DEVICE void Load(const WindowParams& params, const WindowBlock& block,
                        int32_t m_tile) {
    constexpr int kWords = kDim / 2;
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const WindowRow row(block, m_tile, half);
      const bool exists = row.Exists(params);
      const uint32_t* words =
          static_cast<const uint32_t*>(params.queries) +
          (exists ? row.Index(params, block) * kWords + LaneIndex() % 4 : 0);
      SIMT_UNROLL
      for (int i = 0; i < kDim / 16; ++i) {
        a[i][half] = exists ? words[i * 8] : 0u;
        a[i][half + 2] = exists ? words[i * 8 + 4] : 0u;
      }
    }
  }
};

// Streams the K tiles of a split through shared memory. All threads first find
// the addresses of the rows, so that no copy waits for a load. Rows after the
// last entry repeat the last entry and are masked.
template <typename Shape, int kDim, typename T>
struct KeyTiles {
  // A warp copies 16 rows, 32 chunks at a time. 32 chunks are kRows rows. After
  // kPeriod times the rotation of the rows repeats.
  static constexpr int32_t kChunks = kDim / kChunk;
  static constexpr int32_t kRows = 32 / kChunks;
  static constexpr int32_t kPeriod = 8 / kRows;

  T* const tiles = reinterpret_cast<T*>(simt::SharedBytes());
  int32_t num_tiles;
  int32_t first_row = WarpIndex() * 16 + LaneIndex() / kChunks;
  int32_t chunk_bytes = LaneIndex() % kChunks * 16;
  int32_t places[kPeriod];  // in a tile, elements
  int32_t tile = 0;         // the next one to copy
  int32_t stage = 0;        // where to

  SIMT_DEVICE KeyTiles(const WindowParams& params, const WindowBlock& block)
      : num_tiles((block.end - block.begin + kEntryTile - 1) / kEntryTile) {
    SIMT_UNROLL
    for (int32_t i = 0; i < kPeriod; ++i) {
      places[i] =
          SwizzledChunk<kDim>(first_row + i * kRows, LaneIndex() % kChunks);
    }
    StageAddresses(params, block);
  }

  // A call makes one copy group, which is empty after the last tile.
  SIMT_DEVICE void CopyNext() {
    if (tile < num_tiles) {
      T* const to = tiles + stage * Shape::kTileElements;
      SIMT_UNROLL
      for (int32_t i = 0; i < 16 / kRows; ++i) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): as it was stored
        const char* const row = reinterpret_cast<const char*>(Addresses().Load(
            static_cast<uint32_t>(tile * kEntryTile + first_row + i * kRows)));
        simt::CopyAsync16(to + places[i % kPeriod] + i / kPeriod * 8 * kDim,
                          row + chunk_bytes, true);
      }
      ++tile;
    }
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    simt::CommitCopies();
  }

  // Calls use(tile, first_entry) between barriers. All warps use each tile. All
  // threads of a block call this function. It ends with a barrier.
  template <typename Use>
  SIMT_DEVICE void ForEach(const WindowBlock& block, const Use& use) {
    tile = 0;
    stage = 0;
    for (int32_t i = 0; i < Shape::kStages - 1; ++i) CopyNext();
    int32_t used = 0;
    for (int32_t i = 0; i < num_tiles; ++i) {
      simt::WaitCopies<Shape::kStages - 2>();
      // Publishes this tile, and says that the one before is not read any more.
      simt::SyncBlock();
      CopyNext();
      use(tiles + used * Shape::kTileElements, block.begin + i * kEntryTile);
      used = used + 1 == Shape::kStages ? 0 : used + 1;
    }
    simt::SyncBlock();
  }

 private:
  SIMT_DEVICE static simt::SharedArray<uint64_t> Addresses() {
    return simt::Shared<uint64_t>(Shape::kAddressesAt, kSplitEntries);
  }

  // Finds the addresses of the block's rows. Contains a barrier.
  SIMT_DEVICE void StageAddresses(const WindowParams& params,
                                  const WindowBlock& block) {
    constexpr int32_t kTurns = kSplitEntries / int32_t{kWindowThreads};
    if (block.begin >= block.end) return;
    int64_t slots[kTurns];
    SIMT_UNROLL
    for (int32_t turn = 0; turn < kTurns; ++turn) {
      const int32_t entry = block.begin + turn * kWindowThreads + Thread();
      slots[turn] =
          block.entries.slots[entry < block.end ? entry : block.end - 1];
    }
    SIMT_UNROLL
    for (int32_t turn = 0; turn < kTurns; ++turn) {
      Addresses().Store(
          static_cast<uint32_t>(turn * kWindowThreads + Thread()),
          reinterpret_cast<uint64_t>(SlotAddress(params.pool, slots[turn])));
    }
    simt::SyncBlock();
  }
};

// The logits of 16 queries and a tile of keys: logits[n][j] is the logit of key
// 8 n + 2 (lane % 4) + j % 2 and row lane / 4 + 8 (j / 2).
using TileLogits = float[kEntryTile / 8][4];

// Sets logits to -infinity where the query does not see the key.
SIMT_DEVICE void MaskLogits(const WindowBlock& block, int32_t m_tile,
                            int32_t first_entry, TileLogits& logits) {
  if (first_entry + kEntryTile <= block.num_past) return;
  const int32_t query[2] = {WindowRow(block, m_tile, 0).query,
                            WindowRow(block, m_tile, 1).query};
  SIMT_UNROLL
  for (int n = 0; n < kEntryTile / 8; ++n) {
    SIMT_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int32_t entry = first_entry + n * 8 + LaneIndex() % 4 * 2 + j % 2;
      const bool seen =
          entry < block.end &&
          block.entries.positions[entry] <= block.first_position + query[j / 2];
      if (!seen) logits[n][j] = -INFINITY;
    }
  }
}

// Computes the products of a warp's queries, kMTiles times 16 from m_tile on,
// and a tile of keys, and masks them. The factor scale * log2(e) is applied
// later, where exponents are taken: one instruction multiplies and subtracts.
// The fragments of a key are loaded once for all of the queries.
template <typename T, int kDim, int kMTiles>
SIMT_DEVICE void WindowLogits(const WindowBlock& block, int32_t m_tile,
                              const WindowQueries<kDim> (&queries)[kMTiles],
                              const RowsB<kDim>& rows, const T* keys,
                              int32_t first_entry,
                              TileLogits (&logits)[kMTiles]) {
  SIMT_UNROLL
  for (int n = 0; n < kEntryTile / 8; n += 2) {
    SIMT_UNROLL
    for (int m = 0; m < kMTiles; ++m) {
      SIMT_UNROLL
      for (int j = 0; j < 4; ++j) logits[m][n][j] = logits[m][n + 1][j] = 0.0f;
    }
    SIMT_UNROLL
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t b[4];
      rows.Load(keys, n * 8, i, b);
      SIMT_UNROLL
      for (int m = 0; m < kMTiles; ++m) {
        simt::Mma16816<T>(logits[m][n], queries[m].a[i], b[0], b[1]);
        simt::Mma16816<T>(logits[m][n + 1], queries[m].a[i], b[2], b[3]);
      }
    }
  }
  SIMT_UNROLL
  for (int m = 0; m < kMTiles; ++m) {
    MaskLogits(block, m_tile + m, first_entry, logits[m]);
  }
}

// Calls use(m, logits) with the logits of each of a warp's kMTiles times 16
// queries.
template <typename T, int kDim, int kMTiles, typename Use>
SIMT_DEVICE void ForEachLogits(const WindowBlock& block, int32_t m_tile,
                               const WindowQueries<kDim> (&queries)[kMTiles],
                               const RowsB<kDim>& rows, const T* keys,
                               int32_t first_entry, const Use& use) {
  TileLogits logits[kMTiles];
  WindowLogits(block, m_tile, queries, rows, keys, first_entry, logits);
  SIMT_UNROLL
  for (int m = 0; m < kMTiles; ++m) use(m, logits[m]);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_SCORES_CUH_
