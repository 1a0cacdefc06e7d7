#include "blockmgr/layout_checksum.h"

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/ragged_region.h"
#include "tests/blockmgr/region_history.h"
#include "tests/testing/layout_vectors.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAreArray;
using ::testing::SizeIs;

uint64_t OfLists(const RaggedRegion& region) {
  uint64_t checksum = 0;
  for (size_t i = 0; i < region.kept().size(); ++i) {
    const auto head = static_cast<int32_t>(i);
    checksum += HeadChecksum(head, region.kept()[i], region.pages(head));
  }
  return checksum;
}

TEST(LayoutVectorsTest, RegionsAreLaidOutAsTheDocumentSays) {
  const std::vector<LayoutCase> cases = ReadLayoutVectors();
  EXPECT_THAT(cases, SizeIs(36));
  for (const LayoutCase& test : cases) {
    SCOPED_TRACE(test.name);
    std::optional<RaggedRegion> region;
    for (const LayoutVector& vector : test.evictions) {
      const CacheView now{region.has_value() ? &*region : nullptr,
                          vector.tail_blocks};
      region = RaggedRegion::LayOut(test.layout, now, vector.destinations,
                                    vector.kept, vector.cut);
      for (size_t i = 0; i < vector.pages.size(); ++i) {
        EXPECT_THAT(region->pages(static_cast<int32_t>(i)),
                    ElementsAreArray(vector.pages[i]))
            << "head index " << i;
      }
      EXPECT_THAT(region->held_pages(), ElementsAreArray(vector.held_pages));
      EXPECT_THAT(region->blocks(), ElementsAreArray(vector.blocks));
      EXPECT_EQ(LayoutChecksum(test.layout, region->layout()),
                vector.layout_checksum);
      EXPECT_EQ(OfLists(*region), vector.layout_checksum);
    }
  }
}

TEST(LayoutChecksumTest, OfRunsIsThatOfTheLists) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    RegionHistory history(random, RandomInt(random, 1, 40));
    for (int32_t round = 0; round < 3; ++round) {
      const RandomEviction eviction = history.NextEviction(random);
      RaggedRegion region = RaggedRegion::LayOut(
          history.layout(), history.view(eviction, /*whole_tail=*/false),
          eviction.destinations, eviction.kept, eviction.cut);
      ASSERT_EQ(LayoutChecksum(history.layout(), region.layout()),
                OfLists(region));
      std::vector<int32_t> positions;
      for (const NaiveHead& head : history.heads()) {
        const std::vector<int32_t>& kept = eviction.kept_positions.at(head);
        positions.insert(positions.end(), kept.begin(), kept.end());
      }
      history.Advance(eviction, std::move(region), std::move(positions));
      history.Grow(2);
    }
  }
}

// Whatever two lists exchange, or a head loses, shows.
TEST(LayoutChecksumTest, TellsPagesApart) {
  const std::vector<PageId> a = {PageId{4}, PageId{8}};
  const std::vector<PageId> b = {PageId{5}, PageId{9}};
  const auto sum = [](const std::vector<PageId>& first,
                      const std::vector<PageId>& second, int32_t kept = 8) {
    return HeadChecksum(0, kept, first) + HeadChecksum(1, 8, second);
  };
  const uint64_t right = sum(a, b);
  EXPECT_NE(sum(b, a), right);
  EXPECT_NE(sum({PageId{8}, PageId{4}}, b), right);
  EXPECT_NE(sum({PageId{5}, PageId{8}}, {PageId{4}, PageId{9}}), right);
  EXPECT_NE(sum({PageId{4}, PageId{9}}, {PageId{5}, PageId{8}}), right);
  EXPECT_NE(sum(a, b, 7), right);
  EXPECT_NE(sum({PageId{4}}, b), right);
  EXPECT_NE(HeadChecksum(0, 0, {}), HeadChecksum(1, 0, {}));
}

}  // namespace
}  // namespace blockmgr
