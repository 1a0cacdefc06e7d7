#include "tests/blockmgr/naive_model.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {

NaiveModel::NaiveModel(const ModelLayout& layout, bool caching)
    : layout_(layout),
      caching_(caching),
      touched_(layout.num_blocks, 0),
      released_(layout.num_blocks, 0) {}

std::vector<int32_t> NaiveModel::Holders() const {
  std::vector<int32_t> holders(layout_.num_blocks, 0);
  for (const auto& [slot, sequence] : sequences_) {
    for (const BlockId block : sequence.tail) ++holders[Index(block)];
    for (const BlockId block : sequence.region_blocks) ++holders[Index(block)];
    if (!sequence.pending.has_value()) continue;
    for (const BlockId block : sequence.pending->fresh) {
      ++holders[Index(block)];
    }
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
    EXPECT_EQ(product.tail, sequence.tail);
    EXPECT_EQ(product.cut(), sequence.cut);
    EXPECT_EQ(product.num_reserved, sequence.num_reserved);
    EXPECT_EQ(product.num_settled, sequence.num_settled);
    EXPECT_EQ(product.pending.has_value(), sequence.pending.has_value());
    EXPECT_EQ(std::ssize(product.tail),
              CeilDiv(sequence.num_reserved - sequence.cut, layout_.page_size));
    EXPECT_EQ(manager.NumReleasable(slot), NumReleasable(slot));
  }
}

void NaiveModel::CheckRegion(const BlockManager& manager,
                             SequenceSlot slot) const {
  const NaiveSequence& sequence = at(slot);
  const SequenceCache& product = manager.sequence(slot);
  ASSERT_EQ(product.region != nullptr, !sequence.kept.empty());
  if (product.region == nullptr) return;
  EXPECT_EQ(product.region->blocks, sequence.region_blocks);
  EXPECT_EQ(product.region->kept, sequence.kept);
  const RaggedRegion region = manager.DeriveRegion(slot);
  EXPECT_EQ(PagesOf(layout_, region), sequence.pages);
  EXPECT_EQ(region.cut(), sequence.cut);
  for (int32_t i = 0; i < layout_.pages_per_block(); ++i) {
    EXPECT_EQ(std::ssize(region.pages(i)),
              CeilDiv(sequence.kept[i], layout_.page_size));
  }
}

std::vector<int32_t> NaiveModel::Prefix(const std::vector<int32_t>& tokens,
                                        int32_t num_blocks) const {
  return {tokens.begin(),
          tokens.begin() + int64_t{num_blocks} * layout_.page_size};
}

PrefixMatch NaiveModel::Match(int32_t scope, const std::vector<int32_t>& tokens,
                              int32_t max_tokens,
                              const RegionQuery* query) const {
  PrefixMatch match;
  const std::vector<int32_t> holders = Holders();
  const int32_t page_size = layout_.page_size;
  int32_t limit = std::min(max_tokens, static_cast<int32_t>(tokens.size()));
  // Blocks after the first num_pages ones, which end with entry `parent`.
  const auto extend = [&](int32_t num_pages, uint64_t parent,
                          const std::string& context) {
    for (int32_t i = num_pages + 1; i * page_size <= limit; ++i) {
      const auto found = by_content_.find({scope, parent, Prefix(tokens, i)});
      if (found == by_content_.end()) break;
      parent = cached_.at(found->second).id;
      match.blocks.push_back(found->second);
      EXPECT_EQ(written_.at(found->second),
                std::pair(Prefix(tokens, i), context))
          << "a false hit";
    }
  };
  extend(0, 1, "");
  match.num_tokens = static_cast<int32_t>(match.blocks.size()) * page_size;
  const uint64_t id = query == nullptr ? 0 : MatchRegion(scope, tokens, *query);
  if (id != 0) {
    const Region& region = regions_.at(id);
    const std::vector<BlockId> plain = std::move(match.blocks);
    limit = std::min(query->max_tokens_over(region.name.length),
                     static_cast<int32_t>(tokens.size()));
    match.blocks = {region.tail};
    EXPECT_EQ(written_.at(region.tail).first, region.tokens);
    extend(region.name.length / page_size, id, ContextOf(region.name));
    const int32_t num_tokens =
        region.name.length +
        static_cast<int32_t>(match.blocks.size() - 1) * page_size;
    if (num_tokens >= match.num_tokens) {
      match.num_tokens = num_tokens;
      match.region = static_cast<int32_t>(id);
    } else {
      match.blocks = plain;
    }
  }
  std::vector<BlockId> all = match.blocks;
  if (match.region != PrefixCache::kNone) {
    const std::vector<BlockId>& more = regions_.at(id).blocks;
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const BlockId block : all) {
    if (holders[Index(block)] == 0 &&
        released_[Index(block)] <= acknowledged_) {
      ++match.num_reclaimable;
    }
  }
  return match;
}

void NaiveModel::Open(SequenceSlot slot, NaiveSequence sequence,
                      const PrefixMatch& match) {
  const int32_t page_size = layout_.page_size;
  sequence.tail = match.blocks;
  if (match.region != PrefixCache::kNone) {
    const auto id = static_cast<uint64_t>(match.region);
    const Region& region = regions_.at(id);
    sequence.cut = region.name.length - page_size;
    sequence.region_blocks = region.blocks;
    sequence.kept = region.kept;
    sequence.pages = region.pages;
    sequence.context = ContextOf(region.name);
    sequence.lineage = region.lineage;
    sequence.chain = id;
    line_.erase({kNullBlock, id});
    for (const BlockId block : region.blocks) left_.erase(block);
    if (region.superseded) regions_.at(id).retention = {};
    regions_.at(id).superseded = false;
    ApplyWishes(sequence, {kNullBlock, id}, 0, 0, sequence.cut);
  }
  const bool over = match.region != PrefixCache::kNone;
  for (size_t i = 0; i < match.blocks.size(); ++i) {
    const BlockId block = match.blocks[i];
    const int32_t begin = sequence.cut + static_cast<int32_t>(i) * page_size;
    left_.erase(block);
    line_.erase({block, 0});
    if (cached_.at(block).superseded) cached_.at(block).retention = {};
    cached_.at(block).superseded = false;
    if (begin + page_size > match.num_tokens) continue;  // a part of it
    ApplyWishes(sequence, {block, 0}, begin, begin + page_size,
                over && i == 0 ? begin : 0);
    if (!over || i > 0) sequence.chain = cached_.at(block).id;
  }
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  sequence.num_found = match.num_tokens - match.num_tokens % page_size;
  sequence.num_offered = match.num_tokens / page_size;
  sequence.values.resize(match.num_tokens);
  for (int32_t i = sequence.cut; i < match.num_tokens; ++i) {
    const BlockId block = match.blocks[(i - sequence.cut) / page_size];
    sequence.values[i] = rows_.at({block, i % page_size});
  }
  EXPECT_TRUE(sequences_.emplace(slot, std::move(sequence)).second);
}

int32_t NaiveModel::BlocksNeeded(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  int32_t blocks = 0;
  for (int32_t i = 0; i < num_tokens; ++i) {
    const int32_t place = sequence.num_reserved + i - sequence.cut;
    if (place % layout_.page_size == 0) ++blocks;
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

Retention& NaiveModel::RetentionOf(const EntryName& entry) {
  return entry.second == 0 ? cached_.at(entry.first).retention
                           : regions_.at(entry.second).retention;
}

uint64_t& NaiveModel::WishOf(const EntryName& entry) {
  return entry.second == 0 ? cached_.at(entry.first).wish
                           : regions_.at(entry.second).wish;
}

void NaiveModel::Line() {
  const std::vector<int32_t> holders = Holders();
  std::map<uint64_t, EntryName> by_age;
  const auto add = [&](const EntryName& entry, BlockId block) {
    if (holders[Index(block)] > 0) return;
    if (released_[Index(block)] > acknowledged_) return;
    if (!line_.contains(entry)) by_age[left_.at(block)] = entry;
  };
  for (const auto& [block, entry] : cached_) add({block, 0}, block);
  for (const auto& [id, region] : regions_) {
    add({kNullBlock, id}, region.blocks.front());
  }
  for (const auto& [age, entry] : by_age) line_[entry] = next_in_line_++;
}

void NaiveModel::SetTime(int64_t now_ms) {
  std::map<std::tuple<int64_t, uint64_t, EntryName>, Retention*> expired;
  const auto look = [&](const EntryName& entry) {
    Retention& retention = RetentionOf(entry);
    if (retention.expires_ms <= now_ms) {
      expired[{retention.expires_ms, WishOf(entry), entry}] = &retention;
    }
  };
  for (const auto& [block, entry] : cached_) look({block, 0});
  for (const auto& [id, region] : regions_) look({kNullBlock, id});
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
  Retention& retention = RetentionOf(entry);
  retention = wish->retention;
  if (entry.second == 0) {
    cached_.at(entry.first).superseded = false;
  } else {
    regions_.at(entry.second).superseded = false;
  }
  WishOf(entry) = next_wish_++;
  if (retention.expires_ms <= now_ms_) retention = {};
}

int32_t NaiveModel::HandOut(std::span<const BlockId> blocks, int32_t num_free) {
  int32_t num_reclaimed = 0;
  const std::vector<EntryName> order = Reclaimable();
  for (const EntryName& entry : order) {
    if (num_free + num_reclaimed >= std::ssize(blocks)) break;
    if (entry.second == 0) {
      ++num_reclaimed;
      Uncache(entry.first);
    } else {
      num_reclaimed +=
          static_cast<int32_t>(regions_.at(entry.second).blocks.size());
      DropRegion(entry.second);
    }
  }
  EXPECT_GE(num_free + num_reclaimed, std::ssize(blocks));
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
  return num_reclaimed;
}

void NaiveModel::Reserve(SequenceSlot slot, int32_t num_tokens,
                         std::span<const BlockId> blocks) {
  NaiveSequence& sequence = at(slot);
  const std::optional<BlockId> part = PartBlock(sequence);
  if (num_tokens > 0 && sequence.num_reserved == sequence.num_settled) {
    sequence.was_writer = !part.has_value() || IsWriter(slot, *part);
  }
  if (num_tokens > 0 && part.has_value()) {
    writers_[*part] = slot;
    written_.erase(*part);
  }
  for (const BlockId block : blocks) writers_[block] = slot;
  sequence.num_reserved += num_tokens;
  sequence.tail.insert(sequence.tail.end(), blocks.begin(), blocks.end());
}

void NaiveModel::Abort(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  for (int32_t i = 0; i < num_tokens; ++i) {
    --sequence.num_reserved;
    const int32_t place = sequence.num_reserved - sequence.cut;
    if (place % layout_.page_size == 0) sequence.tail.pop_back();
  }
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
    const BlockId block =
        sequence->tail[(begin - sequence->cut) / layout_.page_size];
    if (sequence->pending.has_value() &&
        std::ranges::count(sequence->pending->own, block) > 0) {
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
      ApplyWishes(*sequence, {block, 0}, begin, begin + layout_.page_size);
    }
    sequence->chain = cached_.at(found->second).id;
    ++sequence->num_offered;
  }
}

void NaiveModel::Commit(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  const int32_t num_full_before = sequence.num_settled / layout_.page_size;
  sequence.num_settled += num_tokens;
  sequence.was_writer |= num_tokens > 0;
  const int32_t num_full = sequence.num_settled / layout_.page_size;
  for (int32_t i = num_full_before; i < num_full; ++i) {
    const int32_t in_tail = i - sequence.cut / layout_.page_size;
    written_.try_emplace(
        sequence.tail[in_tail],
        std::pair(Prefix(sequence.tokens, i + 1), sequence.context));
  }
  if (caching_) Publish(&sequence);
}

void NaiveModel::Released(BlockId block) {
  // Whoever holds it still will release it later, under a later fence.
  released_[Index(block)] = dispatched_;
  left_[block] = next_left_++;
}

void NaiveModel::Close(SequenceSlot slot) {
  if (at(slot).pending.has_value()) AbortEviction(slot);
  Return(slot);
  std::erase_if(writers_, [slot = slot](const auto& writer) {
    return writer.second == slot;
  });
  const NaiveSequence sequence = std::move(at(slot));
  sequences_.erase(slot);
  for (auto block = sequence.tail.rbegin(); block != sequence.tail.rend();
       ++block) {
    Released(*block);
  }
  for (const BlockId block : sequence.region_blocks) Released(block);
}

void NaiveModel::Uncache(BlockId block) {
  by_content_.erase(ContentOf(cached_.at(block)));
  cached_.erase(block);
  line_.erase({block, 0});
}

void NaiveModel::Dispatch(uint64_t step) {
  dispatched_ = step;
  const std::vector<int32_t> holders = Holders();
  for (int32_t i = 0; i < layout_.num_blocks; ++i) {
    if (holders[i] > 0) touched_[i] = step;
  }
  for (const CopyOnWrite& copy : copies_) Released(copy.blocks.source);
  copies_.clear();
}

void NaiveModel::Acknowledge(uint64_t step) {
  acknowledged_ = step;
  if (!has_steps_in_flight()) fences_are_bounds_ = false;
}

void NaiveModel::ResetPrefixCache() {
  const std::vector<int32_t> holders = Holders();
  std::vector<BlockId> unused;
  for (const auto& [block, entry] : cached_) {
    if (holders[Index(block)] == 0) unused.push_back(block);
  }
  for (const BlockId block : unused) Uncache(block);
  std::vector<uint64_t> unused_regions;
  for (const auto& [id, region] : regions_) {
    if (holders[Index(region.blocks.front())] == 0) {
      unused_regions.push_back(id);
    }
  }
  for (const uint64_t id : unused_regions) DropRegion(id);
  fences_are_bounds_ = has_steps_in_flight();
}

void NaiveModel::LoseEngine() {
  EXPECT_TRUE(sequences_.empty());
  Acknowledge(dispatched_);
  ResetPrefixCache();
}

}  // namespace blockmgr
