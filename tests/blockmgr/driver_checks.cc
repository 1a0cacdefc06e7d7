#include "tests/blockmgr/driver_checks.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/testing/random.h"

namespace blockmgr {

void DriverChecks::CheckAll() {
  manager_.CheckInvariants();
  model_.Check(manager_);
  std::vector<RegionId> dropped;
  manager_.TakeDroppedRegions(&dropped);
  for (const RegionId region : dropped) {
    EXPECT_EQ(state_.findable.erase(region), 1u)
        << "dropped twice, or never there";
  }
  EXPECT_EQ(std::ssize(state_.findable), model_.cache().CountRegions());
  ReadPrefixCache();
  if (random_.Chance(0.05)) {
    for (const auto& [slot, sequence] : model_.sequences()) {
      model_.CheckRegions(manager_, slot);
      CheckCoveredInWindows(slot);
      CheckCovered(slot, 0);
      for (const int32_t back : {0, 1, layout_.page_size}) {
        const int32_t num_tokens = std::max(0, sequence.num_settled - back);
        EXPECT_EQ(manager_.CanGoBack(slot, num_tokens),
                  model_.CanGoBack(slot, num_tokens));
      }
    }
  }
}

void DriverChecks::ReadPrefixCache() {
  if (!RandomChance(reader_random_, 0.2)) return;
  const PrefixCache& cache = manager_.prefix_cache();
  const int64_t num_resets = reader_.num_resets();
  const int64_t num_removed = reader_.num_removed();
  const int32_t max_blocks = RandomInt(reader_random_, 1, 40);
  if (RandomChance(reader_random_, 0.1)) {
    reader_.ReadInPart(cache, max_blocks, RandomInt(reader_random_, 0, 10));
    return;
  }
  const bool is_current = reader_.Read(cache, max_blocks);
  // The first reading begins with a reset.
  if (num_resets > 0) {
    tally_.lapsed_readers += reader_.num_resets() - num_resets;
  }
  tally_.told_removals += reader_.num_removed() - num_removed;
  if (!is_current) return;
  ++tally_.complete_readings;
  tally_.told_regions += reader_.num_regions();
  EXPECT_EQ(reader_.Difference(cache), "");
  EXPECT_EQ(reader_.num_repeated(), 0);
  for (const auto& [slot, sequence] : model_.sequences()) {
    const BlockChain& chain = sequence.names;
    std::vector<BlockId> blocks;
    cache.Match(chain, chain.keys().size(), sequence.tokens, &blocks);
    const auto named = std::span(sequence.tokens)
                           .first(chain.keys().size() *
                                  static_cast<size_t>(layout_.page_size));
    EXPECT_EQ(reader_.MatchBlocks(DecodeRoot(chain.root()), named),
              std::ssize(blocks));
  }
}

void DriverChecks::CheckMatch(const PrefixMatch& match,
                              const NaiveMatch& expected) {
  EXPECT_EQ(match.has_part, expected.has_part);
  EXPECT_EQ(match.cost.part_is_reclaimable, expected.part_is_reclaimable);
  EXPECT_EQ(match.num_tokens, expected.num_tokens);
  EXPECT_EQ(match.cached != nullptr, expected.region != 0);
  for (size_t group = 0; group < expected.pages.size(); ++group) {
    const auto index = static_cast<int32_t>(group);
    // A group that is not in the match has nothing.
    const bool has_group = group < match.groups.size();
    const MatchedGroup own = has_group ? match.groups[group] : MatchedGroup();
    std::vector<BlockId> found;
    if (has_group) {
      std::ranges::copy(match.blocks_of(index), std::back_inserter(found));
      // Pages before the first one are in the region or outside of the span.
      if (!found.empty()) {
        found.insert(found.begin(), own.first_page, kNullBlock);
      }
    }
    std::vector<BlockId> pages = expected.pages[group];
    if (std::ranges::count(pages, kNullBlock) == std::ssize(pages)) {
      pages.clear();
    }
    EXPECT_EQ(found, pages) << group;
    const int32_t num_region_ins = expected.CountIns(index, true);
    EXPECT_EQ(own.num_region_ins, num_region_ins) << group;
    EXPECT_EQ(own.num_tail_ins, expected.CountIns(index, false)) << group;
    EXPECT_EQ(own.num_region_blocks(),
              std::ssize(expected.regions[group].blocks) + num_region_ins)
        << group;
  }
  EXPECT_EQ(match.cost.num_reclaimable, expected.num_reclaimable);
  EXPECT_EQ(match.cost.num_cooling, expected.num_cooling);
  EXPECT_EQ(match.cost.num_moving, expected.num_moving);
  tally_.naive.shortened_matches += expected.is_shortened ? 1 : 0;
  tally_.naive.refused_regions += expected.has_refused_region ? 1 : 0;
}

void DriverChecks::CheckCovered(SequenceSlot slot, int32_t group) {
  const NaiveSequence& sequence = model_.at(slot);
  const GroupBook& own = sequence.groups[group];
  const int32_t page_size = layout_.page_size;
  int32_t length = sequence.num_reserved;
  int32_t cut = 0;
  if (group == 0) {
    const int32_t first = own.region.cut / page_size;
    cut =
        page_size * random_.Int(first, static_cast<int32_t>(own.pages.size()));
    length = cut;
  } else {
    cut = page_size * random_.Int(0, length / page_size);
    if (cut <= own.region.cut) return;
  }
  // Nothing is evicted if all layers have a window.
  if (layout_.window > 0) return;
  const CoveredBlocks covered = manager_.CountCovered(slot, group, cut, length);
  EXPECT_EQ(covered.num_blocks,
            model_.CoveredBy(slot, group, cut, length).Blocks().size());
  EXPECT_EQ(covered.num_own, model_.CountOwnBlocks(slot, group, cut, length));
}

void DriverChecks::CheckCoveredInWindows(SequenceSlot slot) {
  for (int32_t group = 1; group < layout_.num_groups(); ++group) {
    CheckCovered(slot, group);
  }
}

}  // namespace blockmgr
