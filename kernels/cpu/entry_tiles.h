// Reads the entries of one head in tiles.
#ifndef KERNELS_CPU_ENTRY_TILES_H_
#define KERNELS_CPU_ENTRY_TILES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <hwy/cache_control.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cpu/key_ops.h"
#include "kernels/cpu/kv_arena.h"
#include "kernels/cpu/tile_ops.h"

namespace blockmgr {

// The part of an EntryList that belongs to one head.
struct HeadEntries {
  int64_t begin = 0;  // the place of the first entry in the list
  std::span<const SlotIndex> slots;
  std::span<const int32_t> positions;

  int64_t size() const { return std::ssize(slots); }
  // Returns the number of entries at positions below `position`. They come
  // first.
  int64_t CountBelow(int64_t position) const {
    return std::ranges::lower_bound(positions, position) - positions.begin();
  }
  // Returns this head's part of an array with one element per entry of the
  // list.
  template <typename T>
  std::span<T> Of(std::span<T> all) const {
    return all.subspan(begin, slots.size());
  }
};

inline HeadEntries EntriesOf(const EntryList& list, int32_t head) {
  const int64_t begin = list.offsets[head];
  const int64_t size = list.offsets[head + 1] - begin;
  return {.begin = begin,
          .slots = list.slots.subspan(begin, size),
          .positions = list.positions.subspan(begin, size)};
}

// Checks what every call with an EntryList requires.
inline void CheckEntries(const ModelLayout& layout, int32_t layer,
                         const EntryList& list) {
  BM_CHECK(layer >= 0 && layer < layout.num_layers);
  BM_CHECK(std::ssize(list.offsets) == layout.num_heads + 1);
  BM_CHECK(list.offsets.back() == std::ssize(list.slots));
  BM_CHECK(list.slots.size() == list.positions.size());
}

enum class RowKind : uint8_t { kKeys, kValues };

// Prefetches the start of every run of rows that lie one after another. Pages
// are scattered, and the hardware's prefetcher stops at the end of each page.
// After the first lines the hardware follows a run by itself. Measured: 1 KiB
// is better than less and than more.
inline void PrefetchRuns(const KvTile& tile, int32_t num_rows,
                         int64_t token_stride) {
  constexpr int64_t kFetchBytes = 1024;
  constexpr int64_t kCacheLineBytes = 64;
  int64_t run_bytes = 0;  // bytes of the run so far
  const std::byte* expected = nullptr;
  for (int32_t r = 0; r < num_rows; ++r) {
    const std::byte* row = tile.keys[r];
    if (row != expected) run_bytes = 0;
    const int64_t num_bytes = std::min(token_stride, kFetchBytes - run_bytes);
    for (int64_t i = 0; i < num_bytes; i += kCacheLineBytes) {
      hwy::Prefetch(row + i);
    }
    run_bytes += token_stride;
    expected = row + token_stride;
  }
}

// Calls use(tile, begin, num_rows) for the entries' K rows or V rows, kTileRows
// at a time and in order. tile.keys points at the K rows or at the V rows. All
// kTileRows pointers of the tile are readable.
template <typename Use>
void ForEachTile(const KvArena& arena, std::span<const SlotIndex> slots,
                 RowKind kind, const Use& use) {
  const int64_t size = std::ssize(slots);
  if (size == 0) return;
  const int64_t shift = kind == RowKind::kKeys ? 0 : arena.kv_stride();
  const auto rows_from = [&](int64_t begin) {
    return static_cast<int32_t>(std::min<int64_t>(kTileRows, size - begin));
  };
  const auto gather = [&](int64_t begin, KvTile* tile) {
    const int32_t num_rows = rows_from(begin);
    arena.KeyRows(slots.subspan(begin, num_rows), tile->keys.data());
    for (int32_t r = 0; r < num_rows; ++r) tile->keys[r] += shift;
    std::fill(tile->keys.begin() + num_rows, tile->keys.end(), tile->keys[0]);
    PrefetchRuns(*tile, num_rows, arena.token_stride());
  };
  // One tile to work on, and one tile that is being prefetched.
  std::array<KvTile, 2> tiles;
  for (KvTile& tile : tiles) {
    tile.kv_stride = arena.kv_stride();
    tile.head_dim = arena.layout().head_dim;
    tile.dtype = arena.layout().dtype;
  }
  gather(0, &tiles[0]);
  int32_t current = 0;
  for (int64_t begin = 0; begin < size; begin += kTileRows) {
    const int64_t next = begin + kTileRows;
    if (next < size) gather(next, &tiles[1 - current]);
    use(tiles[current], begin, rows_from(begin));
    current = 1 - current;
  }
}

// Prefetches one line of each system page that a row of the list ends in,
// except the page that `before` ends in. The most expensive part of a jump to
// another page is to translate its address. When the rows themselves are
// fetched, the address is known.
inline void FetchAddresses(std::span<const std::byte* const> rows,
                           int64_t row_bytes, const std::byte* before) {
  constexpr std::uintptr_t kSystemPageBytes = 4096;
  const auto page_of = [&](const std::byte* row) {
    return reinterpret_cast<std::uintptr_t>(row + row_bytes - 1) /
           kSystemPageBytes;
  };
  std::uintptr_t last = page_of(before);
  for (const std::byte* row : rows) {
    const std::uintptr_t page = page_of(row);
    if (page != last) hwy::Prefetch(row + row_bytes - 1);
    last = page;
  }
}

// Calls use(rows, begin) for the entries' K rows, kTileRows at a time and in
// order.
template <typename Use>
void ForEachKeyRows(const KvArena& arena, std::span<const SlotIndex> slots,
                    const Use& use) {
  constexpr int32_t kListed = kTileRows + kMaxRowsAhead;
  const int64_t size = std::ssize(slots);
  if (size == 0) return;
  const ModelLayout& layout = arena.layout();
  const int64_t row_bytes = int64_t{layout.head_dim} * DTypeBytes(layout.dtype);
  std::array<const std::byte*, kListed> list;
  // Fills the list from index `from` on with the rows of slots[slot], ...
  const auto gather = [&](int32_t from, int64_t slot) {
    const auto count =
        std::clamp<int64_t>(size - slot, 0, int64_t{kListed} - from);
    arena.KeyRows(slots.subspan(slot, count), &list[from]);
    const std::byte* before = from == 0 ? list[0] : list[from - 1];
    FetchAddresses({&list[from], static_cast<std::size_t>(count)}, row_bytes,
                   before);
    std::fill(list.begin() + from + count, list.end(), list[0]);
  };
  gather(0, 0);
  for (int64_t begin = 0; begin < size; begin += kTileRows) {
    if (begin > 0) {
      std::copy(list.begin() + kTileRows, list.end(), list.begin());
      gather(kMaxRowsAhead, std::min(size, begin + kMaxRowsAhead));
    }
    const auto rest =
        static_cast<int32_t>(std::min<int64_t>(kListed, size - begin));
    use(RowList{.rows = list.data(),
                .num_rows = std::min(kTileRows, rest),
                .num_listed = rest,
                .head_dim = layout.head_dim,
                .dtype = layout.dtype},
        begin);
  }
}

}  // namespace blockmgr

#endif  // KERNELS_CPU_ENTRY_TILES_H_
