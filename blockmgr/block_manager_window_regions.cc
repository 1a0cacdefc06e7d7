// Regions of layer groups with a window.

#include <algorithm>
#include <memory>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

int32_t BlockManager::RegionBlocksOf(const WindowCache& window,
                                     Owned owned) const {
  const RegionRecord* region = window.region.get();
  if (region == nullptr) return 0;
  if (owned == Owned::kOwn && !IsOwnRegion(*region)) return 0;
  return static_cast<int32_t>(region->blocks.size());
}

CoveredBlocks BlockManager::CoveredInWindow(SequenceSlot slot, int32_t group,
                                            int32_t cut, int32_t length) const {
  const WindowCache& cache = window(slot, group);
  const PageRange pages = cache.CoveredPages(layout_, group, cut, length);
  CoveredBlocks covered{.num_blocks = pages.end - pages.begin};
  if (!cache.IsPast(layout_, group, length + 1)) {
    covered.num_blocks += RegionBlocksOf(cache, Owned::kAny);
    covered.num_own += RegionBlocksOf(cache, Owned::kOwn);
  }
  const SequenceCache& sequence = at(slot);
  const auto num_pages = static_cast<int32_t>(cache.tail.size());
  for (int32_t i = pages.begin; i < pages.end; ++i) {
    // The last block will be full by then, hence its own or replaced.
    const bool will_leave = i + 1 == num_pages && sequence.shares_last_block &&
                            cut > sequence.num_reserved;
    const bool is_own = i >= num_pages || will_leave || IsOwn(cache.tail[i]);
    covered.num_own += is_own ? 1 : 0;
  }
  return covered;
}

EvictionReceipt BlockManager::CommitWindowEviction(
    SequenceSlot slot, int32_t group, std::span<const int32_t> counts) {
  BM_CHECK(ValidateCounts(slot, counts, group).ok());
  SequenceCache& sequence = at(slot);
  WindowCache& window = windows_[WindowIndex(slot, group)];
  BM_CHECK(window.pending_length == sequence.num_settled);
  const HeldBlocks covered = CoveredBy(slot, group);
  const int32_t begin = covered.cut / layout_.page_size;
  const std::unique_ptr<PendingEviction> pending = std::move(window.pending);
  std::shared_ptr<const RegionRecord> region =
      MakeRegion(layout_, *pending, covered, counts);
  const EvictionReceipt receipt = Replace(covered, *pending, *region);
  std::fill_n(window.tail.begin() + begin, std::ssize(covered.tail),
              kNullBlock);
  // What is left below the cut nobody attends to any more.
  for (int32_t i = 0; i < begin; ++i) {
    if (window.tail[i] != kNullBlock) ReleaseFrom(window.tail[i]);
    window.tail[i] = kNullBlock;
  }
  if (window.region != nullptr && covered.region == nullptr) {
    ReleaseRegion(*window.region);
  }
  window.region = std::move(region);
  window.region_length = window.pending_length;
  sequence.chain_serial = kNoSerial;
  return receipt;
}

void BlockManager::ReleaseRegionBehind(WindowCache* window, int32_t group,
                                       int32_t num_settled) {
  if (window->region == nullptr) return;
  if (!window->IsPast(layout_, group, num_settled)) return;
  ReleaseRegion(*window->region);
  window->region.reset();
}

}  // namespace blockmgr
