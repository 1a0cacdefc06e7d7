// Publication in NaiveCache.

#include <algorithm>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_cache.h"

namespace blockmgr {
namespace {

// Whether an order on its way is to overwrite the block.
bool IsDoomed(const GroupBook& book, BlockId block) {
  return book.pending.has_value() &&
         std::ranges::count(book.pending->own, block) > 0;
}

}  // namespace

void NaiveCache::Publish(NaiveSequence* sequence) {
  while (sequence->chain != 0 &&
         (sequence->num_offered + 1) * books_.layout.page_size <=
             sequence->num_settled) {
    const NaiveGroup& first = sequence->groups[0];
    if (IsDoomed(first, first.At(sequence->num_offered))) {
      sequence->chain = 0;
      return;
    }
    sequence->chain =
        PublishPage(*sequence, sequence->num_offered++, sequence->chain, 0);
  }
}

uint64_t NaiveCache::PublishPage(const NaiveSequence& sequence, int32_t page,
                                 uint64_t parent, int32_t cut) {
  const int32_t begin = page * books_.layout.page_size;
  const BlockId block = sequence.groups[0].At(page);
  Entry entry;
  entry.prefix = books_.Prefix(sequence.tokens, page + 1);
  entry.scope = sequence.scope;
  entry.parent = parent;
  const auto [found, is_new] = by_content_.try_emplace(ContentOf(entry), block);
  if (is_new) {
    EXPECT_FALSE(Contains(block));
    entry.id = books_.next_name++;
    cached_[block] = std::move(entry);
  }
  ApplyWishes(sequence, {found->second, 0}, begin,
              begin + books_.layout.page_size, cut);
  const uint64_t id = cached_.at(found->second).id;
  for (int32_t group = 1; group < books_.num_groups(); ++group) {
    LinkPage(sequence, group, page, id, cut);
  }
  return id;
}

void NaiveCache::LinkPage(const NaiveSequence& sequence, int32_t group,
                          int32_t page, uint64_t of, int32_t cut) {
  const BlockId block = sequence.groups[group].At(page);
  if (block == kNullBlock || cached_.contains(block)) return;
  if (IsDoomed(sequence.groups[group], block)) {
    ++books_.tally->spared_windows;
    return;
  }
  const auto one = std::ranges::find_if(cached_, [&](const auto& other) {
    return other.second.group == group && other.second.of == of;
  });
  const bool is_new = one == cached_.end();
  if (is_new) AddLinked(block, group, of);
  const int32_t begin = page * books_.layout.page_size;
  ApplyWishes(sequence, {is_new ? block : one->first, 0}, begin,
              begin + books_.layout.page_size, cut);
  const bool is_own = IsAlive({sequence.groups[0].At(page), of});
  books_.tally->adopted_windows += is_new && !is_own ? 1 : 0;
}

void NaiveCache::AddLinked(BlockId block, int32_t group, uint64_t of) {
  Entry entry;
  entry.id = books_.next_name++;
  entry.group = group;
  entry.of = of;
  EXPECT_TRUE(cached_.emplace(block, std::move(entry)).second);
}

NaiveCache::Start NaiveCache::MakeStart(const NaiveSequence& sequence,
                                        int32_t group, int32_t length) {
  const NaiveGroup& own = sequence.groups[group];
  const bool has_window = books_.rules.WindowOf(group) > 0;
  Start start{.region = own.region, .id = 0, .pages = {}};
  if (!own.region.blocks.empty()) {
    start.id = RegionWith(own.region.blocks.front());
    const bool is_new = start.id == 0;
    if (is_new) {
      start.id = books_.next_name++;
      regions_[start.id].group = group;
      regions_[start.id].blocks = own.region.blocks;
      ApplyWishes(sequence, {kNullBlock, start.id}, 0, 0, sequence.cut());
    }
    books_.tally->published_window_regions += has_window && is_new ? 1 : 0;
    books_.tally->linked_window_regions += has_window && !is_new ? 1 : 0;
  }
  const PageRange pages = books_.rules.PagesBehind(own, group, length);
  for (int32_t i = pages.begin; i < pages.end; ++i) {
    const BlockId block = own.At(i);
    if (!cached_.contains(block)) {
      AddLinked(block, group, 0);
      ApplyWishes(sequence, {block, 0}, 0, 0, sequence.cut());
      ++books_.tally->linked_alone;
    }
    start.pages[i] = {block, cached_.at(block).id};
  }
  return start;
}

bool NaiveCache::PublishRegion(NaiveSequence* sequence, const RegionName& name,
                               bool* is_new) {
  const BookRegion& own = sequence->region();
  if (own.blocks.empty() || sequence->num_settled != name.length) return false;
  const int32_t page_size = books_.layout.page_size;
  const std::vector<int32_t> tokens =
      books_.Prefix(sequence->tokens, name.length / page_size);
  uint64_t id = 0;
  for (const auto& [other, region] : regions_) {
    const bool equal =
        region.group == 0 && IsAlive(TailOf(region)) &&
        region.scope == sequence->scope && region.tokens == tokens &&
        region.name.plan == name.plan && name.history == region.name.history;
    if (!equal) continue;
    if (IsComplete(region)) {
      id = other;
    } else {
      ++books_.tally->replaced_regions;
    }
  }
  if (id == 0 && !books_.IsWhole(*sequence)) {
    ++books_.tally->unpublished_regions;
    return false;
  }
  *is_new = id == 0;
  if (id == 0) {
    // The page after the region, in the cache already or not.
    const int32_t page = own.cut / page_size;
    const auto tail = cached_.find(sequence->groups[0].At(page));
    const uint64_t parent = tail == cached_.end()
                                ? books_.next_name++  // no other page's
                                : tail->second.parent;
    PublishPage(*sequence, page, parent, own.cut);
    std::vector<Start> starts(books_.num_groups());
    for (int32_t group = 1; group < books_.num_groups(); ++group) {
      starts[group] = MakeStart(*sequence, group, name.length);
    }
    starts[0] = MakeStart(*sequence, 0, name.length);
    id = starts[0].id;
    Region& region = regions_.at(id);
    region.scope = sequence->scope;
    region.name = name;
    region.tokens = tokens;
    region.lineage = sequence->lineage;
    region.starts = std::move(starts);
  }
  sequence->chain = id;
  sequence->num_offered = name.length / page_size;
  sequence->context = ContextOf(id);
  return true;
}

}  // namespace blockmgr
