#include "engine/tables/tables.h"

#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/tables/tables_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST_F(EngineTablesTest, FollowsStartsAndDecodes) {
  ASSERT_OK(tables_.Apply(DecodePlan()));
  const SequenceTable& row = tables_.row(kTestSlot);
  EXPECT_EQ(row.request, RequestId{7});
  EXPECT_EQ(row.query_window, 8);
  EXPECT_EQ(row.num_computed, 41);
  EXPECT_EQ(row.tokens.back(), 9);
  EXPECT_THAT(BlocksOf(kTestSlot),
              ElementsAre(BlockId{1}, BlockId{2}, BlockId{3}));
}

TEST_F(EngineTablesTest, AReleasedSlotCanStartInTheSamePlan) {
  StepPlan plan = StartPlan();
  plan.released = {kTestSlot};
  plan.starts[0].num_cached_tokens = 16;
  plan.positions = {16};
  plan.num_tokens = {10};
  plan.samples = {0};
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_EQ(tables_.row(kTestSlot).num_computed, 26);
  EXPECT_THAT(tables_.row(kTestSlot).tokens, SizeIs(40));
}

TEST_F(EngineTablesTest, RefusesArraysThatDisagree) {
  ExpectRefused(DecodePlan(), "plan.positions: expected 1 elements, got 2",
                [](StepPlan* p) { p->positions.push_back(1); });
  ExpectRefused(DecodePlan(), "num_tokens",
                [](StepPlan* p) { p->num_tokens.clear(); });
  ExpectRefused(DecodePlan(), "samples",
                [](StepPlan* p) { p->samples.clear(); });
  ExpectRefused(DecodePlan(), "block_offsets",
                [](StepPlan* p) { p->block_offsets = {0}; });
  ExpectRefused(DecodePlan(), "ascending offsets from 0 to 0", [](StepPlan* p) {
    p->block_offsets = {0, 1};
  });
}

TEST_F(EngineTablesTest, RefusesBlocksOutsideThePool) {
  for (const int32_t block : {0, -1, 64}) {
    ExpectRefused(DecodePlan(), "block ids in [1, 64)", [=](StepPlan* p) {
      p->blocks = {BlockId{block}};
      p->block_offsets = {0, 1};
    });
  }
}

TEST_F(EngineTablesTest, RefusesSlotsOutOfRangeOrNotInUse) {
  ExpectRefused(DecodePlan(), "a slot in [0, 8)",
                [](StepPlan* p) { p->slots = {SequenceSlot{8}}; });
  ExpectRefused(DecodePlan(), "a slot in [0, 8)",
                [](StepPlan* p) { p->slots = {SequenceSlot{-1}}; });
  ExpectRefused(DecodePlan(), "not in use",
                [](StepPlan* p) { p->slots = {SequenceSlot{2}}; });
  ExpectRefused(DecodePlan(), "not in use",
                [](StepPlan* p) { p->released = {kTestSlot}; });
  ExpectRefused(StepPlan(), "not in use", [](StepPlan* p) {
    p->released = {kTestSlot, kTestSlot};
  });
  ExpectRefused(StartPlan(), "got one in use");
}

TEST_F(EngineTablesTest, RefusesTokensThatAreNotNext) {
  ExpectRefused(DecodePlan(), "expected position 40, got 39",
                [](StepPlan* p) { p->positions = {39}; });
  ExpectRefused(DecodePlan(), "expected 1..1 tokens, got 2",
                [](StepPlan* p) { p->num_tokens = {2}; });
  ExpectRefused(DecodePlan(), "expected 1..1 tokens, got 0",
                [](StepPlan* p) { p->num_tokens = {0}; });
}

TEST_F(EngineTablesTest, RefusesASampleBeforeTheLastKnownToken) {
  ExpectRefused(StartPlan(), "40 tokens are known", [](StepPlan* p) {
    p->released = {kTestSlot};
    p->num_tokens = {39};
  });
}

TEST_F(EngineTablesTest, RefusesTooFewBlocks) {
  ExpectRefused(
      StartPlan(),
      "plan.blocks of slot 3, group 0: expected blocks for positions below 40, "
      "got blocks for positions below 32",
      [](StepPlan* p) {
        p->released = {kTestSlot};
        p->blocks.pop_back();
        p->block_offsets = {0, 2};
      });
}

TEST_F(EngineTablesTest, RefusesBadStarts) {
  const auto refuse = [this](const char* message,
                             const std::function<void(SequenceStart*)>& spoil) {
    ExpectRefused(StartPlan(), message, [&](StepPlan* p) {
      p->released = {kTestSlot};
      spoil(&p->starts[0]);
    });
  };
  refuse("at least one token", [](SequenceStart* s) { s->num_tokens = 0; });
  refuse("out of start_tokens", [](SequenceStart* s) { s->token_begin = 1; });
  refuse("out of start_tokens", [](SequenceStart* s) { s->token_begin = -1; });
  refuse("below 40", [](SequenceStart* s) { s->num_cached_tokens = 48; });
  refuse("query_window", [](SequenceStart* s) { s->query_window = -1; });
  refuse("starts.slot", [](SequenceStart* s) { s->slot = SequenceSlot{9}; });
}

TEST_F(EngineTablesTest, ARefusedPlanDoesNotMarkTheNext) {
  StepPlan bad = DecodePlan();
  bad.num_tokens = {7};
  EXPECT_FALSE(tables_.Apply(bad).ok());
  EXPECT_OK(tables_.Apply(DecodePlan()));
}

TEST_F(EngineTablesTest, SequencesStartOnARegionUntilItIsDropped) {
  StepPlan plan = EvictionPlan();
  plan.evictions[0].region = RegionId{8};
  ASSERT_OK(tables_.Apply(plan));
  const std::vector<int32_t> counts = {16, 3, 0, 16};
  ASSERT_OK(tables_.CheckOrder(plan, plan.evictions[0]));
  tables_.Commit(plan, plan.evictions[0], counts);

  // The first 32 tokens from the region, 16 more from a shared block.
  const SequenceSlot other{1};
  StepPlan start = StartPlan();
  start.starts[0].slot = other;
  start.starts[0].num_tokens = 60;
  start.starts[0].num_cached_tokens = 48;
  start.starts[0].region = RegionId{8};
  start.start_tokens.assign(60, 5);
  start.slots = {other};
  start.positions = {48};
  start.num_tokens = {12};
  start.blocks = Blocks(20, 2);
  start.block_offsets = {0, 2};
  const auto refused = [&](const char* message, const Spoil& spoil) {
    AnyTablesTest::ExpectRefused(start, message, spoil);
  };
  refused("expected a region that is kept, got 9",
          [](StepPlan* p) { p->starts[0].region = RegionId{9}; });
  refused("at least 41 (of the sequence that made region 8), got 16",
          [](StepPlan* p) { p->starts[0].num_cached_tokens = 16; });
  refused(
      "expected blocks for positions below 60, got blocks for positions below "
      "48",
      [](StepPlan* p) {
        p->block_offsets = {0, 1}, p->blocks.pop_back();
      });
  refused("plan.dropped_regions: expected regions that are kept",
          [](StepPlan* p) {
            p->dropped_regions = {RegionId{8}, RegionId{8}};
          });
  start.dropped_regions = {RegionId{8}};  // after the starts
  ASSERT_OK(tables_.Apply(start));
  EXPECT_EQ(RegionOf(other).cut, 32);
  EXPECT_THAT(RegionOf(other).kept, ElementsAre(16, 3, 0, 16));
  EXPECT_THAT(RegionOf(other).shard_entries, ElementsAre(35));
  EXPECT_THAT(RegionOf(other).blocks, ElementsAre(BlockId{10}));
  EXPECT_THAT(BlocksOf(other), ElementsAre(BlockId{20}, BlockId{21}));
  EXPECT_EQ(tables_.row(other).num_computed, 60);
  // It is gone for those to come.
  start.released = {other};
  start.dropped_regions.clear();
  AnyTablesTest::ExpectRefused(start, "expected a region that is kept, got 8");
}

}  // namespace
}  // namespace blockmgr
