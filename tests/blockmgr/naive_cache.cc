#include "tests/blockmgr/naive_cache.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

namespace blockmgr {

int32_t NaiveCache::CountRegions() const {
  return static_cast<int32_t>(std::ranges::count_if(
      regions_, [](const auto& region) { return region.second.group == 0; }));
}

int32_t NaiveCache::CountBlocks() const {
  size_t count = cached_.size();
  for (const auto& [id, region] : regions_) count += region.blocks.size();
  return static_cast<int32_t>(count);
}

std::vector<BlockId> NaiveCache::IdleLinkedBlocks() const {
  const std::vector<int32_t> holders = books_.Holders();
  std::vector<BlockId> blocks;
  for (const auto& [block, entry] : cached_) {
    if (entry.group > 0 && holders[Index(block)] == 0 && IsLinked({block, 0})) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

uint64_t NaiveCache::RegionWith(BlockId block) const {
  for (const auto& [id, region] : regions_) {
    if (std::ranges::count(region.blocks, block) > 0) return id;
  }
  return 0;
}

bool NaiveCache::IsOfRegion(uint64_t id, BlockId block) const {
  if (id == 0) return false;
  const auto tail = TailOf(regions_.at(id));
  return (tail.first == block && IsAlive(tail)) || RegionWith(block) == id;
}

std::string NaiveCache::ContextOf(uint64_t region) const {
  if (region == 0) return "";
  const RegionName& name = regions_.at(region).name;
  return name.plan + "/" + name.history + "/" + std::to_string(name.length);
}

uint64_t NaiveCache::ChainAt(const NaiveSequence& sequence,
                             int32_t num_pages) const {
  const BookRegion& region = sequence.region();
  const int32_t num_before = region.cut / books_.layout.page_size;
  if (region.kept.empty() || num_pages > num_before + 1) {
    const auto entry = cached_.find(sequence.groups[0].At(num_pages - 1));
    return entry == cached_.end() ? 0 : entry->second.id;
  }
  const bool is_next = num_pages == num_before + 1 && !region.blocks.empty();
  return is_next ? RegionWith(region.blocks.front()) : 0;
}

std::vector<NaiveCache::EntryName> NaiveCache::Reclaimable() {
  std::map<std::pair<int32_t, uint64_t>, EntryName> in_order;
  for (const auto& [entry, place] : line_) {
    in_order[{At(entry).retention.priority, place}] = entry;
  }
  std::vector<EntryName> entries;
  entries.reserve(in_order.size());
  for (const auto& [order, entry] : in_order) entries.push_back(entry);
  return entries;
}

std::vector<NaiveCache::EntryName> NaiveCache::Entries() const {
  std::vector<EntryName> entries;
  for (const auto& [block, entry] : cached_) entries.emplace_back(block, 0);
  for (const auto& [id, region] : regions_) {
    entries.emplace_back(kNullBlock, id);
  }
  return entries;
}

BlockId NaiveCache::FirstOf(const EntryName& entry) const {
  return entry.second == 0 ? entry.first
                           : regions_.at(entry.second).blocks.front();
}

NaiveCache::Wished& NaiveCache::At(const EntryName& entry) {
  if (entry.second == 0) return cached_.at(entry.first);
  return regions_.at(entry.second);
}

bool NaiveCache::IsAlive(const Link& link) const {
  const auto found = cached_.find(link.first);
  return found != cached_.end() && found->second.id == link.second;
}

bool NaiveCache::IsComplete(const Region& region) const {
  for (const Start& start : region.starts) {
    for (const auto& [page, link] : start.pages) {
      if (!IsAlive(link)) return false;
    }
    if (start.id != 0 && !regions_.contains(start.id)) return false;
  }
  return true;
}

NaiveCache::Link NaiveCache::TailOf(const Region& region) const {
  if (region.group > 0) return {kNullBlock, 0};
  return region.starts[0].pages.rbegin()->second;
}

bool NaiveCache::IsLinked(const EntryName& entry) const {
  for (const auto& [id, region] : regions_) {
    for (const Start& start : region.starts) {
      if (entry.second != 0 && start.id == entry.second) return true;
      for (const auto& [page, link] : start.pages) {
        if (link.first == entry.first && IsAlive(link)) return true;
      }
    }
  }
  return false;
}

void NaiveCache::Use(const EntryName& entry) {
  line_.erase(entry);
  Wished& wished = At(entry);
  if (wished.superseded) wished.retention = {};
  wished.superseded = false;
}

void NaiveCache::Line() {
  num_freed_ = 0;
  const std::vector<int32_t> holders = books_.Holders();
  std::map<uint64_t, EntryName> by_age;
  for (const EntryName& entry : Entries()) {
    const BlockId block = FirstOf(entry);
    if (holders[Index(block)] > 0 || line_.contains(entry)) continue;
    if (!books_.fences.IsPast(block)) continue;
    by_age[books_.fences.AgeOf(block)] = entry;
  }
  for (const auto& [age, entry] : by_age) line_[entry] = next_in_line_++;
}

void NaiveCache::SetTime(int64_t now_ms) {
  std::map<std::tuple<int64_t, uint64_t, EntryName>, Retention*> expired;
  for (const EntryName& entry : Entries()) {
    Wished& wished = At(entry);
    if (wished.retention.expires_ms <= now_ms) {
      expired[{wished.retention.expires_ms, wished.wish, entry}] =
          &wished.retention;
    }
  }
  for (const auto& [when, retention] : expired) {
    const bool moves = retention->priority != kDefaultPriority;
    *retention = {};
    const EntryName& entry = std::get<EntryName>(when);
    if (moves && line_.contains(entry)) line_[entry] = next_in_line_++;
  }
  now_ms_ = now_ms;
}

void NaiveCache::ApplyWishes(const NaiveSequence& sequence,
                             const EntryName& entry, int32_t begin, int32_t end,
                             int32_t cut) {
  const RetentionRange* wish = nullptr;
  for (const RetentionRange& range : sequence.wishes) {
    bool meant = false;
    for (int32_t position = begin; position < end; ++position) {
      meant |= range.begin <= position && position < range.end;
    }
    bool whole = cut > 0;
    for (int32_t position = 0; position < cut; ++position) {
      whole &= range.begin <= position && position < range.end;
    }
    if (!meant && !whole) continue;
    if (wish == nullptr ||
        range.retention.priority > wish->retention.priority) {
      wish = &range;
    }
  }
  if (wish == nullptr) return;
  Wished& wished = At(entry);
  Retention& retention = wished.retention;
  const uint8_t before = retention.priority;
  retention = wish->retention;
  wished.superseded = false;
  wished.wish = next_wish_++;
  if (retention.expires_ms <= now_ms_) retention = {};
  const bool moves = retention.priority != before;
  if (moves && line_.contains(entry)) line_[entry] = next_in_line_++;
}

void NaiveCache::Supersede(const EntryName& name) {
  if (!cached_.contains(name.first) && !regions_.contains(name.second)) return;
  const BlockId first = FirstOf(name);
  Wished& entry = At(name);
  if (books_.Holders()[Index(first)] > 0) return;
  if (entry.superseded || !(entry.retention == Retention{})) return;
  entry.superseded = true;
  entry.retention.priority = kDefaultPriority - 1;
  // The last of those that go first, some of which were wished to.
  if (line_.contains(name)) line_[name] = next_in_line_++;
  if (books_.fences.IsPast(first)) books_.fences.Rejuvenate(first);
}

int32_t NaiveCache::Reclaim(int64_t num_wanted, int32_t num_free) {
  const int32_t num_freed_before = num_freed_;
  for (const EntryName& entry : Reclaimable()) {
    if (num_free + num_freed_ >= num_wanted) break;
    if (!line_.contains(entry)) continue;  // it went with another
    if (entry.second != 0) {
      books_.tally->reclaimed_window_regions +=
          regions_.at(entry.second).group > 0 ? 1 : 0;
    } else {
      books_.tally->reclaimed_alone +=
          cached_.at(entry.first).group > 0 ? 1 : 0;
    }
    Drop(entry);
  }
  EXPECT_GE(num_free + num_freed_, num_wanted);
  return num_freed_ - num_freed_before;
}

int32_t NaiveCache::Take(std::span<const BlockId> blocks) {
  int32_t num_taken = 0;
  std::set<uint64_t> regions;
  for (const BlockId block : blocks) {
    if (!Contains(block)) continue;
    ++num_taken;
    if (cached_.contains(block)) {
      DropPage(block);
    } else {
      regions.insert(RegionWith(block));
    }
  }
  for (const uint64_t region : regions) Drop({kNullBlock, region});
  return num_taken;
}

void NaiveCache::Drop(const EntryName& entry) {
  if (cached_.contains(entry.first)) DropPage(entry.first);
  if (regions_.contains(entry.second)) DropRegion(entry.second);
}

void NaiveCache::DropPage(BlockId block) {
  const Entry entry = std::move(cached_.at(block));
  cached_.erase(block);
  num_freed_ += line_.erase({block, 0}) > 0 ? 1 : 0;
  if (entry.group > 0) return;
  by_content_.erase(ContentOf(entry));
  std::vector<BlockId> orphans;
  for (auto& [other, linked] : cached_) {
    if (linked.group == 0 || linked.of != entry.id) continue;
    linked.of = 0;
    if (!IsLinked({other, 0})) orphans.push_back(other);
  }
  for (const BlockId orphan : orphans) DropOrphan({orphan, 0});
}

void NaiveCache::DropRegion(uint64_t id) {
  const Region region = std::move(regions_.at(id));
  regions_.erase(id);
  if (line_.erase({kNullBlock, id}) > 0) {
    num_freed_ += static_cast<int32_t>(region.blocks.size());
  }
  std::vector<EntryName> linked;
  for (const Start& start : region.starts) {
    for (const auto& [page, link] : start.pages) {
      if (!IsAlive(link)) continue;
      const Entry& entry = cached_.at(link.first);
      if (entry.group > 0 && entry.of == 0) linked.emplace_back(link.first, 0);
    }
    if (regions_.contains(start.id)) linked.emplace_back(kNullBlock, start.id);
  }
  for (const EntryName& entry : linked) {
    if (!IsLinked(entry)) DropOrphan(entry);
  }
}

void NaiveCache::DropOrphan(const EntryName& entry) {
  const BlockId block = FirstOf(entry);
  const bool used = books_.Holders()[Index(block)] > 0;
  const bool waits = !used && !books_.fences.IsPast(block);
  if (waits) books_.fences.MakeBounds(true);
  if (entry.second == 0) {
    ++books_.tally->orphans;
    books_.tally->orphans_in_use += used ? 1 : 0;
    books_.tally->orphans_in_fence += waits ? 1 : 0;
  } else {
    ++books_.tally->dropped_window_regions;
  }
  Drop(entry);
}

std::set<uint64_t> NaiveCache::LoseBlocks(const std::set<BlockId>& lost) {
  std::set<uint64_t> gone;
  std::vector<EntryName> lost_regions;
  std::set<uint64_t> sound_tails;  // entries
  for (const auto& [id, region] : regions_) {
    const Link tail = TailOf(region);
    bool sound = !lost.contains(tail.first);
    for (const BlockId block : region.blocks) sound &= !lost.contains(block);
    if (sound) {
      sound_tails.insert(tail.second);
    } else {
      lost_regions.emplace_back(kNullBlock, id);
      gone.insert(id);
    }
  }
  for (const auto& [block, entry] : cached_) {
    if (lost.contains(block)) gone.insert(entry.id);
  }
  // Entries after one that is gone, until nothing is added.
  for (size_t before = 0; before != gone.size();) {
    before = gone.size();
    for (const auto& [block, entry] : cached_) {
      if (gone.contains(entry.parent)) gone.insert(entry.id);
    }
  }
  std::vector<EntryName> dropped;
  for (const auto& [block, entry] : cached_) {
    if (!gone.contains(entry.id)) continue;
    if (lost.contains(block) || !sound_tails.contains(entry.id)) {
      dropped.emplace_back(block, 0);
    }
  }
  dropped.insert(dropped.end(), lost_regions.begin(), lost_regions.end());
  for (const EntryName& entry : dropped) Drop(entry);
  return gone;
}

void NaiveCache::Reset() {
  const std::vector<int32_t> holders = books_.Holders();
  std::vector<EntryName> unused = Entries();
  std::erase_if(unused, [&](const EntryName& entry) {
    return holders[Index(FirstOf(entry))] > 0;
  });
  for (const EntryName& entry : unused) Drop(entry);
  books_.fences.MakeBounds(books_.fences.has_steps_in_flight());
}

}  // namespace blockmgr
