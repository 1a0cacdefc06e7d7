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
  if (!with_region) {
    // The next position attends to nothing of it.
    for (const BlockId block : region.blocks) Released(block);
    region = NaiveRegion();
  }
  const EvictionReceipt receipt = Rebuild(order, pages, counts, &region);
  std::erase_if(sequence.windows.at(group - 1), [&](const auto& page) {
    if (page.first * layout_.page_size >= order.cut) return false;
    if (std::ranges::count(pages, page.second) == 0) Released(page.second);
    return true;
  });
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
