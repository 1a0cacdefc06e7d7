// PrefixCache: blocks and regions of window groups.

#include <memory>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

void PrefixCache::InsertWindow(int32_t entry, int32_t group, BlockId block) {
  BM_CHECK(!Contains(block));
  BM_CHECK(0 <= group && group < num_window_groups_);
  const auto own = static_cast<size_t>(Index(block));
  entries_[own].serial = next_serial_++;
  window_links_[own] = {.cached = true, .entry = entry, .group = group};
  ++num_blocks_held_;
  if (entry == kNone) return;
  BM_CHECK(entry < num_blocks_ && serial(entry) != kNoSerial);
  BlockId& link =
      window_blocks_[static_cast<size_t>(entry) * num_window_groups_ + group];
  BM_CHECK(link == kNullBlock);
  link = block;
}

int32_t PrefixCache::InsertWindowRegion(
    std::shared_ptr<const RegionRecord> record) {
  BM_CHECK(!record->blocks.empty());
  BM_CHECK(FindRegion(record->id) == kNone);
  auto cached = std::make_unique<CachedRegion>();
  cached->record = std::move(record);
  cached->in_window = true;
  const int32_t entry = AddRegion(std::move(cached));
  entries_[entry].serial = next_serial_++;
  num_blocks_held_ += num_blocks(entry);
  return entry;
}

std::span<const int32_t> PrefixCache::Unlink(int32_t entry) {
  if (num_window_groups_ == 0 || IsWindow(entry) || IsWindowRegion(entry)) {
    return {};
  }
  orphans_.clear();
  const auto check = [&](int32_t block) {
    const WindowLinks& links = window_links_[block];
    if (links.entry == kNone && links.num_regions == 0) {
      orphans_.push_back(block);
    }
  };
  const CachedRegion* cached = region(entry);
  if (cached != nullptr) {
    for (size_t i = 0; i < cached->windows.regions.size(); ++i) {
      const int32_t linked = WindowRegionOf(*cached, i);
      if (linked == kNone) continue;
      if (--num_links_[linked - num_blocks_] == 0) orphans_.push_back(linked);
    }
    for (size_t i = 0; i < cached->windows.blocks.size(); ++i) {
      const BlockId block = WindowBlockOf(*cached, i);
      if (block == kNullBlock) continue;
      --window_links_[Index(block)].num_regions;
      check(Index(block));
    }
    return orphans_;
  }
  for (int32_t group = 0; group < num_window_groups_; ++group) {
    BlockId& link =
        window_blocks_[static_cast<size_t>(entry) * num_window_groups_ + group];
    if (link == kNullBlock) continue;
    window_links_[Index(link)].entry = kNone;
    check(Index(link));
    link = kNullBlock;
  }
  return orphans_;
}

void PrefixCache::RemoveWindow(int32_t block) {
  const WindowLinks& links = window_links_[block];
  if (links.entry != kNone) {
    window_blocks_[static_cast<size_t>(links.entry) * num_window_groups_ +
                   links.group] = kNullBlock;
  }
  window_links_[block] = WindowLinks{};
  entries_[block] = Entry{};
  --num_blocks_held_;
}

void PrefixCache::LinkWindows(const RegionWindows& windows,
                              CachedRegion* cached) {
  for (const GroupRegion& window : windows.regions) {
    cached->region_serials.push_back(kNoSerial);
    if (window.num_region_blocks() == 0) continue;
    const int32_t entry = FindRegion(window.region->id);
    BM_CHECK(entry != kNone);
    cached->region_serials.back() = serial(entry);
    ++num_links_[entry - num_blocks_];
  }
  for (const BlockId block : windows.blocks) {
    ++window_links_[Index(block)].num_regions;
    cached->window_serials.push_back(serial(Index(block)));
  }
  orphans_.reserve(windows.regions.size() + windows.blocks.size());
}

bool PrefixCache::HasWindows(const CachedRegion& cached) const {
  for (size_t i = 0; i < cached.windows.blocks.size(); ++i) {
    if (WindowBlockOf(cached, i) == kNullBlock) return false;
  }
  for (size_t i = 0; i < cached.windows.regions.size(); ++i) {
    if (!HasWindowRegionOf(cached, i)) return false;
  }
  return true;
}

void PrefixCache::CheckWindows() const {
  if (num_window_groups_ == 0) return;
  std::vector<int32_t> num_regions(num_blocks_, 0);
  std::vector<int32_t> num_links(regions_.size(), 0);
  for (const auto& cached : regions_) {
    if (cached == nullptr) continue;
    BM_CHECK(cached->windows.blocks.size() == cached->window_serials.size());
    for (size_t i = 0; i < cached->windows.blocks.size(); ++i) {
      const BlockId block = WindowBlockOf(*cached, i);
      if (block != kNullBlock) ++num_regions[Index(block)];
    }
    BM_CHECK(cached->windows.regions.size() == cached->region_serials.size());
    for (size_t i = 0; i < cached->windows.regions.size(); ++i) {
      const int32_t linked = WindowRegionOf(*cached, i);
      if (linked != kNone) ++num_links[linked - num_blocks_];
    }
  }
  BM_CHECK(num_links == num_links_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    const bool in_window = regions_[i] != nullptr && regions_[i]->in_window;
    BM_CHECK(in_window == (num_links[i] > 0));
  }
  for (int32_t i = 0; i < num_blocks_; ++i) {
    const WindowLinks& links = window_links_[i];
    BM_CHECK(links.num_regions == num_regions[i]);
    if (links.entry != kNone) {
      BM_CHECK(WindowBlock(links.entry, links.group) == BlockId{i});
      BM_CHECK(serial(links.entry) != kNoSerial && !IsWindow(links.entry));
    }
    BM_CHECK(links.cached == (links.entry != kNone || links.num_regions > 0));
    BM_CHECK(!links.cached || Contains(BlockId{i}));
    for (int32_t group = 0; group < num_window_groups_; ++group) {
      const BlockId block = WindowBlock(i, group);
      if (block == kNullBlock) continue;
      BM_CHECK(Contains(BlockId{i}));
      BM_CHECK(window_links_[Index(block)].entry == i);
      BM_CHECK(window_links_[Index(block)].group == group);
    }
  }
}

}  // namespace blockmgr
