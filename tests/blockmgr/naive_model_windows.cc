// What NaiveModel knows of layer groups with a window.

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

int32_t NaiveModel::WindowOf(int32_t group) const {
  return group == 0 ? layout_.window : layout_.group_windows.at(group - 1);
}

bool NaiveModel::IsInWindow(int32_t group, int32_t page,
                            int32_t num_tokens) const {
  return !rules_.IsOut(group, page, num_tokens);
}

BlockId NaiveModel::BlockAt(const NaiveSequence& sequence, int32_t group,
                            int32_t page) const {
  const std::vector<BlockId>& pages = sequence.groups[group].pages;
  return page < std::ssize(pages) ? pages[page] : kNullBlock;
}

std::vector<BlockId> NaiveModel::Held(const NaiveSequence& sequence) const {
  std::vector<BlockId> held;
  for (const auto& [pages, region] : sequence.groups) {
    held.insert(held.end(), region.blocks.begin(), region.blocks.end());
    held.insert(held.end(), pages.begin(), pages.end());
  }
  std::erase(held, kNullBlock);
  return held;
}

void NaiveModel::CheckWindows(const BlockManager& manager, SequenceSlot slot,
                              std::span<const int32_t> holders) const {
  const NaiveSequence& sequence = at(slot);
  EXPECT_EQ(manager.NumBlocks(slot), std::ssize(Held(sequence)));
  if (num_groups() == 1 && layout_.window == 0) {
    EXPECT_EQ(manager.NumFalling(slot), 0);
    return;
  }
  const int32_t num_pages = CeilDiv(sequence.num_reserved, layout_.page_size);
  int32_t num_falling = 0;
  int32_t num_own_falling = 0;
  int32_t num_own_staying = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    std::vector<BlockId> table;
    // What an order covers is its to give back.
    const auto pending = sequence.window_pending.find(group);
    const bool has_order = pending != sequence.window_pending.end();
    const int32_t cut = has_order ? pending->second.cut : 0;
    const int32_t num_falls =
        has_order ? pending->second.length : sequence.num_reserved;
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
      if (table.back() == kNullBlock || WindowOf(group) == 0) continue;
      const bool replaced = i * layout_.page_size < cut;
      count(table.back(), !IsInWindow(group, i, num_falls),
            !replaced && IsInWindow(group, i, sequence.num_reserved));
    }
    if (has_order) {
      num_own_staying += static_cast<int32_t>(pending->second.own.size() +
                                              pending->second.fresh.size());
    }
    if (group > 0) {
      const BookRegion& region = sequence.groups[group].region;
      const bool falls = !rules_.IsInWindow(region, group, num_falls);
      const bool stays =
          rules_.IsInWindow(region, group, sequence.num_reserved);
      for (const BlockId block : region.blocks) {
        count(block, falls, stays && !has_order);
      }
    }
    EXPECT_EQ(BlocksByPage(manager.sequence(slot).groups[group]), table);
  }
  EXPECT_EQ(manager.NumFalling(slot), num_own_falling);
  EXPECT_EQ(manager.NumFallingOrShared(slot), num_falling);
  EXPECT_EQ(manager.NumOwnInWindows(slot).num_blocks, num_own_staying);
}

bool NaiveModel::CanGoBack(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  if (num_tokens == 0) return true;
  if (num_tokens < sequence.cut()) return false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const int32_t window = WindowOf(group);
    if (window == 0) continue;
    const BookRegion& region = sequence.groups[group].region;
    if (!region.kept.empty()) {
      // What a query before that attends to is not all there.
      if (num_tokens < region.length) return false;
      continue;
    }
    for (int32_t i = std::max(0, num_tokens - window + 1); i <= num_tokens;
         ++i) {
      const int32_t page = i / layout_.page_size;
      const bool was_there = page * layout_.page_size < sequence.num_settled;
      if (was_there && BlockAt(sequence, group, page) == kNullBlock) {
        return false;
      }
    }
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
  for (GroupBook& book : sequence->groups) {
    for (const BlockId block : rules_.CutBack(num_tokens, &book)) {
      if (seen) Released(block);
    }
  }
  const auto num_values =
      std::min(sequence->values.size(), static_cast<size_t>(num_tokens));
  sequence->values.resize(num_values);
  for (std::vector<uint64_t>& values : sequence->window_values) {
    values.resize(num_values);
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
    const auto pending = sequence.window_pending.find(group);
    if (pending != sequence.window_pending.end() &&
        std::ranges::count(pending->second.own, block) > 0) {
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
  std::vector<std::map<int32_t, Link>> links(layout_.group_windows.size());
  for (int32_t group = 1; group < num_groups(); ++group) {
    region->window_regions.push_back(LinkWindowRegion(sequence, group));
    const int32_t cut = region->window_regions.back().first.cut;
    for (int32_t i = 0; i < length / layout_.page_size; ++i) {
      if (i * layout_.page_size < cut) continue;
      if (!IsInWindow(group, i, length)) continue;
      const BlockId block = BlockAt(sequence, group, i);
      if (!cached_.contains(block)) {
        CacheWindow(sequence, block, group, 0);
        ApplyWishes(sequence, {block, 0}, 0, 0, sequence.cut());
        ++tally_->linked_alone;
      }
      links[group - 1][i] = {block, cached_.at(block).id};
    }
  }
  region->windows = std::move(links);
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
  for (const std::map<int32_t, Link>& window : region.windows) {
    for (const auto& [page, link] : window) {
      if (!IsAlive(link)) return false;
    }
  }
  for (const auto& [window, linked] : region.window_regions) {
    if (!window.blocks.empty() && !regions_.contains(linked)) return false;
  }
  return true;
}

bool NaiveModel::IsLinked(BlockId block) const {
  for (const auto& [id, region] : regions_) {
    for (const std::map<int32_t, Link>& window : region.windows) {
      for (const auto& [page, link] : window) {
        if (link.first == block && IsAlive(link)) return true;
      }
    }
  }
  return false;
}

void NaiveModel::DropOrphan(BlockId block) {
  const bool used = Holders()[Index(block)] > 0;
  const bool waits = !used && released_[Index(block)] > acknowledged_;
  ++tally_->orphans;
  tally_->orphans_in_use += used ? 1 : 0;
  tally_->orphans_in_fence += waits ? 1 : 0;
  fences_are_bounds_ |= waits;
  Uncache(block);
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
  const auto linked = region->windows.at(group - 1).find(page);
  if (linked == region->windows.at(group - 1).end()) return kNullBlock;
  return IsAlive(linked->second) ? linked->second.first : kNullBlock;
}

bool NaiveModel::FitsWindows(const PrefixMatch& match,
                             int32_t num_pages) const {
  for (int32_t group = 1; group < num_groups(); ++group) {
    const auto* window =
        CachedWindowRegion(static_cast<uint64_t>(match.region), group,
                           num_pages * layout_.page_size);
    int32_t first = 0;
    if (window != nullptr) {
      const auto& [region, id] = *window;
      if (!region.blocks.empty() && !regions_.contains(id)) {
        ++tally_->missing_window_regions;
        return false;
      }
      first = region.cut / layout_.page_size;
    }
    for (int32_t i = first; i < num_pages; ++i) {
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
    const auto* window = CachedWindowRegion(
        static_cast<uint64_t>(match->region), group, match->num_tokens);
    const int32_t cut = window == nullptr ? 0 : window->first.cut;
    if (window != nullptr) {
      match->num_window_blocks +=
          static_cast<int32_t>(window->first.blocks.size());
    }
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

}  // namespace blockmgr
