#include "bench/micro/memory_workloads.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(LlamaLayoutTest, IsThatOfTheModelCard) {
  const ModelLayout layout = LlamaLayout(100);
  ASSERT_OK(layout.Validate());
  // 32 layers x 8 heads x 16 tokens x 128 elements x 2 bytes, K and V.
  EXPECT_EQ(layout.block_bytes(), 2 * 1024 * 1024);
  EXPECT_EQ(layout.pages_per_block(), 256);
}

TEST(UnevenCountsTest, KeepsTheShareInWholePages) {
  const ModelLayout layout = LlamaLayout(100);
  const std::vector<int32_t> counts =
      UnevenCounts(layout, kLongPromptTokens, 20);
  ASSERT_EQ(counts.size(), 256u);
  for (const int32_t count : counts) {
    EXPECT_EQ(count % 16, 0);
    EXPECT_GT(count, 0);
    EXPECT_LE(count, kLongPromptTokens);
  }
  const auto total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  // 20 % in whole pages of a head: 409 of 2,048.
  EXPECT_EQ(total, int64_t{409} * 16 * 256);
  EXPECT_GT((std::set<int32_t>(counts.begin(), counts.end()).size()), 100u);
}

TEST(RandomTokensTest, DependOnTheSeedAlone) {
  EXPECT_EQ(RandomTokens(100, 1), RandomTokens(100, 1));
  EXPECT_NE(RandomTokens(100, 1), RandomTokens(100, 2));
}

TEST(ReserveTokensTest, TakesTheirBlocks) {
  BlockManager manager(LlamaLayout(10), 1, false);
  const SequenceSlot slot = manager.Open({}, {});
  ReserveTokens(&manager, slot, 33);
  EXPECT_EQ(manager.sequence(slot).num_reserved, 33);
  EXPECT_EQ(manager.num_available(), 6);
  manager.Close(slot);
}

TEST(EvictionWorkloadTest, EvictsWhatIsNotKept) {
  // 64 pages of a head, 12 of them kept.
  EvictionWorkload first({.num_tokens = 1024});
  EvictionWorkload again({.num_tokens = 1024, .again_in_place = true});
  for (int32_t i = 0; i < 3; ++i) {
    first.Prepare();
    first.Run();
    EXPECT_EQ(first.evicted_entries(), int64_t{256} * (64 - 12) * 16);
    first.Finish();
    // One page of every head came after the first eviction.
    again.Prepare();
    again.Run();
    EXPECT_EQ(again.evicted_entries(), int64_t{256} * 16);
    again.Finish();
  }
}

TEST(EvictionWorkloadTest, IsTheSameInBlocksOfItsOwn) {
  EvictionWorkload workload({.num_tokens = 1024, .in_place = true});
  for (int32_t i = 0; i < 3; ++i) {
    workload.Prepare();
    workload.Run();
    EXPECT_EQ(workload.evicted_entries(), int64_t{256} * (64 - 12) * 16);
    workload.Finish();
  }
}

// These check themselves what they do.
TEST(AllocateWorkloadTest, CanBeRepeated) {
  AllocateWorkload workload(100);
  workload.Run();
  workload.Run();
}

TEST(EvictionWorkloadTest, IsTheSameWithThePrefixCache) {
  for (const bool published : {false, true}) {
    EvictionWorkload workload(
        {.num_tokens = 1024, .cached = true, .published = published});
    for (int32_t i = 0; i < 5; ++i) {
      workload.Prepare();
      workload.Run();
      EXPECT_EQ(workload.evicted_entries(), int64_t{256} * (64 - 12) * 16);
      workload.Finish();
    }
  }
}

TEST(ReclaimWorkloadTest, ReclaimsFromAFullPoolEveryTime) {
  ReclaimWorkload workload(2 * ReclaimWorkload::kNumTaken);
  for (int32_t i = 0; i < 5; ++i) {
    workload.Prepare();
    workload.Run();
    workload.Finish();
  }
}

TEST(MatchWorkloadTest, FindsTheWholePromptAgain) {
  MatchWorkload workload(160);
  EXPECT_EQ(workload.num_blocks(), 10);
  workload.Run();
  workload.Run();
}

TEST(MeasureMetadataTest, CountsRegionsAndRelatesBytesToThePool) {
  MetadataSetting setting{.num_blocks = 500, .num_tokens = 320};
  const MetadataBytes plain = MeasureMetadata(setting);
  EXPECT_EQ(plain.num_regions, 0);
  // At the very least its tokens, its key and its holders.
  EXPECT_GT(plain.per_block, 16 * 4 + 16 + 4);
  EXPECT_NEAR(plain.pool_fraction, plain.per_block / (2 << 20), 1e-9);
  setting.with_regions = true;
  const MetadataBytes regions = MeasureMetadata(setting);
  // Four blocks each and two of a tail, of 499.
  EXPECT_GT(regions.num_regions, 60);
  EXPECT_LT(regions.num_regions, 125);
  // 256 counts for each region, and page lists for every other one.
  EXPECT_GT((regions.per_block - plain.per_block) * 500,
            regions.num_regions * (256 * 4 + 4 * 256 * 4 / 2.0));
}

}  // namespace
}  // namespace blockmgr
