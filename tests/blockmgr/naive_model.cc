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
    const bool is_cached = cached_.contains(BlockId{i});
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
  return {tokens.begin(), tokens.begin() + num_blocks * layout_.page_size};
}

PrefixMatch NaiveModel::Match(const std::vector<int32_t>& tokens,
                              int32_t max_tokens) const {
  PrefixMatch match;
  const std::vector<int32_t> holders = Holders();
  const int32_t limit =
      std::min(max_tokens, static_cast<int32_t>(tokens.size()));
  uint64_t parent = 1;
  for (int32_t i = 1; i * layout_.page_size <= limit; ++i) {
    const auto found = by_prefix_.find(Prefix(tokens, i));
    if (found == by_prefix_.end()) break;
    const Entry& entry = cached_.at(found->second);
    if (entry.parent != parent) break;
    parent = entry.id;
    const BlockId block = found->second;
    EXPECT_EQ(written_.at(block), Prefix(tokens, i)) << "a false hit";
    match.blocks.push_back(block);
    if (holders[Index(block)] == 0 &&
        released_[Index(block)] <= acknowledged_) {
      ++match.num_reclaimable;
    }
  }
  return match;
}

void NaiveModel::Open(SequenceSlot slot, const std::vector<int32_t>& tokens,
                      const PrefixMatch& match) {
  NaiveSequence sequence;
  sequence.tokens = tokens;
  sequence.tail = match.blocks;
  sequence.num_offered = static_cast<int32_t>(match.blocks.size());
  sequence.num_reserved = sequence.num_offered * layout_.page_size;
  sequence.num_settled = sequence.num_reserved;
  if (!match.blocks.empty()) {
    sequence.chain = cached_.at(match.blocks.back()).id;
  }
  for (const BlockId block : match.blocks) left_.erase(block);
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

std::vector<BlockId> NaiveModel::Reclaimable() const {
  const std::vector<int32_t> holders = Holders();
  std::map<uint64_t, BlockId> by_age;
  for (const auto& [block, entry] : cached_) {
    if (holders[Index(block)] > 0) continue;
    if (released_[Index(block)] > acknowledged_) continue;
    by_age[left_.at(block)] = block;
  }
  std::vector<BlockId> blocks;
  for (const auto& [age, block] : by_age) blocks.push_back(block);
  return blocks;
}

int32_t NaiveModel::HandOut(std::span<const BlockId> blocks, int32_t num_free) {
  const int32_t num_reclaimed =
      std::max(0, static_cast<int32_t>(blocks.size()) - num_free);
  if (num_reclaimed > 0) {
    const std::vector<BlockId> oldest = Reclaimable();
    EXPECT_LE(num_reclaimed, std::ssize(oldest));
    for (int32_t i = 0; i < num_reclaimed; ++i) Uncache(oldest[i]);
  }
  const std::vector<int32_t> holders = Holders();
  std::set<BlockId> once;
  for (const BlockId block : blocks) {
    EXPECT_GT(Index(block), 0);
    EXPECT_LT(Index(block), layout_.num_blocks);
    EXPECT_TRUE(once.insert(block).second);
    EXPECT_EQ(holders[Index(block)], 0);
    EXPECT_FALSE(cached_.contains(block));
    EXPECT_LE(touched_[Index(block)], acknowledged_)
        << "a step in flight may touch the block";
    written_.erase(block);
  }
  return num_reclaimed;
}

void NaiveModel::Reserve(SequenceSlot slot, int32_t num_tokens,
                         std::span<const BlockId> blocks) {
  NaiveSequence& sequence = at(slot);
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
}

bool NaiveModel::WillPublish(SequenceSlot slot, int32_t num_tokens) const {
  const NaiveSequence& sequence = at(slot);
  return caching_ && sequence.kept.empty() && sequence.chain != 0 &&
         sequence.num_settled + num_tokens >=
             (sequence.num_offered + 1) * layout_.page_size;
}

void NaiveModel::Publish(NaiveSequence* sequence) {
  while (sequence->chain != 0 &&
         (sequence->num_offered + 1) * layout_.page_size <=
             sequence->num_settled) {
    const BlockId block = sequence->tail[sequence->num_offered];
    if (sequence->pending.has_value() &&
        std::ranges::count(sequence->pending->own, block) > 0) {
      sequence->chain = 0;
      return;
    }
    std::vector<int32_t> prefix =
        Prefix(sequence->tokens, sequence->num_offered + 1);
    const auto found = by_prefix_.find(prefix);
    if (found != by_prefix_.end()) {
      const Entry& entry = cached_.at(found->second);
      sequence->chain = entry.parent == sequence->chain ? entry.id : 0;
      if (sequence->chain == 0) return;
    } else {
      EXPECT_FALSE(cached_.contains(block));
      by_prefix_[prefix] = block;
      cached_[block] = {std::move(prefix), next_entry_, sequence->chain};
      sequence->chain = next_entry_++;
    }
    ++sequence->num_offered;
  }
}

void NaiveModel::Commit(SequenceSlot slot, int32_t num_tokens) {
  NaiveSequence& sequence = at(slot);
  const int32_t num_full_before = sequence.num_settled / layout_.page_size;
  sequence.num_settled += num_tokens;
  if (!sequence.kept.empty()) return;
  const int32_t num_full = sequence.num_settled / layout_.page_size;
  for (int32_t i = num_full_before; i < num_full; ++i) {
    written_.try_emplace(sequence.tail[i], Prefix(sequence.tokens, i + 1));
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
  const NaiveSequence sequence = std::move(at(slot));
  sequences_.erase(slot);
  for (auto block = sequence.tail.rbegin(); block != sequence.tail.rend();
       ++block) {
    Released(*block);
  }
  for (const BlockId block : sequence.region_blocks) Released(block);
}

void NaiveModel::Uncache(BlockId block) {
  by_prefix_.erase(cached_.at(block).prefix);
  cached_.erase(block);
}

void NaiveModel::Dispatch(uint64_t step) {
  dispatched_ = step;
  const std::vector<int32_t> holders = Holders();
  for (int32_t i = 0; i < layout_.num_blocks; ++i) {
    if (holders[i] > 0) touched_[i] = step;
  }
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
  fences_are_bounds_ = has_steps_in_flight();
}

void NaiveModel::LoseEngine() {
  EXPECT_TRUE(sequences_.empty());
  Acknowledge(dispatched_);
  ResetPrefixCache();
}

}  // namespace blockmgr
