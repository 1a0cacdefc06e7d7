// PrefixCache: blocks and regions of linked groups.

#include <memory>
#include <utility>

#include "blockmgr/base/check.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

void PrefixCache::InsertLinked(int32_t entry, int32_t group, BlockId block) {
  BM_CHECK(!Contains(block));
  BM_CHECK(0 < group && group < num_groups_);
  entries_[Index(block)].serial = next_serial_++;
  links_[Index(block)] = {.group = group, .entry = entry};
  ++num_blocks_held_;
  if (entry == kNone) return;
  BM_CHECK(entry < num_blocks_ && serial(entry) != kNoSerial);
  BlockId& link = linked_blocks_[LinkIndex(entry, group)];
  BM_CHECK(link == kNullBlock);
  link = block;
}

int32_t PrefixCache::InsertLinkedRegion(
    std::shared_ptr<const RegionRecord> record) {
  BM_CHECK(!record->blocks.empty());
  BM_CHECK(FindRegion(record->id) == kNone);
  auto cached = std::make_unique<CachedRegion>();
  cached->groups = {{{std::move(record)}}};
  cached->is_linked = true;
  const int32_t entry = AddRegion(std::move(cached));
  entries_[entry].serial = next_serial_++;
  num_blocks_held_ += num_blocks(entry);
  return entry;
}

std::span<const int32_t> PrefixCache::Unlink(int32_t entry) {
  if (num_groups_ == 1 || IsLinked(entry)) return {};
  orphans_.clear();
  const auto check = [&](BlockId block) {
    const Links& links = links_[Index(block)];
    if (links.entry == kNone && links.num_regions == 0) {
      orphans_.push_back(Index(block));
    }
  };
  const CachedRegion* cached = region(entry);
  if (cached != nullptr) {
    for (int32_t group = 1; group < num_groups_; ++group) {
      const int32_t linked = RegionOf(*cached, group);
      if (linked == kNone) continue;
      if (--num_links_[linked - num_blocks_] == 0) orphans_.push_back(linked);
    }
    for (size_t i = 0; i < cached->linked_blocks.size(); ++i) {
      const BlockId block = LinkedBlock(*cached, i);
      if (block == kNullBlock) continue;
      --links_[Index(block)].num_regions;
      check(block);
    }
    return orphans_;
  }
  for (int32_t group = 1; group < num_groups_; ++group) {
    BlockId& link = linked_blocks_[LinkIndex(entry, group)];
    if (link == kNullBlock) continue;
    links_[Index(link)].entry = kNone;
    check(link);
    link = kNullBlock;
  }
  return orphans_;
}

void PrefixCache::RemoveLinkedBlock(int32_t block) {
  const Links links = std::exchange(links_[block], {});
  if (links.entry == kNone) return;
  linked_blocks_[LinkIndex(links.entry, links.group)] = kNullBlock;
}

void PrefixCache::Link(LinkedMemory linked, CachedRegion* cached) {
  for (CachedGroup& group : linked.groups) {
    if (group.num_region_blocks() > 0) {
      const int32_t entry = FindRegion(group.region->id);
      BM_CHECK(entry != kNone);
      group.serial = serial(entry);
      ++num_links_[entry - num_blocks_];
    }
    cached->groups.push_back(std::move(group));
  }
  cached->linked_serials.reserve(linked.blocks.size());
  for (const BlockId block : linked.blocks) {
    ++links_[Index(block)].num_regions;
    cached->linked_serials.push_back(serial(Index(block)));
  }
  orphans_.reserve(linked.groups.size() + linked.blocks.size());
  cached->linked_blocks = std::move(linked.blocks);
}

bool PrefixCache::HasLinked(const CachedRegion& cached) const {
  for (size_t i = 0; i < cached.linked_blocks.size(); ++i) {
    if (LinkedBlock(cached, i) == kNullBlock) return false;
  }
  for (int32_t group = 1; group < num_groups_; ++group) {
    if (!HasRegionOf(cached, group)) return false;
  }
  return true;
}

void PrefixCache::CheckLinks() const {
  if (num_groups_ == 1) return;
  std::vector<int32_t> num_regions(num_blocks_, 0);
  std::vector<int32_t> num_links(regions_.size(), 0);
  for (const auto& cached : regions_) {
    if (cached == nullptr || cached->is_linked) continue;
    BM_CHECK(cached->linked_blocks.size() == cached->linked_serials.size());
    for (size_t i = 0; i < cached->linked_blocks.size(); ++i) {
      const BlockId block = LinkedBlock(*cached, i);
      if (block != kNullBlock) ++num_regions[Index(block)];
    }
    BM_CHECK(std::ssize(cached->groups) == num_groups_);
    BM_CHECK(std::ssize(cached->linked_blocks) ==
             cached->groups.back().linked_end);
    for (int32_t group = 1; group < num_groups_; ++group) {
      const int32_t linked = RegionOf(*cached, group);
      if (linked != kNone) ++num_links[linked - num_blocks_];
    }
  }
  BM_CHECK(num_links == num_links_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    const bool is_linked = regions_[i] != nullptr && regions_[i]->is_linked;
    BM_CHECK(is_linked == (num_links[i] > 0));
  }
  for (int32_t i = 0; i < num_blocks_; ++i) {
    const Links& links = links_[i];
    BM_CHECK(links.num_regions == num_regions[i]);
    if (links.entry != kNone) {
      BM_CHECK(LinkedBlock(links.entry, links.group) == BlockId{i});
      BM_CHECK(serial(links.entry) != kNoSerial && !IsLinked(links.entry));
    }
    const bool is_linked = links.entry != kNone || links.num_regions > 0;
    BM_CHECK(IsLinked(i) == is_linked);
    BM_CHECK(!is_linked || Contains(BlockId{i}));
    for (int32_t group = 1; group < num_groups_; ++group) {
      const BlockId block = LinkedBlock(i, group);
      if (block == kNullBlock) continue;
      BM_CHECK(Contains(BlockId{i}));
      BM_CHECK(links_[Index(block)].entry == i);
      BM_CHECK(links_[Index(block)].group == group);
    }
  }
}

}  // namespace blockmgr
