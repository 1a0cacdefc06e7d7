#include "blockmgr/pending_eviction.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// One layer of four heads in two shards, four tokens per page.
ModelLayout TwoShards() {
  return {.num_layers = 1,
          .num_heads = 4,
          .num_q_heads = 4,
          .head_dim = 8,
          .page_size = 4,
          .dtype = DType::kFloat32,
          .num_blocks = 20,
          .num_shards = 2};
}

// Positions [0, 16) go to two blocks, of which the second shard may use half.
struct Case {
  const ModelLayout layout = TwoShards();
  const std::vector<BlockId> tail = {BlockId{3}, BlockId{4}, BlockId{5},
                                     BlockId{6}};
  const HeldBlocks covered{.tail = tail};
  const PendingEviction pending{.region = RegionId{7},
                                .cut = 16,
                                .num_own = 1,
                                .page_totals = {4, 2},
                                .destinations = {BlockId{4}, BlockId{9}}};
};

TEST(PendingEvictionTest, CountsFitTheEntriesAndEveryShard) {
  const Case test;
  const auto check = [&](const std::vector<int32_t>& counts) {
    return CheckCounts(test.layout, test.pending, test.covered, counts);
  };
  EXPECT_OK(check({8, 8, 4, 4}));
  EXPECT_OK(check({0, 16, 8, 0}));
  EXPECT_THAT(check({8, 8, 4}), StatusIs(kInvalid, HasSubstr("expected 4")));
  EXPECT_THAT(
      check({8, 17, 0, 0}),
      StatusIs(kInvalid, HasSubstr("head 1]: expected 0 to 16, got 17")));
  EXPECT_THAT(check({8, 8, -1, 0}), StatusIs(kInvalid, HasSubstr("head 2]")));
  EXPECT_THAT(
      check({8, 9, 0, 0}),
      StatusIs(kInvalid, HasSubstr("at most 4 pages in shard 0, got 5")));
  EXPECT_THAT(
      check({0, 0, 5, 4}),
      StatusIs(kInvalid, HasSubstr("at most 2 pages in shard 1, got 3")));
}

TEST(PendingEvictionTest, TheRegionHasNoBlockThatItDoesNotUse) {
  const Case test;
  const std::vector<int32_t> all = {8, 8, 4, 4};
  const auto region = MakeRegion(test.layout, test.pending, test.covered, all);
  EXPECT_EQ(region->id, RegionId{7});
  EXPECT_EQ(region->cut, 16);
  EXPECT_EQ(region->kept, all);
  EXPECT_THAT(region->blocks, ElementsAre(BlockId{4}, BlockId{9}));
  const auto small = MakeRegion(test.layout, test.pending, test.covered,
                                std::vector<int32_t>{4, 3, 2, 1});
  // Their own pages of the block they have.
  EXPECT_THAT(small->blocks, ElementsAre(BlockId{4}));
  EXPECT_EQ(LayoutOf(test.layout, *small).num_entries(), 10);
}

TEST(PendingEvictionTest, OnlyOwnBlocksAreOverwritten) {
  const Case test;
  EXPECT_TRUE(test.pending.Overwrites(BlockId{4}));
  EXPECT_FALSE(test.pending.Overwrites(BlockId{9}));
  EXPECT_FALSE(test.pending.Overwrites(BlockId{3}));
}

TEST(PendingEvictionTest, HeldBlocksCountTheRegions) {
  const Case test;
  EXPECT_EQ(test.covered.num_blocks(), 4);
  const auto region = MakeRegion(test.layout, test.pending, test.covered,
                                 std::vector<int32_t>{8, 8, 4, 4});
  const HeldBlocks held{.region = region.get(), .cut = 16, .tail = test.tail};
  EXPECT_EQ(held.num_blocks(), 6);
}

}  // namespace
}  // namespace blockmgr
