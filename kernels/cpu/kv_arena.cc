#include "kernels/cpu/kv_arena.h"

#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {

absl::StatusOr<KvArena> KvArena::Create(const ModelLayout& layout) {
  BM_RETURN_IF_ERROR(layout.Validate());
  auto bytes = hwy::AllocateAligned<std::byte>(
      static_cast<std::size_t>(layout.pool_bytes()));
  if (bytes == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("arena: cannot allocate ", layout.pool_bytes(),
                     " bytes for ", layout.ToString()));
  }
  return KvArena(layout, std::move(bytes));
}

KvArena::KvArena(const ModelLayout& layout,
                 hwy::AlignedFreeUniquePtr<std::byte[]> bytes)
    : layout_(layout),
      pool_(KvPoolLayout::PageContiguous(layout)),
      bytes_(std::move(bytes)) {}

int64_t KvArena::PageOffset(PageId page) const {
  BM_CHECK(Index(page) >= 0 && Index(page) < layout_.num_pages());
  return pool_.row_offset(layout_.page_layer(page), layout_.page_block(page),
                          layout_.page_head(page), 0);
}

int64_t KvArena::KeyRowOffset(SlotIndex slot) const {
  BM_CHECK(slot >= 0 && slot / layout_.page_size < layout_.num_pages());
  const PageId page{static_cast<int32_t>(slot / layout_.page_size)};
  return PageOffset(page) + slot % layout_.page_size * pool_.token_stride;
}

std::byte* KvArena::page(PageId page) {
  return bytes_.get() + PageOffset(page);
}

const std::byte* KvArena::page(PageId page) const {
  return bytes_.get() + PageOffset(page);
}

std::byte* KvArena::key_row(SlotIndex slot) {
  return bytes_.get() + KeyRowOffset(slot);
}

const std::byte* KvArena::key_row(SlotIndex slot) const {
  return bytes_.get() + KeyRowOffset(slot);
}

std::span<std::byte> KvArena::layer_block(int32_t layer, BlockId block) {
  BM_CHECK(layer >= 0 && layer < layout_.num_layers);
  BM_CHECK(Index(block) >= 0 && Index(block) < layout_.num_blocks);
  return {bytes_.get() + pool_.row_offset(layer, block, 0, 0),
          static_cast<std::size_t>(pool_.block_stride)};
}

std::span<std::byte> KvArena::bytes() {
  return {bytes_.get(), static_cast<std::size_t>(layout_.pool_bytes())};
}

}  // namespace blockmgr
