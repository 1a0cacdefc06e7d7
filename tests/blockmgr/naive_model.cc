#include "tests/blockmgr/naive_model.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {

NaiveModel::NaiveModel(const ModelLayout& layout, bool caching,
                       int32_t num_host_blocks, NaiveTally* tally)
    : layout_(layout),
      rules_(layout),
      caching_(caching),
      num_host_blocks_(num_host_blocks),
      tally_(tally),
      touched_(layout.num_blocks, 0),
      released_(layout.num_blocks, 0) {}

std::vector<int32_t> NaiveModel::Holders() const {
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  for (const auto& [slot, sequence] : sequences_) {
    for (const BlockId block : Held(sequence)) ++holders[Index(block)];
  }
  for (const CopyOnWrite& copy : copies_) {
    ++holders[Index(copy.blocks.source)];
  }
  return holders;
}

void NaiveModel::Check(const BlockManager& manager) const {
  const std::vector<int32_t> holders = Holders();
  int32_t used = 0;
  int32_t cached = 0;
  int32_t reclaimable = 0;
  int32_t safe = 0;    // no step in flight can touch them
  int32_t unseen = 0;  // no step was in flight when they were released
  for (int32_t i = 1; i < layout_.num_blocks; ++i) {
    const bool is_cached = IsCached(BlockId{i});
    const bool past = released_[i] <= acknowledged_;
    if (holders[i] > 0) {
      ++used;
    } else if (is_cached) {
      ++cached;
      reclaimable += past ? 1 : 0;
    } else {
      safe += touched_[i] <= acknowledged_ ? 1 : 0;
      unseen += past ? 1 : 0;
    }
  }
  const BlockManagerStats stats = manager.stats();
  EXPECT_EQ(stats.num_blocks, layout_.num_blocks);
  EXPECT_EQ(stats.used_blocks, used);
  EXPECT_EQ(stats.cached_blocks, cached);
  EXPECT_EQ(stats.free_blocks + stats.fenced_blocks + used + cached,
            layout_.num_blocks - 1);
  EXPECT_LE(stats.free_blocks, safe);
  if (fences_are_bounds_) {
    EXPECT_LE(stats.free_blocks, unseen);
  } else {
    EXPECT_EQ(stats.free_blocks, unseen);
  }
  EXPECT_EQ(manager.num_available(), stats.free_blocks + reclaimable);
  EXPECT_EQ(manager.num_available() + manager.num_fenced() + used,
            layout_.num_blocks - 1);

  for (const auto& [slot, sequence] : sequences_) {
    const SequenceCache& product = manager.sequence(slot);
    EXPECT_TRUE(product.open);
    const std::vector<BlockId>& pages = sequence.groups[0].pages;
    EXPECT_EQ(product.cut(), sequence.cut());
    EXPECT_EQ(product.num_reserved, sequence.num_reserved);
    EXPECT_EQ(product.num_settled, sequence.num_settled);
    for (int32_t group = 0; group < num_groups(); ++group) {
      EXPECT_EQ(product.groups[group].pending != nullptr,
                sequence.groups[group].pending.has_value());
    }
    EXPECT_EQ(std::ssize(pages),
              CeilDiv(sequence.num_reserved, layout_.page_size));
    EXPECT_EQ(manager.NumReleasable(slot), NumReleasable(slot));
    CheckWindows(manager, slot, holders);
  }
  CheckHost(manager);
}

void NaiveModel::CheckRegions(const BlockManager& manager,
                              SequenceSlot slot) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BookRegion& region = at(slot).groups[group].region;
    const RegionRecord* const product =
        manager.sequence(slot).groups[group].region.get();
    ASSERT_EQ(product != nullptr, !region.kept.empty());
    if (product == nullptr) continue;
    EXPECT_EQ(product->blocks, region.blocks);
    EXPECT_EQ(product->kept, region.kept);
    EXPECT_EQ(product->cut, region.cut);
    if (group > 0) {
      EXPECT_EQ(manager.sequence(slot).groups[group].region_length,
                region.length);
    }
    const RaggedRegion derived = manager.DeriveRegion(slot, group);
    EXPECT_EQ(PagesOf(layout_, derived), region.pages);
    EXPECT_EQ(derived.cut(), region.cut);
    for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
      EXPECT_EQ(std::ssize(derived.pages(i)),
                CeilDiv(region.kept[i], layout_.page_size));
    }
  }
}

std::vector<int32_t> NaiveModel::Prefix(const std::vector<int32_t>& tokens,
                                        int32_t num_blocks) const {
  return {tokens.begin(),
          tokens.begin() + int64_t{num_blocks} * layout_.page_size};
}

int32_t NaiveModel::BlocksNeeded(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  int32_t blocks = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    for (int32_t i = 0; i < num_tokens; ++i) {
      const int32_t place = sequence.num_reserved + i;
      if (place % layout_.page_size == 0) ++blocks;
    }
  }
  return blocks;
}

std::vector<NaiveModel::EntryName> NaiveModel::Reclaimable() const {
  std::map<std::pair<int32_t, uint64_t>, EntryName> in_order;
  for (const auto& [entry, place] : line_) {
    const auto& [block, id] = entry;
    const Retention& retention =
        id == 0 ? cached_.at(block).retention : regions_.at(id).retention;
    in_order[{retention.priority, place}] = entry;
  }
  std::vector<EntryName> entries;
  entries.reserve(in_order.size());
  for (const auto& [order, entry] : in_order) entries.push_back(entry);
  return entries;
}

std::vector<NaiveModel::EntryName> NaiveModel::Entries() const {
  std::vector<EntryName> entries;
  for (const auto& [block, entry] : cached_) entries.emplace_back(block, 0);
  for (const auto& [id, region] : regions_) {
    entries.emplace_back(kNullBlock, id);
  }
  return entries;
}

BlockId NaiveModel::FirstOf(const EntryName& entry) const {
  return entry.second == 0 ? entry.first
                           : regions_.at(entry.second).book.blocks.front();
}

NaiveModel::Wished& NaiveModel::At(const EntryName& entry) {
  if (entry.second == 0) return cached_.at(entry.first);
  return regions_.at(entry.second);
}

void NaiveModel::Use(const EntryName& entry) {
  line_.erase(entry);
  if (entry.second == 0) left_.erase(entry.first);
  if (entry.second != 0) {
    for (const BlockId block : regions_.at(entry.second).book.blocks) {
      left_.erase(block);
    }
  }
  Wished& wished = At(entry);
  if (wished.superseded) wished.retention = {};
  wished.superseded = false;
}

void NaiveModel::Line() {
  num_freed_ = 0;
  const std::vector<int32_t> holders = Holders();
  std::map<uint64_t, EntryName> by_age;
  for (const EntryName& entry : Entries()) {
    const BlockId block = FirstOf(entry);
    if (holders[Index(block)] > 0 || line_.contains(entry)) continue;
    if (released_[Index(block)] > acknowledged_) continue;
    by_age[left_.at(block)] = entry;
  }
  for (const auto& [age, entry] : by_age) line_[entry] = next_in_line_++;
}

void NaiveModel::SetTime(int64_t now_ms) {
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

void NaiveModel::ApplyWishes(const NaiveSequence& sequence,
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

int32_t NaiveModel::HandOut(std::span<const BlockId> blocks, int32_t num_free) {
  const int32_t num_freed_before = num_freed_;
  const std::vector<EntryName> order = Reclaimable();
  for (const EntryName& entry : order) {
    if (num_free + num_freed_ >= std::ssize(blocks)) break;
    if (!line_.contains(entry)) continue;  // it went with another
    if (entry.second != 0) {
      tally_->reclaimed_window_regions +=
          regions_.at(entry.second).group > 0 ? 1 : 0;
    } else {
      tally_->reclaimed_alone += cached_.at(entry.first).group > 0 ? 1 : 0;
    }
    Drop(entry);
  }
  EXPECT_GE(num_free + num_freed_, std::ssize(blocks));
  const std::vector<int32_t> holders = Holders();
  std::set<BlockId> once;
  for (const BlockId block : blocks) {
    EXPECT_GT(Index(block), 0);
    EXPECT_LT(Index(block), layout_.num_blocks);
    EXPECT_TRUE(once.insert(block).second);
    EXPECT_EQ(holders[Index(block)], 0);
    EXPECT_FALSE(IsCached(block));
    EXPECT_LE(touched_[Index(block)], acknowledged_)
        << "a step in flight may touch the block";
    written_.erase(block);
    writers_.erase(block);
    for (int32_t i = 0; i < layout_.page_size; ++i) rows_.erase({block, i});
  }
  return num_freed_ - num_freed_before;
}

void NaiveModel::Reserve(SequenceSlot slot, int32_t num_tokens,
                         std::span<const BlockId> blocks) {
  NaiveSequence& sequence = at(slot);
  const std::vector<BlockId> parts = PartBlocks(sequence);
  if (num_tokens > 0 && sequence.num_reserved == sequence.num_settled) {
    sequence.was_writer = parts.empty() || IsWriter(slot, parts.front());
  }
  for (const BlockId part : parts) {
    if (num_tokens == 0) break;
    writers_[part] = slot;
    written_.erase(part);
  }
  for (const BlockId block : blocks) writers_[block] = slot;
  const size_t count = blocks.size() / sequence.groups.size();
  for (size_t i = 0; i < blocks.size(); ++i) {
    sequence.groups[i / count].pages.push_back(blocks[i]);
  }
  sequence.num_reserved += num_tokens;
}

void NaiveModel::Abort(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  sequence.num_reserved -= num_tokens;
  Pop(&sequence, sequence.num_reserved, false);
  if (num_tokens > 0 && sequence.num_reserved == sequence.num_settled) {
    Return(slot);
  }
}

bool NaiveModel::WillPublish(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  return caching_ && sequence.chain != 0 &&
         sequence.num_settled + num_tokens >=
             (sequence.num_offered + 1) * layout_.page_size;
}

void NaiveModel::Publish(NaiveSequence* sequence) {
  while (sequence->chain != 0 &&
         (sequence->num_offered + 1) * layout_.page_size <=
             sequence->num_settled) {
    const int32_t begin = sequence->num_offered * layout_.page_size;
    const BlockId block = sequence->groups[0].pages[sequence->num_offered];
    const std::optional<BookOrder>& pending = sequence->groups[0].pending;
    if (pending.has_value() && std::ranges::count(pending->own, block) > 0) {
      sequence->chain = 0;
      return;
    }
    Entry entry;
    entry.prefix = Prefix(sequence->tokens, sequence->num_offered + 1);
    entry.scope = sequence->scope;
    entry.parent = sequence->chain;
    const auto [found, is_new] =
        by_content_.try_emplace(ContentOf(entry), block);
    if (is_new) {
      EXPECT_FALSE(IsCached(block));
      entry.id = next_entry_++;
      cached_[block] = std::move(entry);
    }
    ApplyWishes(*sequence, {found->second, 0}, begin,
                begin + layout_.page_size);
    sequence->chain = cached_.at(found->second).id;
    PublishWindows(*sequence, sequence->num_offered, sequence->chain, 0);
    ++sequence->num_offered;
  }
}

void NaiveModel::Commit(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  const int32_t num_full_before = sequence.num_settled / layout_.page_size;
  sequence.num_settled += num_tokens;
  sequence.was_writer |= num_tokens > 0;
  const int32_t num_full = sequence.num_settled / layout_.page_size;
  for (int32_t i = num_full_before; i < num_full; ++i) Write(sequence, i);
  if (caching_) Publish(&sequence);
  LeaveWindows(&sequence);
}

void NaiveModel::Released(BlockId block) {
  // Whoever holds it still will release it later, under a later fence.
  released_[Index(block)] = dispatched_;
  left_[block] = next_left_++;
}

void NaiveModel::Close(SequenceSlot slot) {
  for (int32_t group = 0; group < num_groups(); ++group) {
    AbortEviction(slot, group);
  }
  Return(slot);
  std::erase_if(writers_, [slot = slot](const auto& writer) {
    return writer.second == slot;
  });
  NaiveSequence sequence = std::move(at(slot));
  sequences_.erase(slot);
  Pop(&sequence, 0, true);
  for (const GroupBook& book : sequence.groups) {
    for (const BlockId block : book.region.blocks) Released(block);
  }
}

void NaiveModel::Drop(const EntryName& entry) {
  if (cached_.contains(entry.first)) Uncache(entry.first);
  if (regions_.contains(entry.second)) DropRegion(entry.second);
}

void NaiveModel::Uncache(BlockId block) {
  const Entry entry = std::move(cached_.at(block));
  cached_.erase(block);
  num_freed_ += line_.erase({block, 0}) > 0 ? 1 : 0;
  if (entry.group > 0) return;
  by_content_.erase(ContentOf(entry));
  std::vector<BlockId> orphans;
  for (auto& [other, window] : cached_) {
    if (window.group == 0 || window.of != entry.id) continue;
    window.of = 0;
    if (!IsLinked(other)) orphans.push_back(other);
  }
  for (const BlockId orphan : orphans) DropOrphan({orphan, 0});
}

void NaiveModel::Dispatch(uint64_t step) {
  dispatched_ = step;
  const std::vector<int32_t> holders = Holders();
  for (int32_t i = 0; i < layout_.num_blocks; ++i) {
    if (holders[i] > 0) touched_[i] = step;
  }
  for (const CopyOnWrite& copy : copies_) Released(copy.blocks.source);
  copies_.clear();
  for (const SwapId swap : leaving_swaps_) DropSwapped(swap);
  leaving_swaps_.clear();
}

void NaiveModel::Acknowledge(uint64_t step) {
  acknowledged_ = step;
  if (!has_steps_in_flight()) fences_are_bounds_ = false;
}

void NaiveModel::ResetPrefixCache() {
  const std::vector<int32_t> holders = Holders();
  std::vector<EntryName> unused = Entries();
  std::erase_if(unused, [&](const EntryName& entry) {
    return holders[Index(FirstOf(entry))] > 0;
  });
  for (const EntryName& entry : unused) Drop(entry);
  fences_are_bounds_ = has_steps_in_flight();
}

void NaiveModel::LoseEngine() {
  EXPECT_TRUE(sequences_.empty());
  Acknowledge(dispatched_);
  ResetPrefixCache();
  swaps_.clear();
  host_released_.clear();
}

}  // namespace blockmgr
