// What NaiveModel knows of layer groups with a window, and of their regions.

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"
#include "tests/testing/block_tables.h"

namespace blockmgr {

bool NaiveModel::IsInWindow(int32_t group, int32_t page,
                            int32_t num_tokens) const {
  return !rules_.IsOut(group, page, num_tokens);
}

BlockId NaiveModel::BlockAt(const NaiveSequence& sequence, int32_t group,
                            int32_t page) const {
  const std::vector<BlockId>& pages = sequence.groups[group].pages;
  return page < std::ssize(pages) ? pages[page] : kNullBlock;
}

std::vector<BlockId> NaiveModel::Held(const NaiveSequence& sequence) {
  std::vector<BlockId> held;
  for (const GroupBook& book : sequence.groups) {
    const std::vector<BlockId> blocks = book.Blocks();
    held.insert(held.end(), blocks.begin(), blocks.end());
  }
  return held;
}

void NaiveModel::CheckWindows(const BlockManager& manager, SequenceSlot slot,
                              std::span<const int32_t> holders) const {
  const NaiveSequence& sequence = at(slot);
  size_t num_held = 0;
  for (const GroupBook& book : sequence.groups) num_held += book.Held().size();
  EXPECT_EQ(manager.NumBlocks(slot), num_held);
  if (num_groups() == 1 && layout_.window == 0) {
    EXPECT_EQ(manager.CountFalling(slot).num_own, 0);
    return;
  }
  const int32_t num_pages = CeilDiv(sequence.num_reserved, layout_.page_size);
  int32_t num_falling = 0;
  int32_t num_own_falling = 0;
  int32_t num_own_staying = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<BlockId> table;
    // What an order covers is its to give back.
    const std::optional<BookOrder>& order = sequence.groups[group].pending;
    const int32_t cut = order.has_value() ? order->cut : 0;
    const int32_t num_falls =
        order.has_value() ? order->length : sequence.num_reserved;
    const auto count = [&](BlockId block, bool falls, bool stays) {
      const bool is_own = holders[Index(block)] == 1;
      num_falling += falls ? 1 : 0;
      num_own_falling += falls && is_own ? 1 : 0;
      num_own_staying += stays && is_own ? 1 : 0;
    };
    for (int32_t i = 0; i < num_pages; ++i) {
      table.push_back(BlockAt(sequence, group, i));
      if (!IsInWindow(group, i, sequence.num_settled)) {
        EXPECT_EQ(table.back(), kNullBlock);
      }
      if (table.back() == kNullBlock || rules_.WindowOf(group) == 0) continue;
      const bool replaced = i * layout_.page_size < cut;
      count(table.back(), !IsInWindow(group, i, num_falls),
            !replaced && IsInWindow(group, i, sequence.num_reserved));
    }
    if (group == 0) continue;
    if (order.has_value()) {
      num_own_staying += static_cast<int32_t>(order->destinations.size());
    }
    const BookRegion& region = sequence.groups[group].region;
    const bool falls = !rules_.IsInWindow(region, group, num_falls);
    const bool stays = rules_.IsInWindow(region, group, sequence.num_reserved);
    for (const BlockId block : region.blocks) {
      count(block, falls, stays && !order.has_value());
    }
    EXPECT_EQ(BlocksByPage(manager.sequence(slot).groups[group]), table);
  }
  const FallingBlocks falling = manager.CountFalling(slot);
  EXPECT_EQ(falling.num_own, num_own_falling);
  EXPECT_EQ(falling.num_own + falling.num_shared, num_falling);
  EXPECT_EQ(manager.NumOwnInWindows(slot).num_blocks, num_own_staying);
}

bool NaiveModel::CanGoBack(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  if (num_tokens == 0) return true;
  if (num_tokens < sequence.cut()) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const GroupBook& book = sequence.groups[group];
    // What a query before that attends to is not all there.
    const bool is_before = num_tokens < book.region.length;
    if (rules_.WindowOf(group) > 0 && is_before) return false;
    if (!rules_.CanGoOn(book, group, num_tokens)) return false;
  }
  return true;
}

int32_t NaiveModel::NumFullBlocks(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  int32_t num_blocks = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    num_blocks +=
        static_cast<int32_t>(sequence.groups[group].region.blocks.size());
    for (int32_t i = 0; (i + 1) * layout_.page_size <= num_tokens; ++i) {
      num_blocks += BlockAt(sequence, group, i) != kNullBlock ? 1 : 0;
    }
  }
  return num_blocks;
}

void NaiveModel::Pop(NaiveSequence* sequence, int32_t num_tokens, bool seen) {
  for (NaiveGroup& group : sequence->groups) {
    for (const BlockId block : rules_.CutBack(num_tokens, &group)) {
      if (seen) Released(block);
    }
    group.values.resize(
        std::min(group.values.size(), static_cast<size_t>(num_tokens)));
  }
}

void NaiveModel::Write(const NaiveSequence& sequence, int32_t page) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    written_.try_emplace(
        BlockAt(sequence, group, page),
        Written{Prefix(sequence.tokens, page + 1), sequence.context, group});
  }
}

void NaiveModel::LeaveWindows(NaiveSequence* sequence) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BookCover left = rules_.LeaveWindow(group, sequence->num_settled,
                                              &sequence->groups[group]);
    for (const BlockId block : left.pages) Released(block);
    for (const BlockId block : left.region.blocks) Released(block);
    tally_->fallen_blocks += std::ssize(left.pages);
    tally_->fallen_regions += left.region.kept.empty() ? 0 : 1;
  }
}

void NaiveModel::CacheWindow(const NaiveSequence& sequence, BlockId block,
                             int32_t group, uint64_t of) {
  Entry entry;
  entry.scope = sequence.scope;
  entry.id = next_entry_++;
  entry.group = group;
  entry.of = of;
  EXPECT_TRUE(cached_.emplace(block, std::move(entry)).second);
}

void NaiveModel::PublishWindows(const NaiveSequence& sequence, int32_t page,
                                uint64_t of, int32_t cut) {
  const int32_t begin = page * layout_.page_size;
  const BlockId first = BlockAt(sequence, 0, page);
  for (int32_t group = 1; group < num_groups(); ++group) {
    const BlockId block = BlockAt(sequence, group, page);
    if (block == kNullBlock || cached_.contains(block)) continue;
    const std::optional<BookOrder>& pending = sequence.groups[group].pending;
    if (pending.has_value() && std::ranges::count(pending->own, block) > 0) {
      ++tally_->spared_windows;
      continue;
    }
    const auto one = std::ranges::find_if(cached_, [&](const auto& other) {
      return other.second.group == group && other.second.of == of;
    });
    if (one != cached_.end()) {
      ApplyWishes(sequence, {one->first, 0}, begin, begin + layout_.page_size,
                  cut);
      continue;
    }
    CacheWindow(sequence, block, group, of);
    ApplyWishes(sequence, {block, 0}, begin, begin + layout_.page_size, cut);
    const auto found = cached_.find(first);
    const bool own = found != cached_.end() && found->second.id == of;
    tally_->adopted_windows += own ? 0 : 1;
  }
}

bool NaiveModel::HasWindows(const NaiveSequence& sequence) const {
  const int32_t num_pages = CeilDiv(sequence.num_settled, layout_.page_size);
  for (int32_t group = 1; group < num_groups(); ++group) {
    const int32_t cut = sequence.groups[group].region.cut;
    for (int32_t i = cut / layout_.page_size; i < num_pages; ++i) {
      if (IsInWindow(group, i, sequence.num_settled) &&
          BlockAt(sequence, group, i) == kNullBlock) {
        return false;
      }
    }
  }
  return true;
}

void NaiveModel::LinkWindows(const NaiveSequence& sequence, int32_t length,
                             Region* region) {
  for (int32_t group = 1; group < num_groups(); ++group) {
    Window window = LinkWindowRegion(sequence, group);
    int32_t i = window.region.cut / layout_.page_size;
    for (; i < length / layout_.page_size; ++i) {
      if (!IsInWindow(group, i, length)) continue;
      const BlockId block = BlockAt(sequence, group, i);
      if (!cached_.contains(block)) {
        CacheWindow(sequence, block, group, 0);
        ApplyWishes(sequence, {block, 0}, 0, 0, sequence.cut());
        ++tally_->linked_alone;
      }
      window.pages[i] = {block, cached_.at(block).id};
    }
    region->windows[group] = std::move(window);
  }
}

std::vector<BlockId> NaiveModel::IdleWindowsOfRegions() const {
  const std::vector<int32_t> holders = Holders();
  std::vector<BlockId> blocks;
  for (const auto& [block, entry] : cached_) {
    if (entry.group > 0 && holders[Index(block)] == 0 && IsLinked(block)) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

bool NaiveModel::IsAlive(const Link& link) const {
  const auto found = cached_.find(link.first);
  return found != cached_.end() && found->second.id == link.second;
}

bool NaiveModel::IsComplete(const Region& region) const {
  for (const auto& [group, window] : region.windows) {
    for (const auto& [page, link] : window.pages) {
      if (!IsAlive(link)) return false;
    }
    if (window.id != 0 && !regions_.contains(window.id)) return false;
  }
  return true;
}

bool NaiveModel::IsLinked(BlockId block) const {
  for (const auto& [id, region] : regions_) {
    for (const auto& [group, window] : region.windows) {
      for (const auto& [page, link] : window.pages) {
        if (link.first == block && IsAlive(link)) return true;
      }
    }
  }
  return false;
}

bool NaiveModel::IsLinked(uint64_t region) const {
  for (const auto& [id, other] : regions_) {
    for (const auto& [group, window] : other.windows) {
      if (window.id == region) return true;
    }
  }
  return false;
}

BlockId NaiveModel::MatchedWindow(const PrefixMatch& match, int32_t group,
                                  int32_t page) const {
  const Region* region =
      match.region == PrefixCache::kNone
          ? nullptr
          : &regions_.at(static_cast<uint64_t>(match.region));
  const int32_t num_before =
      region == nullptr ? 0 : region->name.length / layout_.page_size - 1;
  if (page >= num_before) {
    const uint64_t of = cached_.at(match.blocks.at(page - num_before)).id;
    for (const auto& [block, entry] : cached_) {
      if (entry.group == group && entry.of == of) return block;
    }
  }
  if (region == nullptr) return kNullBlock;
  const std::map<int32_t, Link>& pages = region->windows.at(group).pages;
  const auto linked = pages.find(page);
  if (linked == pages.end()) return kNullBlock;
  return IsAlive(linked->second) ? linked->second.first : kNullBlock;
}

bool NaiveModel::FitsWindows(const PrefixMatch& match,
                             int32_t num_pages) const {
  for (int32_t group = 1; group < num_groups(); ++group) {
    const Window* const window =
        CachedWindowRegion(static_cast<uint64_t>(match.region), group,
                           num_pages * layout_.page_size);
    if (window != nullptr && window->id != 0 &&
        !regions_.contains(window->id)) {
      ++tally_->missing_window_regions;
      return false;
    }
    const int32_t cut = window == nullptr ? 0 : window->region.cut;
    for (int32_t i = cut / layout_.page_size; i < num_pages; ++i) {
      if (IsInWindow(group, i, num_pages * layout_.page_size) &&
          MatchedWindow(match, group, i) == kNullBlock) {
        return false;
      }
    }
  }
  return true;
}

bool NaiveModel::FitWindows(const std::vector<int32_t>& tokens,
                            NaiveMatch* match) const {
  const bool over = match->region != PrefixCache::kNone;
  const Region none;
  const Region& region =
      over ? regions_.at(static_cast<uint64_t>(match->region)) : none;
  const int32_t least = region.name.length / layout_.page_size;
  int32_t num_pages = match->num_tokens / layout_.page_size;
  while (num_pages >= least && !FitsWindows(*match, num_pages)) {
    --num_pages;
    match->is_shortened = true;
  }
  if (num_pages < least) return false;
  match->num_tokens = num_pages * layout_.page_size;
  match->blocks.resize(num_pages - (over ? least - 1 : 0));
  match->num_window_blocks = 0;
  for (int32_t group = 1; group < num_groups(); ++group) {
    const Window* const window = CachedWindowRegion(
        static_cast<uint64_t>(match->region), group, match->num_tokens);
    const BookRegion own = window == nullptr ? BookRegion() : window->region;
    const int32_t cut = own.cut;
    match->num_window_blocks += static_cast<int32_t>(own.blocks.size());
    for (int32_t i = cut / layout_.page_size; i < num_pages; ++i) {
      if (!IsInWindow(group, i, match->num_tokens)) continue;
      const BlockId block = MatchedWindow(*match, group, i);
      match->window_blocks.push_back(block);
      const Written& written = written_.at(block);
      EXPECT_EQ(written.group, group);
      EXPECT_EQ(written.prefix, Prefix(tokens, i + 1)) << "a false hit";
      if (i >= least) {
        EXPECT_EQ(written.context, over ? ContextOf(region.name) : "");
      }
      const bool before = i < least - 1;
      tally_->regions_with_windows += before ? 1 : 0;
    }
  }
  match->num_window_blocks += static_cast<int32_t>(match->window_blocks.size());
  if (layout_.window == 0) return true;
  for (int32_t i = 0; i < num_pages; ++i) {
    if (IsInWindow(0, i, match->num_tokens)) continue;
    match->blocks[i] = kNullBlock;
    ++match->num_out;
  }
  return true;
}

NaiveModel::Window NaiveModel::LinkWindowRegion(const NaiveSequence& sequence,
                                                int32_t group) {
  const BookRegion& own = sequence.groups[group].region;
  if (own.blocks.empty()) return {.region = own, .pages = {}};
  const uint64_t known = RegionWith(own.blocks.front());
  if (known != 0) {
    ++tally_->linked_window_regions;
    return {.region = own, .id = known, .pages = {}};
  }
  const uint64_t id = next_entry_++;
  Region region;
  region.group = group;
  region.book.blocks = own.blocks;
  regions_[id] = std::move(region);
  ApplyWishes(sequence, {kNullBlock, id}, 0, 0, sequence.cut());
  ++tally_->published_window_regions;
  return {.region = own, .id = id, .pages = {}};
}

const NaiveModel::Window* NaiveModel::CachedWindowRegion(
    uint64_t id, int32_t group, int32_t num_tokens) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return nullptr;
  const Window& window = found->second.windows.at(group);
  return rules_.IsInWindow(window.region, group, num_tokens) ? &window
                                                             : nullptr;
}

void NaiveModel::OpenWindowRegion(const PrefixMatch& match, int32_t group,
                                  NaiveSequence* sequence) {
  if (match.region == PrefixCache::kNone) return;
  const auto id = static_cast<uint64_t>(match.region);
  if (regions_.at(id).windows.at(group).region.kept.empty()) return;
  sequence->was_evicted_in_windows = true;
  const Window* const window = CachedWindowRegion(id, group, match.num_tokens);
  if (window == nullptr) {
    ++tally_->passed_window_regions;
    return;
  }
  ++tally_->found_window_regions;
  sequence->groups[group].region = window->region;
  if (window->id == 0) return;
  Use({kNullBlock, window->id});
  ApplyWishes(*sequence, {kNullBlock, window->id}, 0, 0, sequence->cut());
}

}  // namespace blockmgr
