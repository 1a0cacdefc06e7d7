#include "kernels/cpu/kv_arena.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace blockmgr {
namespace {

// A page of K or V rows is often as large as one of the system's, and should
// not lie across two of them.
constexpr std::size_t kSystemPageBytes = 4096;

std::size_t PaddingOf(const std::byte* bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(bytes);
  return (kSystemPageBytes - address % kSystemPageBytes) % kSystemPageBytes;
}

// Readers jump from page to page of the arena, each a few KiB, all over it:
// with the system's small pages nearly every jump waits for an address
// translation. A hint; what comes of it does not matter to anything but time.
void AskForHugePages(std::span<std::byte> bytes) {
#ifdef __linux__
  constexpr std::uintptr_t kHugePageBytes = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first =
      (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::uintptr_t last =
      (begin + bytes.size()) / kHugePageBytes * kHugePageBytes;
  if (first >= last) return;
  madvise(bytes.data() + (first - begin), last - first, MADV_HUGEPAGE);
#endif
}

}  // namespace

absl::StatusOr<KvArena> KvArena::Create(const ModelLayout& layout) {
  BM_RETURN_IF_ERROR(layout.Validate());
  auto bytes = hwy::AllocateAligned<std::byte>(
      static_cast<std::size_t>(layout.pool_bytes()) + kSystemPageBytes);
  if (bytes == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("arena: cannot allocate ", layout.pool_bytes(),
                     " bytes for ", layout.ToString()));
  }
  std::byte* base = bytes.get() + PaddingOf(bytes.get());
  KvArena arena(layout, std::move(bytes), base);
  AskForHugePages(arena.bytes());
  return arena;
}

absl::StatusOr<KvArena> KvArena::Over(const ModelLayout& layout,
                                      std::span<std::byte> bytes) {
  BM_RETURN_IF_ERROR(layout.Validate());
  if (std::ssize(bytes) != layout.pool_bytes()) {
    return Invalid("pool: expected ", layout.pool_bytes(), " bytes for ",
                   layout.ToString(), ", got ", bytes.size());
  }
  return KvArena(layout, nullptr, bytes.data());
}

KvArena::KvArena(const ModelLayout& layout,
                 hwy::AlignedFreeUniquePtr<std::byte[]> bytes, std::byte* base)
    : layout_(layout),
      pool_(KvPoolLayout::PageContiguous(layout)),
      bytes_(std::move(bytes)),
      base_(base) {}

int64_t KvArena::PageOffset(PageId page) const {
  BM_CHECK(Index(page) >= 0 && Index(page) < layout_.num_pages());
  // This is row_offset() without its divisions: page ids are in the order of
  // PageContiguous, which has no padding.
  return Index(page) * pool_.head_stride;
}

int64_t KvArena::KeyRowOffset(SlotIndex slot) const {
  BM_CHECK(slot >= 0 && slot / layout_.page_size < layout_.num_pages());
  const PageId page{static_cast<int32_t>(slot / layout_.page_size)};
  return PageOffset(page) + slot % layout_.page_size * pool_.token_stride;
}

std::byte* KvArena::page(PageId page) { return base_ + PageOffset(page); }

const std::byte* KvArena::page(PageId page) const {
  return base_ + PageOffset(page);
}

std::byte* KvArena::key_row(SlotIndex slot) {
  return base_ + KeyRowOffset(slot);
}

const std::byte* KvArena::key_row(SlotIndex slot) const {
  return base_ + KeyRowOffset(slot);
}

void KvArena::KeyRows(std::span<const SlotIndex> slots,
                      const std::byte** rows) const {
  SlotIndex page_end = 0;  // of the page of the slot before
  SlotIndex expected = -1;
  const std::byte* row = nullptr;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const SlotIndex slot = slots[i];
    if (slot == expected && slot < page_end) {
      row += pool_.token_stride;
    } else {
      row = key_row(slot);
      page_end = slot - slot % layout_.page_size + layout_.page_size;
    }
    expected = slot + 1;
    rows[i] = row;
  }
}

std::span<std::byte> KvArena::layer_block(int32_t layer, BlockId block) {
  BM_CHECK(layer >= 0 && layer < layout_.num_layers);
  BM_CHECK(Index(block) >= 0 && Index(block) < layout_.num_blocks);
  return {base_ + pool_.row_offset(layer, block, 0, 0),
          static_cast<std::size_t>(pool_.block_stride)};
}

std::span<std::byte> KvArena::bytes() {
  return {base_, static_cast<std::size_t>(layout_.pool_bytes())};
}

}  // namespace blockmgr
