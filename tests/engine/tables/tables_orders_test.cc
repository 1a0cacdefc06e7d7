// Orders of evictions, as far as tables are concerned.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

TEST_F(EngineTablesTest, CommitReplacesTheTokensBelowTheCut) {
  const StepPlan plan = EvictionPlan();
  ASSERT_OK(tables_.Apply(plan));
  ASSERT_OK(tables_.CheckOrder(plan, plan.evictions[0]));
  const std::vector<int32_t> counts = {16, 3, 0, 16};
  ASSERT_OK(tables_.CheckCounts(plan.evictions[0], counts));
  tables_.Commit(plan, plan.evictions[0], counts);
  const TableRegion& region = RegionOf(kTestSlot);
  EXPECT_EQ(region.cut, 32);
  EXPECT_THAT(region.shard_entries, ElementsAre(35));
  EXPECT_THAT(region.kept, ElementsAre(16, 3, 0, 16));
  EXPECT_THAT(region.blocks, ElementsAre(BlockId{10}));
  EXPECT_THAT(BlocksOf(kTestSlot), ElementsAre(BlockId{3}));
  EXPECT_THAT(tables_.CheckOrder(plan, plan.evictions[0]),
              IsRefused("second order"));
}

TEST_F(EngineTablesTest, ARefusedPlanDoesNotLetAnOrderBeCarriedOutAgain) {
  const StepPlan plan = EvictionPlan();
  ASSERT_OK(tables_.Apply(plan));
  tables_.Commit(plan, plan.evictions[0], std::vector<int32_t>{16, 3, 0, 16});
  EXPECT_THAT(tables_.Apply(plan),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(tables_.CheckOrder(plan, plan.evictions[0]),
              IsRefused("second order"));
}

TEST_F(EngineTablesTest, CountsMustFitEntriesPagesAndDestinations) {
  StepPlan plan = EvictionPlan();
  ASSERT_OK(tables_.Apply(plan));
  EvictionOrder order = plan.evictions[0];
  const auto refused = [&](std::vector<int32_t> counts, const char* message) {
    EXPECT_THAT(tables_.CheckCounts(order, counts), IsRefused(message));
  };
  EXPECT_OK(tables_.CheckCounts(order, std::vector<int32_t>{32, 16, 16, 0}));
  refused({33, 0, 0, 0}, "at most 32 entries");
  refused({-1, 0, 0, 0}, "at most 32 entries");
  refused({32, 17, 16, 0}, "page_total 4 pages, got 5");
  order.page_total = 100;
  refused({32, 17, 16, 0}, "destinations' 4 pages, got 5");
}

TEST_F(EngineTablesTest, ATableThatNamesABlockTwiceIsNotEvicted) {
  EngineTables tables(kTablesLayout, 8);
  StepPlan start = StartPlan();
  start.blocks = {BlockId{1}, BlockId{1}, BlockId{3}};
  ASSERT_OK(tables.Apply(start));
  tables.AddSampled(kTestSlot, 9);
  StepPlan plan = EvictionPlan();
  plan.destinations = Blocks(1, 1);
  ASSERT_OK(tables.Apply(plan));
  EXPECT_THAT(tables.CheckOrder(plan, plan.evictions[0]),
              IsRefused("blocks: expected different ones below the "
                        "cut, got block 1 twice"));
}

TEST_F(EngineTablesTest, ATailOnABlockOfItsRegionIsNotEvicted) {
  StepPlan plan = EvictionPlan();
  ASSERT_OK(tables_.Apply(plan));
  tables_.Commit(plan, plan.evictions[0], std::vector<int32_t>{16, 3, 0, 16});
  for (int32_t position = 41; position < 65; ++position) {
    tables_.AddSampled(kTestSlot, 9);
    plan = DecodePlan();
    plan.positions = {position};
    if (position % 16 == 0) {
      plan.block_offsets = {0, 1};
      plan.blocks = Blocks(position == 48 ? 10 : 11, 1);
    }
    ASSERT_OK(tables_.Apply(plan));
  }
  plan.evictions = EvictionPlan().evictions;
  plan.evictions[0].cut = 64;
  plan.evictions[0].length = 65;
  plan.destinations = Blocks(10, 1);
  EXPECT_THAT(tables_.CheckOrder(plan, plan.evictions[0]),
              IsRefused("blocks: expected different ones below the "
                        "cut, got block 10 twice"));
}

TEST_F(EngineTablesTest, AnOrderHasBudgetsOfItsOwn) {
  StepPlan plan = EvictionPlan();
  ASSERT_OK(tables_.Apply(plan));
  plan.evictions[0].policy = *ParsePolicy("keydiff | lukv(profile=p)");
  EXPECT_THAT(tables_.CheckOrder(plan, plan.evictions[0]),
              IsRefused("expected budgets of the order's own, got "
                        "keydiff"));
}

TEST_F(EngineTablesTest, CountsMustFitEveryShard) {
  ModelLayout layout = kTablesLayout;
  layout.num_shards = 2;
  EngineTables tables(layout, 16);
  ASSERT_OK(tables.Apply(StartPlan()));
  tables.AddSampled(kTestSlot, 5);
  StepPlan plan = EvictionPlan();
  ASSERT_OK(tables.Apply(plan));
  EvictionOrder order = plan.evictions[0];
  const auto refused = [&](std::vector<int32_t> counts, const char* message) {
    EXPECT_THAT(tables.CheckCounts(order, counts), IsRefused(message));
  };
  // A block has two pages in each shard.
  order.page_total = 2;
  order.shard_page_totals = {1, 2};
  EXPECT_OK(tables.CheckCounts(order, std::vector<int32_t>{16, 32, 0, 0}));
  refused({16, 0, 1, 0}, "page_total 1 pages in shard 0, got 2");
  refused({0, 32, 0, 1}, "page_total 2 pages in shard 1, got 3");
  order.page_total = 100;
  order.shard_page_totals.clear();
  refused({0, 32, 0, 1}, "destinations' 2 pages in shard 1, got 3");
  ASSERT_OK(tables.CheckOrder(plan, plan.evictions[0]));
  tables.Commit(plan, plan.evictions[0], std::vector<int32_t>{3, 32, 2, 0});
  EXPECT_THAT(tables.row(kTestSlot).groups[0].region.shard_entries,
              ElementsAre(5, 32));
}

TEST_F(EngineTablesTest, RefusesBadOrders) {
  ExpectOrderRefused("not in use", [](StepPlan* p) {
    p->evictions[0].slot = SequenceSlot{1};
  });
  ExpectOrderRefused("length: expected 41, got 40",
                     [](StepPlan* p) { p->evictions[0].length = 40; });
  for (const int32_t cut : {0, -16, 31, 48}) {
    ExpectOrderRefused("cut: expected a positive multiple of 16",
                       [=](StepPlan* p) { p->evictions[0].cut = cut; });
  }
  ExpectOrderRefused(
      "sinks", [](StepPlan* p) { p->evictions[0].policy.scorer.sinks = -1; });
  ExpectOrderRefused("a part of 1",
                     [](StepPlan* p) { p->evictions[0].num_destinations = 2; });
  ExpectOrderRefused("shard_page_totals: expected none or 1 values, got 2",
                     [](StepPlan* p) {
                       p->evictions[0].shard_page_totals = {4, 4};
                     });
  ExpectOrderRefused("block ids in [1, 64)",
                     [](StepPlan* p) { p->destinations = {kNullBlock}; });
  ExpectOrderRefused("tokens that stay",
                     [](StepPlan* p) { p->destinations = {BlockId{3}}; });
  ExpectOrderRefused("named twice", [](StepPlan* p) {
    p->evictions[0].num_destinations = 2;
    p->destinations = {BlockId{9}, BlockId{9}};
  });
}

TEST_F(EngineTablesTest, ChecksShapesOfExternalInput) {
  ExpectOrderRefused("scores: expected 128 values, got 127", [](StepPlan* p) {
    p->evictions[0].policy.scorer.kind = ScorerKind::kExternal;
    p->evictions[0].scores = std::make_shared<std::vector<float>>(127);
  });
  ExpectOrderRefused("budgets: expected 4 values, got 0", [](StepPlan* p) {
    p->evictions[0].policy.budget.kind = BudgetKind::kExternal;
  });
  ExpectOrderRefused("got -2", [](StepPlan* p) {
    p->evictions[0].policy.budget.kind = BudgetKind::kExternal;
    p->evictions[0].budgets = std::make_shared<std::vector<int32_t>>(
        std::vector<int32_t>{1, -2, 3, 4});
  });
}

}  // namespace
}  // namespace blockmgr
