// The bytes of K and V on the heap. No other code turns ids into addresses.
#ifndef KERNELS_CPU_KV_ARENA_H_
#define KERNELS_CPU_KV_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include <absl/status/statusor.h>
#include <hwy/aligned_allocator.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"

namespace blockmgr {

// KvArena has layout.pool_bytes() bytes in the layout
// KvPoolLayout::PageContiguous. It owns them, aligned to 4 KiB, unless it was
// made by Over().
//
// Offsets have 64 bits. An id outside the layout is a bug in the caller and
// aborts. The bytes start indeterminate. A page that was never written costs
// address space but no memory.
//
// Thread-compatible. Movable: addresses survive a move.
class KvArena {
 public:
  // Returns InvalidArgument for a layout that Validate() refuses, and
  // ResourceExhausted if the arena cannot be addressed or allocated.
  static absl::StatusOr<KvArena> Create(const ModelLayout& layout);
  // Returns an arena over memory that the caller owns and that outlives the
  // arena. The memory is aligned as the elements of the layout. Returns
  // InvalidArgument for a layout that Validate() refuses, and for another size
  // than layout.pool_bytes().
  static absl::StatusOr<KvArena> Over(const ModelLayout& layout,
                                      std::span<std::byte> bytes);

  const ModelLayout& layout() const { return layout_; }
  // The distance from a token's K row to its V row, bytes.
  int64_t kv_stride() const { return pool_.kv_stride; }
  // The distance from a token's K row to the K row of the next token in the
  // page, bytes.
  int64_t token_stride() const { return pool_.token_stride; }

  // Returns the K row of the first token of a page.
  std::byte* page(PageId page);
  const std::byte* page(PageId page) const;
  // Returns the K row of a slot.
  std::byte* key_row(SlotIndex slot);
  const std::byte* key_row(SlotIndex slot) const;
  // Sets rows[i] = key_row(slots[i]). Fast where slots follow each other.
  void KeyRows(std::span<const SlotIndex> slots, const std::byte** rows) const;
  // Returns the pages of one block in one layer, all heads. They are
  // contiguous.
  std::span<std::byte> layer_block(int32_t layer, BlockId block);
  // Returns all bytes of the arena.
  std::span<std::byte> bytes();

 private:
  KvArena(const ModelLayout& layout,
          hwy::AlignedFreeUniquePtr<std::byte[]> bytes, std::byte* base);

  int64_t PageOffset(PageId page) const;
  int64_t KeyRowOffset(SlotIndex slot) const;

  ModelLayout layout_;
  KvPoolLayout pool_;
  hwy::AlignedFreeUniquePtr<std::byte[]> bytes_;  // null after Over()
  // The first of layout_.pool_bytes() bytes. They are in bytes_ or in the
  // caller's memory.
  std::byte* base_;
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_KV_ARENA_H_
