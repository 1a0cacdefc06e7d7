#include "tests/blockmgr/naive_model.h"

#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/testing/block_tables.h"

namespace blockmgr {

NaiveModel::NaiveModel(const ModelLayout& layout, bool caching,
                       int32_t num_host_blocks, NaiveTally* tally)
    : caching_(caching),
      books_(layout, tally),
      cache_(&books_),
      host_(num_host_blocks, &books_) {}

void NaiveModel::Check(const BlockManager& manager) const {
  const std::vector<int32_t> holders = books_.Holders();
  CheckCounts(manager, holders);
  for (const auto& [slot, sequence] : sequences()) {
    const SequenceCache& product = manager.sequence(slot);
    EXPECT_TRUE(product.open);
    EXPECT_EQ(product.num_reserved, sequence.num_reserved);
    EXPECT_EQ(product.num_settled, sequence.num_settled);
    EXPECT_EQ(manager.CountReleasable(slot), CountReleasable(slot));
    CheckTables(manager, slot, holders);
  }
  host_.Check(manager.host());
}

void NaiveModel::CheckCounts(const BlockManager& manager,
                             const std::vector<int32_t>& holders) const {
  const NaiveFences& fences = books_.fences;
  const int32_t num_blocks = books_.layout.num_blocks;
  int32_t used = 0;
  int32_t cached = 0;
  int32_t reclaimable = 0;
  int32_t safe = 0;    // no step in flight can touch them
  int32_t unseen = 0;  // no step was in flight when they were released
  for (int32_t i = 1; i < num_blocks; ++i) {
    const BlockId block{i};
    const bool past = fences.IsPast(block);
    if (holders[i] > 0) {
      ++used;
    } else if (cache_.Contains(block)) {
      ++cached;
      reclaimable += past ? 1 : 0;
    } else {
      safe += fences.IsSafe(block) ? 1 : 0;
      unseen += past ? 1 : 0;
    }
  }
  const BlockManagerStats stats = manager.stats();
  EXPECT_EQ(stats.num_blocks, num_blocks);
  EXPECT_EQ(stats.used_blocks, used);
  EXPECT_EQ(stats.cached_blocks, cached);
  EXPECT_EQ(stats.free_blocks + stats.fenced_blocks + used + cached,
            num_blocks - 1);
  EXPECT_LE(stats.free_blocks, safe);
  if (fences.are_bounds()) {
    EXPECT_LE(stats.free_blocks, unseen);
  } else {
    EXPECT_EQ(stats.free_blocks, unseen);
  }
  EXPECT_EQ(manager.num_available(), stats.free_blocks + reclaimable);
  EXPECT_EQ(manager.num_available() + manager.num_fenced() + used,
            num_blocks - 1);
}

void NaiveModel::CheckTables(const BlockManager& manager, SequenceSlot slot,
                             const std::vector<int32_t>& holders) const {
  const NaiveSequence& sequence = at(slot);
  size_t num_held = 0;
  Moving moving;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const NaiveGroup& own = sequence.groups[group];
    const GroupCache& product = manager.sequence(slot).groups[group];
    EXPECT_EQ(product.cut(), own.region.cut);
    EXPECT_EQ(product.pending != nullptr, own.pending.has_value());
    EXPECT_EQ(BlocksByPage(product), own.pages);
    EXPECT_EQ(std::ssize(own.pages),
              CeilDiv(sequence.num_reserved, page_size()));
    for (int32_t i = 0; books_.rules.IsOut(group, i, sequence.num_settled);
         ++i) {
      EXPECT_EQ(own.At(i), kNullBlock);
    }
    num_held += own.Held().size();
    CountMoving(sequence, group, holders, &moving);
  }
  EXPECT_EQ(manager.CountBlocks(slot), num_held);
  const FallingBlocks falling = manager.CountFalling(slot);
  EXPECT_EQ(falling.num_own, moving.num_own_falling);
  EXPECT_EQ(falling.num_own + falling.num_shared, moving.num_falling);
  EXPECT_EQ(manager.CountOwnInWindows(slot).num_blocks, moving.num_own_staying);
}

void NaiveModel::CountMoving(const NaiveSequence& sequence, int32_t group,
                             const std::vector<int32_t>& holders,
                             Moving* moving) const {
  if (books_.rules.WindowOf(group) == 0) return;
  const NaiveGroup& own = sequence.groups[group];
  // An order gives back itself what it covers.
  const std::optional<BookOrder>& order = own.pending;
  const int32_t num_falls =
      order.has_value() ? order->length : sequence.num_reserved;
  const auto count = [&](BlockId block, bool falls, bool stays) {
    const bool is_own = holders[Index(block)] == 1;
    moving->num_falling += falls ? 1 : 0;
    moving->num_own_falling += falls && is_own ? 1 : 0;
    moving->num_own_staying += stays && is_own ? 1 : 0;
  };
  for (int32_t i = 0; i < std::ssize(own.pages); ++i) {
    if (own.pages[i] == kNullBlock) continue;
    const bool is_replaced = order.has_value() && i * page_size() < order->cut;
    count(own.pages[i], books_.rules.IsOut(group, i, num_falls),
          !is_replaced && !books_.rules.IsOut(group, i, sequence.num_reserved));
  }
  const bool falls = !books_.rules.IsInWindow(own.region, group, num_falls);
  const bool stays =
      !order.has_value() &&
      books_.rules.IsInWindow(own.region, group, sequence.num_reserved);
  for (const BlockId block : own.region.blocks) count(block, falls, stays);
  if (order.has_value()) {
    moving->num_own_staying += static_cast<int32_t>(order->destinations.size());
  }
}

void NaiveModel::CheckRegions(const BlockManager& manager,
                              SequenceSlot slot) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BookRegion& region = at(slot).groups[group].region;
    const GroupCache& cache = manager.sequence(slot).groups[group];
    ASSERT_EQ(cache.region != nullptr, !region.kept.empty());
    if (cache.region == nullptr) continue;
    EXPECT_EQ(cache.region->blocks, region.blocks);
    EXPECT_EQ(cache.region->kept, region.kept);
    EXPECT_EQ(cache.region->cut, region.cut);
    // Without a window it does not matter what was computed behind the cut.
    if (books_.rules.WindowOf(group) > 0) {
      EXPECT_EQ(cache.region_length, region.length);
    }
    const RaggedRegion derived = manager.DeriveRegion(slot, group);
    EXPECT_EQ(PagesOf(books_.layout, derived), region.pages);
    EXPECT_EQ(derived.cut(), region.cut);
    for (int32_t i = 0; i < books_.layout.pages_per_block(); ++i) {
      EXPECT_EQ(std::ssize(derived.pages(i)),
                CeilDiv(region.kept[i], page_size()));
    }
  }
}

void NaiveModel::Open(SequenceSlot slot, NaiveSequence sequence,
                      const NaiveMatch& match) {
  sequence.groups = std::vector<NaiveGroup>(num_groups());
  cache_.Open(match, &sequence);
  sequence.num_reserved = match.num_tokens;
  sequence.num_settled = match.num_tokens;
  sequence.num_found = match.num_tokens - match.num_tokens % page_size();
  sequence.num_offered = match.num_tokens / page_size();
  FindRows(&sequence);
  EXPECT_TRUE(books_.sequences.emplace(slot, std::move(sequence)).second);
}

int32_t NaiveModel::CountBlocksNeeded(SequenceSlot slot,
                                      int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  int32_t blocks = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    for (int32_t i = 0; i < num_tokens; ++i) {
      const int32_t place = sequence.num_reserved + i;
      if (place % page_size() == 0) ++blocks;
    }
  }
  return blocks;
}

int32_t NaiveModel::HandOut(std::span<const BlockId> blocks, int32_t num_free) {
  const int32_t num_reclaimed = cache_.Reclaim(std::ssize(blocks), num_free);
  const std::vector<int32_t> holders = books_.Holders();
  std::set<BlockId> once;
  for (const BlockId block : blocks) {
    EXPECT_GT(Index(block), 0);
    EXPECT_LT(Index(block), books_.layout.num_blocks);
    EXPECT_TRUE(once.insert(block).second);
    EXPECT_EQ(holders[Index(block)], 0);
    EXPECT_FALSE(cache_.Contains(block));
    EXPECT_TRUE(books_.fences.IsSafe(block))
        << "a step in flight may touch the block";
    writers_.erase(block);
    books_.arena.Clear(block);
  }
  return num_reclaimed;
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
    books_.arena.written.erase(part);
  }
  for (const BlockId block : blocks) writers_[block] = slot;
  const size_t count = blocks.size() / sequence.groups.size();
  for (size_t i = 0; i < blocks.size(); ++i) {
    sequence.groups[i / count].pages.push_back(blocks[i]);
  }
  sequence.num_reserved += num_tokens;
}

void NaiveModel::Withdraw(SequenceSlot slot, int32_t num_tokens, bool seen) {
  NaiveSequence& sequence = at(slot);
  sequence.num_reserved -= num_tokens;
  Pop(&sequence, sequence.num_reserved, seen);
  if (num_tokens > 0 && sequence.num_reserved == sequence.num_settled) {
    Return(slot);
  }
}

bool NaiveModel::WillPublish(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  return caching_ && sequence.chain != 0 &&
         sequence.num_settled + num_tokens >=
             (sequence.num_offered + 1) * page_size();
}

void NaiveModel::Commit(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  const int32_t num_full_before = sequence.num_settled / page_size();
  sequence.num_settled += num_tokens;
  sequence.was_writer |= num_tokens > 0;
  const int32_t num_full = sequence.num_settled / page_size();
  for (int32_t i = num_full_before; i < num_full; ++i) Write(sequence, i);
  if (caching_) cache_.Publish(&sequence);
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BookCover left = books_.rules.LeaveWindow(group, sequence.num_settled,
                                                    &sequence.groups[group]);
    for (const BlockId block : left.pages) books_.fences.Release(block);
    for (const BlockId block : left.region.blocks) books_.fences.Release(block);
    books_.tally->fallen_blocks += std::ssize(left.pages);
    books_.tally->fallen_regions += left.region.kept.empty() ? 0 : 1;
  }
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
  books_.sequences.erase(slot);
  Pop(&sequence, 0, true);
  for (const GroupBook& book : sequence.groups) {
    for (const BlockId block : book.region.blocks) books_.fences.Release(block);
  }
}

void NaiveModel::Pop(NaiveSequence* sequence, int32_t num_tokens, bool seen) {
  for (NaiveGroup& group : sequence->groups) {
    for (const BlockId block : books_.rules.CutBack(num_tokens, &group)) {
      if (seen) books_.fences.Release(block);
    }
    group.values.resize(
        std::min(group.values.size(), static_cast<size_t>(num_tokens)));
  }
}

void NaiveModel::Dispatch(uint64_t step) {
  books_.fences.Dispatch(step, books_.Holders());
  for (const CopyOnWrite& copy : std::exchange(books_.copies, {})) {
    books_.fences.Release(copy.blocks.source);
  }
  host_.Dispatch();
}

void NaiveModel::LoseEngine() {
  EXPECT_TRUE(sequences().empty());
  Acknowledge(books_.fences.dispatched());
  cache_.Reset();
  host_.Clear();
}

}  // namespace blockmgr
