// What NaiveModel knows of regions of window groups.

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

EvictionReceipt NaiveModel::CommitWindowEviction(
    SequenceSlot slot, int32_t group, const std::vector<int32_t>& counts) {
  NaiveSequence& sequence = at(slot);
  const NaiveSequence::Order order =
      std::move(sequence.window_pending.at(group));
  EXPECT_EQ(sequence.num_settled, order.length);
  sequence.window_pending.erase(group);
  GroupBook& book = sequence.groups[group];
  const BookCover covered = CoveredBy(slot, group, order.cut, order.length);
  const bool with_region = covered.region.cut > 0;
  tally_->window_regions_again += with_region ? 1 : 0;
  ++tally_->window_regions;
  // The next position attends to nothing of it.
  const std::vector<BlockId> past =
      with_region ? std::vector<BlockId>() : book.region.blocks;
  const EvictionReceipt receipt = Rebuild(order, counts, &sequence);
  for (int32_t i = 0; i < order.cut / layout_.page_size; ++i) {
    const BlockId block = std::exchange(book.pages[i], kNullBlock);
    const bool is_past = std::ranges::count(covered.pages, block) == 0;
    if (block != kNullBlock && is_past) Released(block);
  }
  for (const BlockId block : past) Released(block);
  sequence.was_evicted_in_windows = true;
  sequence.lineage = next_lineage_++;
  BreakChain(&sequence);
  return receipt;
}

void NaiveModel::ReturnWindowRegions(const NaiveSequence& from,
                                     NaiveSequence* sequence) {
  for (int32_t group = 1; group < num_groups(); ++group) {
    BookRegion& region = sequence->groups[group].region;
    region = BookRules::OnBlocks(from.groups[group].region, region.blocks);
  }
  sequence->was_evicted_in_windows = true;
  sequence->lineage = from.lineage;
  BreakChain(sequence);
}

std::pair<BookRegion, uint64_t> NaiveModel::LinkWindowRegion(
    const NaiveSequence& sequence, int32_t group) {
  const BookRegion& own = sequence.groups[group].region;
  if (own.blocks.empty()) return {own, 0};
  const uint64_t known = RegionWith(own.blocks.front());
  if (known != 0) {
    ++tally_->linked_window_regions;
    return {own, known};
  }
  const uint64_t id = next_entry_++;
  Region region;
  region.group = group;
  region.blocks = own.blocks;
  regions_[id] = std::move(region);
  ApplyWishes(sequence, {kNullBlock, id}, 0, 0, sequence.cut());
  ++tally_->published_window_regions;
  return {own, id};
}

const std::pair<BookRegion, uint64_t>* NaiveModel::CachedWindowRegion(
    uint64_t id, int32_t group, int32_t num_tokens) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return nullptr;
  const auto& window = found->second.window_regions.at(group - 1);
  return rules_.IsInWindow(window.first, group, num_tokens) ? &window : nullptr;
}

void NaiveModel::OpenWindowRegion(const PrefixMatch& match, int32_t group,
                                  NaiveSequence* sequence) {
  if (match.region == PrefixCache::kNone) return;
  const auto id = static_cast<uint64_t>(match.region);
  const BookRegion& cached = regions_.at(id).window_regions.at(group - 1).first;
  if (cached.kept.empty()) return;
  sequence->was_evicted_in_windows = true;
  const auto* window = CachedWindowRegion(id, group, match.num_tokens);
  if (window == nullptr) {
    ++tally_->passed_window_regions;
    return;
  }
  ++tally_->found_window_regions;
  sequence->groups[group].region = window->first;
  if (window->first.blocks.empty()) return;
  line_.erase({kNullBlock, window->second});
  for (const BlockId block : window->first.blocks) left_.erase(block);
  ApplyWishes(*sequence, {kNullBlock, window->second}, 0, 0, sequence->cut());
}

bool NaiveModel::IsLinked(uint64_t region) const {
  for (const auto& [id, other] : regions_) {
    for (const auto& [window, linked] : other.window_regions) {
      if (linked == region) return true;
    }
  }
  return false;
}

void NaiveModel::DropOrphanRegion(uint64_t id) {
  const BlockId block = regions_.at(id).blocks.front();
  const bool used = Holders()[Index(block)] > 0;
  const bool waits = !used && released_[Index(block)] > acknowledged_;
  fences_are_bounds_ |= waits;
  ++tally_->dropped_window_regions;
  DropRegion(id);
}

}  // namespace blockmgr
