// What NaiveModel knows of regions of window groups.

#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/naive_model.h"

namespace blockmgr {

bool NaiveModel::IsRegionInWindow(const NaiveRegion& region, int32_t group,
                                  int32_t num_tokens) const {
  return region.cut > 0 &&
         IsInWindow(group, region.cut / layout_.page_size - 1, num_tokens);
}

std::pair<std::vector<BlockId>, bool> NaiveModel::CoveredInWindow(
    SequenceSlot slot, int32_t group, int32_t cut, int32_t length) const {
  const NaiveSequence& sequence = at(slot);
  const NaiveRegion& region = sequence.window_regions.at(group - 1);
  std::vector<BlockId> pages;
  for (int32_t i = 0; i < cut / layout_.page_size; ++i) {
    const BlockId block = BlockAt(sequence, group, i);
    if (block != kNullBlock && IsInWindow(group, i, length + 1)) {
      pages.push_back(block);
    }
  }
  return {pages, IsRegionInWindow(region, group, length + 1)};
}

std::vector<BlockId> NaiveModel::OwnInWindow(SequenceSlot slot, int32_t group,
                                             int32_t cut,
                                             int32_t length) const {
  const std::vector<int32_t> holders = Holders();
  const auto [pages, with_region] = CoveredInWindow(slot, group, cut, length);
  std::vector<BlockId> covered;
  if (with_region) covered = at(slot).window_regions.at(group - 1).blocks;
  covered.insert(covered.end(), pages.begin(), pages.end());
  std::vector<BlockId> own;
  for (const BlockId block : covered) {
    if (holders[Index(block)] == 1) own.push_back(block);
  }
  return own;
}

EvictionReceipt NaiveModel::CommitWindowEviction(
    SequenceSlot slot, int32_t group, const std::vector<int32_t>& counts) {
  NaiveSequence& sequence = at(slot);
  const NaiveSequence::Order order =
      std::move(sequence.window_pending.at(group));
  EXPECT_EQ(sequence.num_settled, order.length);
  sequence.window_pending.erase(group);
  const auto covered = CoveredInWindow(slot, group, order.cut, order.length);
  const auto& pages = covered.first;
  const bool with_region = covered.second;
  NaiveRegion& region = sequence.window_regions.at(group - 1);
  tally_->window_regions_again += with_region ? 1 : 0;
  ++tally_->window_regions;
  std::vector<BlockId> past;
  if (!with_region) {
    // The next position attends to nothing of it.
    past = region.blocks;
    region = NaiveRegion();
  }
  const EvictionReceipt receipt = Rebuild(order, pages, counts, &region);
  std::erase_if(sequence.windows.at(group - 1), [&](const auto& page) {
    if (page.first * layout_.page_size >= order.cut) return false;
    if (std::ranges::count(pages, page.second) == 0) Released(page.second);
    return true;
  });
  for (const BlockId block : past) Released(block);
  sequence.was_evicted_in_windows = true;
  sequence.lineage = next_lineage_++;
  BreakChain(&sequence);
  return receipt;
}

void NaiveModel::ReturnWindowRegions(const NaiveSequence& from,
                                     NaiveSequence* sequence) {
  for (size_t i = 0; i < from.window_regions.size(); ++i) {
    NaiveRegion& region = sequence->window_regions[i];
    std::vector<BlockId> blocks = std::move(region.blocks);
    region = from.window_regions[i];
    region.pages = OnBlocks(region.pages, region.blocks, blocks);
    region.blocks = std::move(blocks);
  }
  sequence->was_evicted_in_windows = true;
  sequence->lineage = from.lineage;
  BreakChain(sequence);
}

std::pair<NaiveRegion, uint64_t> NaiveModel::LinkWindowRegion(
    const NaiveSequence& sequence, int32_t group) {
  const NaiveRegion& own = sequence.window_regions.at(group - 1);
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
  ApplyWishes(sequence, {kNullBlock, id}, 0, 0, sequence.cut);
  ++tally_->published_window_regions;
  return {own, id};
}

const std::pair<NaiveRegion, uint64_t>* NaiveModel::CachedWindowRegion(
    uint64_t id, int32_t group, int32_t num_tokens) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return nullptr;
  const auto& window = found->second.window_regions.at(group - 1);
  return IsRegionInWindow(window.first, group, num_tokens) ? &window : nullptr;
}

void NaiveModel::OpenWindowRegion(const PrefixMatch& match, int32_t group,
                                  NaiveSequence* sequence) {
  if (match.region == PrefixCache::kNone) return;
  const auto id = static_cast<uint64_t>(match.region);
  const NaiveRegion& cached =
      regions_.at(id).window_regions.at(group - 1).first;
  if (cached.kept.empty()) return;
  sequence->was_evicted_in_windows = true;
  const auto* window = CachedWindowRegion(id, group, match.num_tokens);
  if (window == nullptr) {
    ++tally_->passed_window_regions;
    return;
  }
  ++tally_->found_window_regions;
  sequence->window_regions.at(group - 1) = window->first;
  if (window->first.blocks.empty()) return;
  line_.erase({kNullBlock, window->second});
  for (const BlockId block : window->first.blocks) left_.erase(block);
  ApplyWishes(*sequence, {kNullBlock, window->second}, 0, 0, sequence->cut);
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

void NaiveModel::CheckWindowRegions(const BlockManager& manager,
                                    SequenceSlot slot) const {
  for (int32_t group = 1; group < num_groups(); ++group) {
    const NaiveRegion& region = at(slot).window_regions.at(group - 1);
    const WindowCache& product = manager.window(slot, group);
    ASSERT_EQ(product.region != nullptr, !region.kept.empty());
    if (product.region == nullptr) continue;
    EXPECT_EQ(product.region->blocks, region.blocks);
    EXPECT_EQ(product.region->kept, region.kept);
    EXPECT_EQ(product.cut(), region.cut);
    EXPECT_EQ(product.region_length, region.length);
    EXPECT_EQ(PagesOf(layout_, manager.DeriveRegion(slot, group)),
              region.pages);
  }
}

}  // namespace blockmgr
