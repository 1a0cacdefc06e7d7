// Drafts in the tables: from the announcement to the answer.

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EngineTablesDraftsTest : public EngineTablesTest {
 protected:
  EngineTablesDraftsTest() {
    std::vector<int32_t> drafts(12);
    std::iota(drafts.begin(), drafts.end(), 100);
    tables_.SetDrafts(kTestSlot, drafts);
  }
  // Position 40, where 9 was sampled, and ten drafts: into a fourth block.
  static StepPlan DraftPlan() {
    StepPlan plan = DecodePlan();
    plan.num_tokens = {11};
    plan.num_drafts = {10};
    plan.block_offsets = {0, 1};
    plan.blocks = Blocks(9, 1);
    return plan;
  }
  const SequenceTable& row() const { return tables_.row(kTestSlot); }
};

TEST_F(EngineTablesDraftsTest, TheFirstOnesAreTokensWhileTheyRun) {
  ASSERT_OK(tables_.Apply(DraftPlan()));
  EXPECT_EQ(row().num_computed, 51);
  ASSERT_THAT(row().tokens, SizeIs(51));
  EXPECT_EQ(row().tokens[40], 9);
  EXPECT_EQ(row().tokens[41], 100);
  EXPECT_EQ(row().tokens[50], 109);
  EXPECT_THAT(row().groups[0].blocks, SizeIs(4));
  EXPECT_THAT(row().drafts, IsEmpty());
}

TEST_F(EngineTablesDraftsTest, RejectedOnesAreForgottenWithTheirBlocks) {
  ASSERT_OK(tables_.Apply(DraftPlan()));
  tables_.RejectDrafts(kTestSlot, 10, 7);
  EXPECT_EQ(row().num_computed, 48);
  ASSERT_THAT(row().tokens, SizeIs(48));
  EXPECT_EQ(row().tokens.back(), 106);
  EXPECT_THAT(row().groups[0].blocks,
              ElementsAre(BlockId{1}, BlockId{2}, BlockId{3}));
  tables_.AddSampled(kTestSlot, 4);
  StepPlan next = DecodePlan();
  next.positions = {48};
  next.block_offsets = {0, 1};
  next.blocks = Blocks(12, 1);
  EXPECT_OK(tables_.Apply(next));
}

TEST_F(EngineTablesDraftsTest, AcceptedOnesStay) {
  ASSERT_OK(tables_.Apply(DraftPlan()));
  tables_.RejectDrafts(kTestSlot, 10, 10);
  EXPECT_EQ(row().num_computed, 51);
  EXPECT_THAT(row().groups[0].blocks, SizeIs(4));
  tables_.AddSampled(kTestSlot, 4);
  EXPECT_THAT(row().tokens, SizeIs(52));
}

// They hold until the next run, whether it takes them or not.
TEST_F(EngineTablesDraftsTest, APlainRunEndsThem) {
  ASSERT_OK(tables_.Apply(DecodePlan()));
  EXPECT_THAT(row().drafts, IsEmpty());
  tables_.AddSampled(kTestSlot, 4);
  EXPECT_THAT(row().tokens, SizeIs(42));
}

TEST_F(EngineTablesDraftsTest, PlansWithWrongDraftsAreRefused) {
  ExpectRefused(DraftPlan(),
                "plan.num_drafts of slot 3: expected 0..12, got 13",
                [](StepPlan* plan) { plan->num_drafts = {13}; });
  ExpectRefused(DraftPlan(), "expected 0..12, got -1",
                [](StepPlan* plan) { plan->num_drafts = {-1}; });
  ExpectRefused(DraftPlan(), "expected 0, as it does not sample",
                [](StepPlan* plan) { plan->samples = {0}; });
  ExpectRefused(DraftPlan(), "expected 1..1 tokens, got 11",
                [](StepPlan* plan) { plan->num_drafts.clear(); });
  ExpectRefused(DraftPlan(), "expected 1..10 tokens, got 11",
                [](StepPlan* plan) { plan->num_drafts = {9}; });
  ExpectRefused(DraftPlan(),
                "samples after position 51, but 52 tokens are known",
                [](StepPlan* plan) { plan->num_drafts = {11}; });
  ExpectRefused(DraftPlan(), "plan.num_drafts: expected 1 elements, got 2",
                [](StepPlan* plan) {
                  plan->num_drafts = {5, 5};
                });
  EXPECT_THAT(row().drafts, SizeIs(12));
}

}  // namespace
}  // namespace blockmgr
