// The bytes of K and V on the heap, and the only place that turns ids into
// addresses.
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

// KvArena owns layout.pool_bytes() bytes, aligned to 4 KiB, laid out by
// KvPoolLayout::PageContiguous.
//
// Offsets are 64-bit throughout. Ids outside the layout are a bug in the caller
// and abort. The bytes start indeterminate; the memory of pages nobody has
// written costs address space only.
//
// Thread-compatible. Movable; addresses survive a move.
class KvArena {
 public:
  // Fails with InvalidArgument for a layout that Validate() refuses and with
  // ResourceExhausted if the arena cannot be addressed or allocated.
  static absl::StatusOr<KvArena> Create(const ModelLayout& layout);

  const ModelLayout& layout() const { return layout_; }
  // From a token's K row to its V row, in bytes.
  int64_t kv_stride() const { return pool_.kv_stride; }
  // From a token's K row to the next token's in the same page, in bytes.
  int64_t token_stride() const { return pool_.token_stride; }

  // K row of the first token of a page.
  std::byte* page(PageId page);
  const std::byte* page(PageId page) const;
  // K row of a slot.
  std::byte* key_row(SlotIndex slot);
  const std::byte* key_row(SlotIndex slot) const;
  // rows[i] = key_row(slots[i]); fast where slots follow each other.
  void KeyRows(std::span<const SlotIndex> slots, const std::byte** rows) const;
  // The pages of one block in one layer, all heads: contiguous.
  std::span<std::byte> layer_block(int32_t layer, BlockId block);
  // Everything.
  std::span<std::byte> bytes();

 private:
  KvArena(const ModelLayout& layout,
          hwy::AlignedFreeUniquePtr<std::byte[]> bytes);

  int64_t PageOffset(PageId page) const;
  int64_t KeyRowOffset(SlotIndex slot) const;

  ModelLayout layout_;
  KvPoolLayout pool_;
  hwy::AlignedFreeUniquePtr<std::byte[]> bytes_;
  std::byte* base_;  // in bytes_, [layout_.pool_bytes()]
};

}  // namespace blockmgr

#endif  // KERNELS_CPU_KV_ARENA_H_
