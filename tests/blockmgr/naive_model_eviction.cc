// The eviction half of NaiveModel.

#include <algorithm>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

std::vector<BlockId> NaiveModel::OwnBlocks(SequenceSlot slot, int32_t group,
                                           int32_t cut, int32_t length) const {
  const std::vector<int32_t> holders = books_.Holders();
  std::vector<BlockId> own = CoveredBy(slot, group, cut, length).Blocks();
  std::erase_if(own, [&](BlockId block) { return holders[Index(block)] != 1; });
  return own;
}

int32_t NaiveModel::CountOwnBlocks(SequenceSlot slot, int32_t group,
                                   int32_t cut, int32_t length) const {
  const NaiveSequence& sequence = at(slot);
  const int32_t end =
      static_cast<int32_t>(sequence.groups[group].pages.size()) * page_size();
  const std::vector<BlockId> parts = PartBlocks(sequence);
  const bool leaves = !parts.empty() && cut >= end &&
                      !IsWriter(slot, parts[group]) &&
                      books_.Holders()[Index(parts[group])] > 1;
  const std::vector<BlockId> own = OwnBlocks(slot, group, cut, length);
  return static_cast<int32_t>(own.size()) + (leaves ? 1 : 0) +
         std::max(0, cut - end) / page_size();
}

int32_t NaiveModel::CountReleasable(SequenceSlot slot) const {
  const std::vector<int32_t> holders = books_.Holders();
  std::vector<BlockId> held = at(slot).Held();
  for (const CopyOnWrite& copy : books_.copies) {
    if (copy.slot == slot) held.push_back(copy.blocks.source);
  }
  return static_cast<int32_t>(std::ranges::count_if(
      held, [&](BlockId block) { return holders[Index(block)] == 1; }));
}

int32_t NaiveModel::ReserveEviction(SequenceSlot slot, int32_t group,
                                    BookOrder order) {
  GroupBook& book = at(slot).groups[group];
  const std::vector<BlockId> candidates =
      OwnBlocks(slot, group, order.cut, order.length);
  const auto num_own = static_cast<int32_t>(order.own.size());
  const auto num_uncached = static_cast<int32_t>(std::ranges::count_if(
      candidates, [this](BlockId block) { return !cache_.Contains(block); }));
  // A region and its tail go last.
  const uint64_t region = book.region.blocks.empty()
                              ? 0
                              : cache_.RegionWith(book.region.blocks.front());
  const auto count_others = [&](const std::vector<BlockId>& blocks) {
    return static_cast<int32_t>(std::ranges::count_if(
        blocks,
        [&](BlockId block) { return !cache_.IsOfRegion(region, block); }));
  };
  EXPECT_EQ(count_others(order.own),
            std::min(num_own, count_others(candidates)));
  // Own blocks: a subsequence of the candidates, hence distinct, unshared and
  // in table order.
  auto next = candidates.begin();
  for (const BlockId block : order.own) {
    next = std::find(next, candidates.end(), block);
    EXPECT_NE(next, candidates.end()) << "no block of its own, or misplaced";
    if (next == candidates.end()) break;
    ++next;
  }
  const int32_t num_dropped = cache_.Take(order.own);
  EXPECT_EQ(num_dropped, std::max(0, num_own - num_uncached))
      << "a cached block is taken only when there is no other";
  EXPECT_FALSE(book.pending.has_value());
  book.pending = std::move(order);
  return num_dropped;
}

void NaiveModel::AbortEviction(SequenceSlot slot, int32_t group) {
  std::optional<BookOrder>& pending = at(slot).groups[group].pending;
  if (!pending.has_value()) return;
  for (const BlockId block : pending->Fresh()) books_.fences.Release(block);
  pending.reset();
}

EvictionReceipt NaiveModel::CommitEviction(SequenceSlot slot, int32_t group,
                                           const std::vector<int32_t>& counts,
                                           const RegionName* name) {
  NaiveSequence& sequence = at(slot);
  NaiveGroup& own = sequence.groups[group];
  const BookOrder order = *own.pending;
  const BookRegion before = own.region;
  const uint64_t known =
      before.blocks.empty() ? 0 : cache_.RegionWith(before.blocks.front());
  const BookCover covered = CoveredBy(slot, group, order.cut, order.length);
  if (books_.rules.WindowOf(group) > 0) {
    // The length decides what an order covers there.
    EXPECT_EQ(sequence.num_settled, order.length);
    books_.tally->window_regions_again += covered.region.cut > 0 ? 1 : 0;
    ++books_.tally->window_regions;
  }
  std::vector<BlockId> gone;
  const BookReceipt made = books_.rules.Commit(group, counts, &own, &gone);
  for (const BlockId block : gone) books_.fences.Release(block);
  for (const BlockId block : order.destinations) books_.arena.Clear(block);
  own.region.length = sequence.num_settled;
  own.was_evicted = true;
  sequence.lineage = next_lineage_++;
  EvictionReceipt receipt;
  receipt.evicted_entries = made.evicted_entries;
  receipt.freed_blocks = made.freed_blocks;
  receipt.published = caching_ && name != nullptr && !sequence.has_pending() &&
                      cache_.PublishRegion(&sequence, *name, &receipt.cached);
  if (!receipt.published) books_.BreakChain(&sequence);
  if (!receipt.cached) return receipt;
  for (size_t i = covered.pages.size(); i-- > 0;) {
    const int32_t begin = before.cut + static_cast<int32_t>(i) * page_size();
    if (begin >= sequence.num_found) cache_.Supersede({covered.pages[i], 0});
  }
  if (sequence.num_found <= before.cut) cache_.Supersede({kNullBlock, known});
  return receipt;
}

}  // namespace blockmgr
