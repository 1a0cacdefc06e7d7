// BlockManager: the pages that each layer group holds of a sequence, which
// depend on its span.

#include <algorithm>

#include "blockmgr/base/check.h"
#include "blockmgr/block_manager.h"

namespace blockmgr {

FallingBlocks BlockManager::CountFalling(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  FallingBlocks falling;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    // A pending eviction releases what it covers. Only the rest counts here.
    const int32_t length = cache.pending == nullptr ? sequence.num_reserved
                                                    : cache.pending->length;
    const int32_t end = layout_.FirstPage(group, length);
    if (end == 0) continue;
    if (cache.region != nullptr && cache.cut() <= end * layout_.page_size) {
      const bool is_own = blocks_.IsOwn(*cache.region);
      (is_own ? falling.num_own : falling.num_shared) +=
          cache.num_region_blocks();
    }
    if (end == layout_.FirstPage(group, sequence.num_settled)) continue;
    for (int32_t i = sequence.FirstHeld(layout_, group); i < end; ++i) {
      ++(blocks_.IsOwn(cache.block(i)) ? falling.num_own : falling.num_shared);
    }
  }
  return falling;
}

OwnInWindows BlockManager::CountOwnInWindows(SequenceSlot slot) const {
  const SequenceCache& sequence = at(slot);
  OwnInWindows own;
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    if (layout_.kind_of(group) != GroupKind::kWindow) continue;
    const GroupCache& cache = sequence.groups[group];
    int32_t first = std::max(sequence.FirstHeld(layout_, group),
                             layout_.FirstPage(group, sequence.num_reserved));
    if (cache.pending != nullptr) {
      first = std::max(first, cache.pending->cut / layout_.page_size);
      own.num_in_regions +=
          static_cast<int32_t>(cache.pending->destinations.size());
    } else if (!cache.IsPast(layout_, group, sequence.num_reserved)) {
      own.num_in_regions += CountOwnRegionBlocks(cache);
    }
    for (int32_t i = first; i < cache.tail_end(); ++i) {
      own.num_blocks += blocks_.IsOwn(cache.block(i)) ? 1 : 0;
    }
  }
  own.num_blocks += own.num_in_regions;
  return own;
}

bool BlockManager::CanGoBack(SequenceSlot slot, int32_t num_tokens) const {
  if (num_tokens == 0) return true;
  const SequenceCache& sequence = at(slot);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const GroupCache& cache = sequence.groups[group];
    if (cache.region == nullptr) {
      if (layout_.FirstPage(group, num_tokens + 1) <
          sequence.FirstHeld(layout_, group)) {
        return false;
      }
      continue;
    }
    // Full attention can go on from any position behind the region. A region of
    // a window lacks the entries that had left the window when it was made.
    const int32_t least = layout_.kind_of(group) == GroupKind::kFull
                              ? cache.cut()
                              : cache.region_length;
    if (num_tokens < least) return false;
  }
  return true;
}

void BlockManager::ReleaseOutOfSpan(SequenceCache* sequence,
                                    int32_t num_before) {
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    GroupCache& cache = sequence->groups[group];
    // A pending eviction covers memory that must still be in the span.
    BM_CHECK(cache.pending == nullptr ||
             layout_.kind_of(group) == GroupKind::kFull ||
             sequence->num_settled <= cache.pending->length);
    const int32_t end = layout_.FirstPage(group, sequence->num_settled);
    if (end == 0) continue;
    for (int32_t i =
             std::max(cache.tail_begin, layout_.FirstPage(group, num_before));
         i < end; ++i) {
      BlockId& block = cache.tail[i - cache.tail_begin];
      if (block == kNullBlock) continue;
      blocks_.Release(block);
      block = kNullBlock;
    }
    if (cache.region == nullptr || cache.cut() > end * layout_.page_size) {
      continue;
    }
    blocks_.Release(*cache.region);
    cache.region.reset();
  }
}

int32_t BlockManager::CountOwnRegionBlocks(const GroupRegion& region) const {
  return region.region != nullptr && blocks_.IsOwn(*region.region)
             ? region.num_region_blocks()
             : 0;
}

}  // namespace blockmgr
