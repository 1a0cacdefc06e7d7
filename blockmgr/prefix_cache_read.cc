// PrefixCache::Read: the changes that readers are told.

#include "blockmgr/base/check.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

PrefixCacheDelta PrefixCache::Read(PrefixCachePosition* position,
                                   int32_t max_blocks) const {
  BM_CHECK(max_blocks > 0);
  PrefixCacheDelta delta;
  if (position->change < log_.begin() || position->change > log_.end() ||
      position->entry < 0) {
    *position = {.change = log_.end(), .entry = 0};
    delta.reset = true;
  }
  int32_t left = max_blocks;
  for (; position->change < log_.end() && left > 0; ++position->change) {
    const PrefixCacheChange& change = log_[position->change];
    --left;
    if (change.removed) {
      // Includes entries that the walk has not reached. A reader that got only
      // a part of an earlier delta may know such an entry.
      delta.removed.push_back(change.serial);
    } else if (change.entry < position->entry &&
               serial(change.entry) == change.serial) {
      left -= Tell(change.entry, &delta);
    }
  }
  if (position->change < log_.end()) return delta;
  for (; position->entry < entry_limit() && left > 0; ++position->entry) {
    --left;
    if (serial(position->entry) != kNoSerial) {
      left -= Tell(position->entry, &delta);
    }
  }
  if (position->entry < entry_limit()) return delta;
  position->entry = PrefixCachePosition::kAllEntries;
  delta.current = true;
  return delta;
}

int32_t PrefixCache::Tell(int32_t entry, PrefixCacheDelta* delta) const {
  if (IsLinked(entry)) return 0;
  const Entry& own = entries_[entry];
  if (own.follows_root) {
    delta->scopes.try_emplace(own.parent, *root_names_.at(own.parent));
  }
  const CachedRegion* cached = region(entry);
  if (cached == nullptr) {
    delta->blocks.push_back(
        {.serial = own.serial,
         .parent = own.parent,
         .media = own.has_media ? media_.at(entry) : std::string()});
    const std::span<const int32_t> tokens = TokensOf(entry);
    delta->tokens.insert(delta->tokens.end(), tokens.begin(), tokens.end());
    return 0;
  }
  delta->regions.push_back({.serial = own.serial,
                            .scope = cached->root,
                            .tail = cached->tail_serial,
                            .length = cached->length(),
                            .plan = cached->plan,
                            .content = cached->content});
  return cached->length() / page_size_;
}

}  // namespace blockmgr
