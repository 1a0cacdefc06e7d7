#include "blockmgr/region_layout.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/ragged_region.h"
#include "tests/blockmgr/manager_fixture.h"
#include "tests/blockmgr/naive_layout.h"
#include "tests/blockmgr/region_history.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Evictions whose lists are compared with the naive rule, all tests together.
// The naive rule is slow, and slower still under sanitizers.
constexpr int32_t kNumLayouts =
    100'000 / (kCaseDivisor * (kCaseDivisor > 1 ? 5 : 1));

// Everything the header promises about a region besides the rule itself.
void ExpectConsistent(const ModelLayout& layout, const RandomEviction& eviction,
                      const RaggedRegion& region) {
  EXPECT_EQ(region.cut(), eviction.cut);
  ASSERT_THAT(region.kept(), ::testing::ElementsAreArray(eviction.kept));
  EXPECT_EQ(
      region.num_entries(),
      std::accumulate(eviction.kept.begin(), eviction.kept.end(), int64_t{0}));
  ASSERT_EQ(std::ssize(region.page_offsets()), layout.pages_per_block() + 1);
  std::set<PageId> pages;
  std::set<BlockId> blocks;
  for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
    EXPECT_EQ(std::ssize(region.pages(i)),
              CeilDiv(eviction.kept[i], layout.page_size));
    EXPECT_LE(region.held_pages()[i], std::ssize(region.pages(i)));
    for (const PageId page : region.pages(i)) {
      EXPECT_TRUE(pages.insert(page).second) << "page twice";
      blocks.insert(layout.page_block(page));
    }
  }
  EXPECT_EQ(std::ssize(region.page_list()), std::ssize(pages));
  std::vector<BlockId> used;
  for (const BlockId block : eviction.destinations) {
    if (blocks.contains(block)) used.push_back(block);
  }
  EXPECT_THAT(region.blocks(), ::testing::ElementsAreArray(used));
}

// Kept positions head by head, in an order the product did not choose.
std::vector<int32_t> ShuffledPositions(const RegionHistory& history,
                                       const RandomEviction& eviction,
                                       std::mt19937_64& random) {
  std::vector<int32_t> positions;
  for (const NaiveHead& head : history.heads()) {
    std::vector<int32_t> kept = eviction.kept_positions.at(head);
    std::ranges::shuffle(kept, random);
    positions.insert(positions.end(), kept.begin(), kept.end());
  }
  return positions;
}

// Some evictions one after the other, each compared with the naive rule.
// Returns how many.
int32_t CompareWithTheNaiveRule(int32_t num_blocks, std::mt19937_64& random) {
  RegionHistory history(random, num_blocks);
  const int32_t num_rounds = RandomInt(random, 1, 4);
  for (int32_t round = 0; round < num_rounds; ++round) {
    const RandomEviction eviction = history.NextEviction(random);
    const bool whole_tail = RandomChance(random, 0.5);
    RaggedRegion region = RaggedRegion::LayOut(
        history.layout(), history.view(eviction, whole_tail),
        eviction.destinations, eviction.kept, eviction.cut);
    EXPECT_EQ(PagesOf(history.layout(), region), history.NaiveNext(eviction));
    ExpectConsistent(history.layout(), eviction, region);
    if (::testing::Test::HasFailure()) return round + 1;
    history.Advance(eviction, std::move(region),
                    ShuffledPositions(history, eviction, random));
    history.Grow(RandomInt(random, 1, 3));
  }
  return num_rounds;
}

TEST(RegionLayoutTest, LaysOutLikeTheNaiveRule) {
  const auto num_wanted = static_cast<int32_t>(CountCases(kNumLayouts));
  int32_t num_evictions = 0;
  for (uint64_t seed = 1; num_evictions < num_wanted; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    num_evictions += CompareWithTheNaiveRule(RandomInt(random, 1, 6), random);
    ASSERT_FALSE(HasFailure());
  }
}

// Many words of vacancies, and runs across their bounds.
TEST(RegionLayoutTest, LaysLongRegionsOutLikeTheNaiveRule) {
  const int32_t num_seeds = 400 / kCaseDivisor;
  for (int32_t seed = 1; seed <= num_seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    CompareWithTheNaiveRule(RandomInt(random, 60, 300), random);
    ASSERT_FALSE(HasFailure());
  }
}

// A prompt of 32,768 tokens in the shape of Llama-3.1-8B, kept at 20 % in all,
// by other heads each time: the runs take less than a tenth of the lists'
// memory.
TEST(RegionLayoutTest, HasFewRunsForManyPages) {
  constexpr uint64_t kSeed = 3;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  constexpr int32_t kPagesOfAHead = 400;
  const ModelLayout layout{.num_layers = 32,
                           .num_heads = 8,
                           .num_q_heads = 32,
                           .head_dim = 128,
                           .page_size = 16,
                           .num_blocks = kPagesOfAHead + 1};
  std::vector<BlockId> destinations;
  for (int32_t i = 1; i <= kPagesOfAHead; ++i) {
    destinations.push_back(BlockId{i});
  }
  std::vector<int32_t> kept(layout.pages_per_block(),
                            kPagesOfAHead * layout.page_size);
  std::optional<RegionLayout> region;
  for (int32_t round = 0; round < 8; ++round) {
    for (size_t i = 0; i + 1 < kept.size(); i += 2) {
      const int32_t both = kept[i] + kept[i + 1];
      const int32_t pages = RandomInt(random, 0, both / layout.page_size);
      kept[i] = pages * layout.page_size;
      kept[i + 1] = both - kept[i];
    }
    std::ranges::shuffle(kept, random);
    region =
        RegionLayout::LayOut(layout, region.has_value() ? &*region : nullptr,
                             {}, destinations, kept, 32768);
    const RaggedRegion lists(layout, *region);
    size_t num_runs = 0;
    for (int32_t i = 0; i < layout.pages_per_block(); ++i) {
      num_runs += region->runs(i).size();
    }
    EXPECT_EQ(lists.page_list().size(), size_t{kPagesOfAHead} * 256);
    EXPECT_LT(num_runs, lists.page_list().size() / 30) << "round " << round;
  }
}

TEST(RegionLayoutTest, CountsOfZeroNeedNoBlock) {
  const ModelLayout layout = TwoByTwo();
  const std::vector<BlockId> tail = {BlockId{1}, BlockId{2}};
  const std::vector<int32_t> kept(4, 0);
  for (const std::vector<BlockId>& destinations :
       {std::vector<BlockId>{}, {BlockId{2}}, {BlockId{5}, BlockId{1}}}) {
    const RaggedRegion region = RaggedRegion::LayOut(
        layout, {.tail_blocks = tail}, destinations, kept, 8);
    EXPECT_THAT(region.blocks(), IsEmpty());
    EXPECT_THAT(region.page_list(), IsEmpty());
    EXPECT_THAT(region.page_offsets(), ElementsAre(0, 0, 0, 0, 0));
    EXPECT_EQ(region.num_entries(), 0);
    EXPECT_EQ(region.cut(), 8);
  }
}

TEST(RegionLayoutDeathTest, PagesMustFitTheDestinations) {
  const ModelLayout layout = TwoByTwo();
  EXPECT_DEATH(
      RaggedRegion::LayOut(layout, {}, std::vector<BlockId>{BlockId{3}},
                           std::vector<int32_t>{16, 4, 0, 0}, 16),
      "check failed");
}

}  // namespace
}  // namespace blockmgr
