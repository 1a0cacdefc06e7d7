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
//
// A row is one chunk longer than its key. The eight rows that an ldmatrix reads
// at one chunk thus lie in different banks, as swizzled rows do (mma_rows.cuh),
// and the places of a lane differ by constants.
template <typename T, int kDim>
struct WindowShape {
  static constexpr int kWarps = kWindowThreads / 32;
  static constexpr int kStages = 3;
  static constexpr int kMTiles = kDim == 256 ? 1 : 2;
  static constexpr int kBlockMTiles = kWarps * kMTiles;  // of one pass
  static constexpr int kRowElements = kDim + kChunk;
  static constexpr int kTileElements = kEntryTile * kRowElements;
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

// The addresses of two rows.
struct alignas(16) AddressPair {
  uint64_t addresses[2];
};

// Streams the K tiles of a split through shared memory. All threads first find
// the addresses of the rows, so that no copy waits for a load. Rows after the
// last entry repeat the last entry.
template <typename Shape, int kDim, typename T>
struct KeyTiles {
  // A warp copies 16 rows, one chunk of each lane at a time. The kChunks lanes
  // of a row take kLaneRows rows, one after another.
  static constexpr int32_t kChunks = kDim / kChunk;
  static constexpr int32_t kLaneRows = 16 / (32 / kChunks);

  T* const tiles = reinterpret_cast<T*>(simt::SharedBytes());
  int32_t num_tiles;
  int32_t first_row = WarpIndex() * 16 + LaneIndex() / kChunks * kLaneRows;
  int32_t place =
      first_row * Shape::kRowElements + LaneIndex() % kChunks * kChunk;
  int32_t tile = 0;   // the next one to copy
  int32_t stage = 0;  // where to

  SIMT_DEVICE KeyTiles(const WindowParams& params, const WindowBlock& block)
      : num_tiles((block.end - block.begin + kEntryTile - 1) / kEntryTile) {
    StageAddresses(params, block);
  }

  // A call makes one copy group. After the last tile it clears a stage that is
  // not in use: a branch would keep copies apart from other instructions.
  SIMT_DEVICE void CopyNext() {
    const bool exists = tile < num_tiles;
    AddressPair pairs[kLaneRows / 2];
    SIMT_UNROLL
    for (int32_t i = 0; i < kLaneRows / 2; ++i) {
      pairs[i] = Addresses().Load(static_cast<uint32_t>(
          ((exists ? tile : 0) * kEntryTile + first_row) / 2 + i));
    }
    T* const to = tiles + stage * Shape::kTileElements + place;
    SIMT_UNROLL
    for (int32_t i = 0; i < kLaneRows; ++i) {
      const uint64_t row = pairs[i / 2].addresses[i % 2];
      // NOLINTNEXTLINE(performance-no-int-to-ptr): as it was stored
      const char* const from =
          reinterpret_cast<const char*>(row) + LaneIndex() % kChunks * 16;
      simt::CopyAsync16(to + i * Shape::kRowElements, from, exists);
    }
    ++tile;
    stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
    simt::CommitCopies();
  }

  // Calls use(tile, first_entry) between barriers. All warps use each tile.
  // `use` calls CopyNext once: copies that begin behind the first products do
  // not delay these. All threads of a block call this function. It ends with a
  // barrier.
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
      use(tiles + used * Shape::kTileElements, block.begin + i * kEntryTile);
      used = used + 1 == Shape::kStages ? 0 : used + 1;
    }
    simt::WaitCopies<0>();  // of cleared stages
    simt::SyncBlock();
  }

 private:
  SIMT_DEVICE static simt::SharedArray<AddressPair> Addresses() {
    return simt::Shared<AddressPair>(Shape::kAddressesAt, kSplitEntries / 2);
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
      simt::Shared<uint64_t>(Shape::kAddressesAt, kSplitEntries)
          .Store(static_cast<uint32_t>(turn * kWindowThreads + Thread()),
                 reinterpret_cast<uint64_t>(
                     SlotAddress(params.pool, slots[turn])));
    }
    simt::SyncBlock();
  }
};

// The logits of 16 queries and half a tile of keys: logits[n][j] is the logit
// of key 8 n + 2 (lane % 4) + j % 2 and row lane / 4 + 8 (j / 2).
inline constexpr int32_t kHalfTile = kEntryTile / 2;
using HalfLogits = float[kHalfTile / 8][4];

// Sets logits to -infinity where the query does not see the key.
template <int kMTiles>
SIMT_DEVICE void MaskLogits(const WindowBlock& block, int32_t m_tile,
                            int32_t first_entry,
                            HalfLogits (&logits)[kMTiles]) {
  if (first_entry + kHalfTile <= block.num_past) return;
  int32_t last_seen[kMTiles][2];
  SIMT_UNROLL
  for (int m = 0; m < kMTiles; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      last_seen[m][half] =
          block.first_position + WindowRow(block, m_tile + m, half).query;
    }
  }
  SIMT_UNROLL
  for (int n = 0; n < kHalfTile / 8; ++n) {
    SIMT_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int32_t entry = first_entry + n * 8 + LaneIndex() % 4 * 2 + j;
      const bool exists = entry < block.end;
      const int32_t position = exists ? block.entries.positions[entry] : 0;
      SIMT_UNROLL
      for (int m = 0; m < kMTiles; ++m) {
        SIMT_UNROLL
        for (int half = 0; half < 2; ++half) {
          const bool seen = exists && position <= last_seen[m][half];
          if (!seen) logits[m][n][half * 2 + j] = -INFINITY;
        }
      }
    }
  }
}

// Computes the products of a warp's queries, kMTiles times 16, and the keys of
// half a tile. The factor scale * log2(e) is applied later, where exponents are
// taken: one instruction multiplies and subtracts. The fragments of a key are
// loaded once for all of the queries.
template <typename Shape, typename T, int kDim, int kMTiles>
SIMT_DEVICE void MultiplyKeys(const WindowQueries<kDim> (&queries)[kMTiles],
                              const T* keys, HalfLogits (&logits)[kMTiles]) {
  const int32_t lane = LaneIndex();
  const T* const fragments =
      keys + ((lane & 7) + lane / 16 * 8) * Shape::kRowElements +
      (lane / 8 & 1) * kChunk;
  SIMT_UNROLL
  for (int m = 0; m < kMTiles; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < kHalfTile / 8; ++n) {
      SIMT_UNROLL
      for (int j = 0; j < 4; ++j) logits[m][n][j] = 0.0f;
    }
  }
  SIMT_UNROLL
  for (int i = 0; i < kDim / 16; ++i) {
    SIMT_UNROLL
    for (int n = 0; n < kHalfTile / 8; n += 2) {
      uint32_t b[4];
      simt::LoadMatrix4(b, fragments + n * 8 * Shape::kRowElements + i * 16);
      SIMT_UNROLL
      for (int m = 0; m < kMTiles; ++m) {
        simt::Mma16816<T>(logits[m][n], queries[m].a[i], b[0], b[1]);
        simt::Mma16816<T>(logits[m][n + 1], queries[m].a[i], b[2], b[3]);
      }
    }
  }
}

// Calls use(logits, first_entry) for every half tile of the split, in order.
// The logits of a half are used while those of the next half are computed: the
// two keep different units of a multiprocessor busy. `use` is called once
// before the first half, with logits of -infinity. mask(logits, first_entry) is
// called for logits before they are used. All threads of a block call this
// function. A warp whose queries do not exist copies keys only.
template <typename Shape, typename T, int kDim, int kMTiles, typename Mask,
          typename Use>
SIMT_DEVICE void ForEachHalf(KeyTiles<Shape, kDim, T>& tiles,
                             const WindowBlock& block, bool queries_exist,
                             const WindowQueries<kDim> (&queries)[kMTiles],
                             const Mask& mask, const Use& use) {
  HalfLogits even[kMTiles];
  HalfLogits odd[kMTiles];
  SIMT_UNROLL
  for (int m = 0; m < kMTiles; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < kHalfTile / 8; ++n) {
      SIMT_UNROLL
      for (int j = 0; j < 4; ++j) odd[m][n][j] = -INFINITY;
    }
  }
  int32_t before = block.begin - kHalfTile;
  tiles.ForEach(block, [&](const T* keys, int32_t first_entry) {
    if (!queries_exist) return tiles.CopyNext();
    MultiplyKeys<Shape>(queries, keys, even);
    tiles.CopyNext();
    use(odd, before);
    mask(even, first_entry);
    before = first_entry + kHalfTile;
    MultiplyKeys<Shape>(queries, keys + kHalfTile * Shape::kRowElements, odd);
    use(even, first_entry);
    mask(odd, before);
  });
  if (queries_exist) use(odd, before);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_WINDOW_SCORES_CUH_
