// Starts with what another sequence has computed, or the same one before.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

using EngineTablesSourceTest = EngineTablesTest;

// A fork of kTestSlot's first 20 tokens: one block shared, one copied.
StepPlan ForkPlan() {
  StepPlan plan;
  plan.starts = {{.slot = SequenceSlot{5},
                  .request = RequestId{8},
                  .num_tokens = 21,
                  .num_cached_tokens = 20,
                  .source = kTestSlot}};
  plan.start_tokens.assign(21, 5);
  plan.slots = {SequenceSlot{5}};
  plan.positions = {20};
  plan.num_tokens = {1};
  plan.samples = {1};
  plan.block_offsets = {0, 0};
  plan.copies = {{.slot = SequenceSlot{5},
                  .blocks = {BlockId{2}, BlockId{20}},
                  .num_tokens = 4}};
  return plan;
}

// Goes on in kTestSlot after its first 32 tokens.
StepPlan RestartPlan() {
  StepPlan plan = ForkPlan();
  plan.starts[0].slot = kTestSlot;
  plan.starts[0].num_tokens = 40;
  plan.starts[0].num_cached_tokens = 32;
  plan.start_tokens.assign(40, 5);
  plan.slots = {kTestSlot};
  plan.positions = {32};
  plan.num_tokens = {8};
  plan.block_offsets = {0, 1};
  plan.blocks = Blocks(9, 1);
  plan.copies.clear();
  return plan;
}

TEST_F(EngineTablesSourceTest, AForkSharesTheTableOfItsSource) {
  ASSERT_OK(tables_.Apply(ForkPlan()));
  const SequenceTable& row = tables_.row(SequenceSlot{5});
  EXPECT_EQ(row.request, RequestId{8});
  EXPECT_EQ(row.num_computed, 21);
  EXPECT_THAT(row.tokens, SizeIs(21));
  EXPECT_THAT(BlocksOf(SequenceSlot{5}), ElementsAre(BlockId{1}, BlockId{20}));
  EXPECT_THAT(BlocksOf(kTestSlot),
              ElementsAre(BlockId{1}, BlockId{2}, BlockId{3}));
}

TEST_F(EngineTablesSourceTest, AForkSharesTheRegionOfItsSource) {
  const StepPlan plan = EvictionPlan();
  ASSERT_OK(tables_.Apply(plan));
  ASSERT_OK(tables_.CheckOrder(plan, plan.evictions[0]));
  tables_.Commit(plan, plan.evictions[0], std::vector<int32_t>{16, 3, 0, 16});
  StepPlan fork = ForkPlan();
  fork.starts[0].num_cached_tokens = 31;
  fork.starts[0].num_tokens = 42;
  fork.start_tokens.assign(42, 5);
  fork.start_tokens[40] = 9;
  fork.positions = {31};
  EXPECT_THAT(tables_.Apply(fork),
              IsRefused("expected at least the 32 tokens "
                        "of the region of group 0 in slot 3"));
  fork.starts[0].num_cached_tokens = 41;
  fork.positions = {41};
  fork.copies[0].blocks.source = BlockId{3};
  ASSERT_OK(tables_.Apply(fork));
  const SequenceTable& row = tables_.row(SequenceSlot{5});
  const TableRegion& region = RegionOf(SequenceSlot{5});
  EXPECT_EQ(region.cut, 32);
  EXPECT_THAT(region.blocks, ElementsAre(BlockId{10}));
  EXPECT_THAT(region.shard_entries, ElementsAre(35));
  EXPECT_THAT(BlocksOf(SequenceSlot{5}), ElementsAre(BlockId{20}));
  EXPECT_EQ(row.num_evictions, 0);
}

TEST_F(EngineTablesSourceTest, ASequenceStartsAgainInItsSlot) {
  ASSERT_OK(tables_.Apply(RestartPlan()));
  const SequenceTable& row = tables_.row(kTestSlot);
  EXPECT_EQ(row.num_computed, 40);
  EXPECT_THAT(row.tokens, SizeIs(40));  // what it had sampled is forgotten
  EXPECT_THAT(BlocksOf(kTestSlot),
              ElementsAre(BlockId{1}, BlockId{2}, BlockId{9}));
  tables_.AddSampled(kTestSlot, 4);
}

TEST_F(EngineTablesSourceTest, ARestartMayRunLater) {
  StepPlan plan = RestartPlan();
  plan.slots.clear();
  plan.positions.clear();
  plan.num_tokens.clear();
  plan.samples.clear();
  plan.block_offsets = {0};
  plan.blocks.clear();
  ASSERT_OK(tables_.Apply(plan));
  EXPECT_EQ(tables_.row(kTestSlot).num_computed, 32);
  EXPECT_THAT(BlocksOf(kTestSlot), SizeIs(2));
}

TEST_F(EngineTablesSourceTest, RefusesBadSources) {
  const auto refuse = [this](const char* message, const Spoil& spoil) {
    ExpectRefused(ForkPlan(), message, spoil);
  };
  const auto start = [](StepPlan* p) -> SequenceStart& { return p->starts[0]; };
  refuse("starts.source",
         [&](StepPlan* p) { start(p).source = SequenceSlot{8}; });
  refuse("a source that goes on",
         [&](StepPlan* p) { start(p).source = SequenceSlot{2}; });
  refuse("a source that goes on",
         [](StepPlan* p) { p->released = {kTestSlot}; });
  refuse("a source that goes on",
         [&](StepPlan* p) { start(p).source = SequenceSlot{5}; });
  refuse("a free slot", [&](StepPlan* p) {
    start(p).slot = kTestSlot;
    p->slots[0] = kTestSlot;
    start(p).source = SequenceSlot{2};
  });
  refuse("no negative token, got -5",
         [](StepPlan* p) { p->start_tokens[20] = -5; });
  refuse("in [1, 40]", [&](StepPlan* p) { start(p).num_cached_tokens = 0; });
  refuse("to be those of its source",
         [](StepPlan* p) { p->start_tokens[19] = 6; });
}

// Starts with 20 cached tokens: a shared block, and four rows of block 40 that
// are copied into block 20.
StepPlan PartPlan() {
  StepPlan plan = ForkPlan();
  plan.starts[0].source = kNoSequenceSlot;
  plan.blocks = {BlockId{30}, BlockId{20}};
  plan.block_offsets = {0, 2};
  plan.copies[0].blocks.source = BlockId{40};
  return plan;
}

TEST_F(EngineTablesSourceTest, StartsOnAPartOfACachedBlock) {
  ASSERT_OK(tables_.Apply(PartPlan()));
  EXPECT_THAT(BlocksOf(SequenceSlot{5}), ElementsAre(BlockId{30}, BlockId{20}));
  EXPECT_EQ(tables_.row(SequenceSlot{5}).num_computed, 21);
}

TEST_F(EngineTablesSourceTest, RefusesBadParts) {
  const auto refuse = [this](const char* message, const Spoil& spoil) {
    ExpectRefused(PartPlan(), message, spoil);
  };
  refuse("a multiple of 16 or a copy, got 20 and none",
         [](StepPlan* p) { p->copies.clear(); });
  refuse("a source in [1, 64), got 64",
         [](StepPlan* p) { p->copies[0].blocks.source = BlockId{64}; });
  refuse("its block 20 as destination, got 30",
         [](StepPlan* p) { p->copies[0].blocks.destination = BlockId{30}; });
  refuse("expected a tail, got none", [](StepPlan* p) {
    p->starts[0].num_cached_tokens = 16;
    p->positions[0] = 16;
    p->num_tokens[0] = 5;
  });
}

TEST_F(EngineTablesSourceTest, RefusesBadCopies) {
  const auto refuse = [this](const char* message, const Spoil& spoil) {
    ExpectRefused(ForkPlan(), message, spoil);
  };
  refuse("copies.slot",
         [](StepPlan* p) { p->copies[0].slot = SequenceSlot{8}; });
  refuse("a scheduled slot, once",
         [](StepPlan* p) { p->copies[0].slot = kTestSlot; });
  refuse("a scheduled slot, once",
         [](StepPlan* p) { p->copies.push_back(p->copies[0]); });
  refuse("a destination in [1, 64)",
         [](StepPlan* p) { p->copies[0].blocks.destination = kNullBlock; });
  for (const int32_t num_tokens : {-1, 0, 17}) {
    refuse("num_tokens in [1, 16], got",
           [&](StepPlan* p) { p->copies[0].num_tokens = num_tokens; });
  }
  refuse("its last block 2 as source, got 1",
         [](StepPlan* p) { p->copies[0].blocks.source = BlockId{1}; });
}

}  // namespace
}  // namespace blockmgr
