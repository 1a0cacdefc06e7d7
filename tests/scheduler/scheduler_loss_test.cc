// Blocks that the engine has lost: who holds one goes on from what is left, and
// outputs what it does alone; nobody else notices.

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/block_tables.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The index-th block of the request's tail.
BlockId TailBlock(SchedulerDriver& driver, RequestId id, size_t index) {
  const SequenceSlot slot = driver.SlotOf(id);
  return driver.scheduler().manager().sequence(slot).first().tail.at(index);
}

class LossTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() { return PlainOptions(GetParam()); }
  // With as many steps in flight as allowed, the oldest of which reports them.
  static void Lose(SchedulerDriver* driver,
                   const std::vector<BlockId>& blocks) {
    while (driver->Issue()) {
    }
    driver->engine().LoseBlocks(blocks);
    driver->Answer();
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, LossTest, testing::Values(1, 2, 4));

TEST_P(LossTest, GoesOnFromItsLongestValidPrefix) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  const RequestId id = Submit(&driver, MakeRequest("a", 22, 12));
  const RequestId other = Submit(&driver, MakeRequest("b", 22, 12, 1));
  driver.RunUntilOutputs(id, 3);
  const size_t before = driver.served(id).outputs.size();
  const size_t other_before = driver.served(other).outputs.size();
  Lose(&driver, {TailBlock(driver, id, 2), TailBlock(driver, id, 4)});
  // What the step sampled was sampled from what is lost.
  EXPECT_THAT(driver.served(id).outputs, SizeIs(before));
  EXPECT_THAT(driver.served(other).outputs, SizeIs(other_before + 1));
  const SequenceSlot slot = driver.SlotOf(id);
  EXPECT_EQ(driver.scheduler().manager().sequence(slot).num_settled, 8);
  EXPECT_EQ(driver.scheduler().stats().num_lost_blocks, 2u);
  EXPECT_EQ(driver.scheduler().stats().num_cut_requests, 1u);

  driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
  ASSERT_NE(driver.StartInPlan(id), nullptr);
  EXPECT_EQ(driver.StartInPlan(id)->source, slot);
  EXPECT_EQ(driver.StartInPlan(id)->slot, slot);
  EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, 8);
  EXPECT_THAT(driver.plan().released, IsEmpty());
  EXPECT_EQ(driver.CountTokensInPlan(id),
            22 + static_cast<int32_t>(before) - 8);
  driver.Finish();
  EXPECT_EQ(driver.served(id).finish->num_preemptions, 0);
}

TEST_P(LossTest, StartsAnewWithoutItsFirstBlock) {
  SchedulerDriver driver(SmallLayout(4, 61), Options());
  const RequestId id = Submit(&driver, MakeRequest("a", 22, 12));
  driver.RunUntilOutputs(id, 3);
  const SequenceSlot slot = driver.SlotOf(id);
  Lose(&driver, {TailBlock(driver, id, 0)});
  EXPECT_EQ(driver.scheduler().stats().num_running, 0);
  driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
  EXPECT_EQ(driver.StartInPlan(id)->source, kNoSequenceSlot);
  EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, 0);
  EXPECT_THAT(driver.plan().released, testing::ElementsAre(slot));
  driver.Finish();
  EXPECT_EQ(driver.served(id).finish->num_preemptions, 0);
}

TEST_P(LossTest, NobodyFindsWhatIsLost) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  SchedulerDriver driver(SmallLayout(4, 61), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 22, 12));
  driver.RunUntilOutputs(a, 2);
  const RequestId b = Submit(&driver, MakeRequest("b", 30, 12));
  driver.RunUntilOutputs(b, 2);
  ASSERT_EQ(TailBlock(driver, a, 3), TailBlock(driver, b, 3));
  Lose(&driver, {TailBlock(driver, a, 3)});
  EXPECT_EQ(driver.scheduler().stats().num_cut_requests, 2u);
  const RequestId c = Submit(&driver, MakeRequest("c", 21, 12));
  driver.Drain();
  // The first three blocks are good; the fourth may have been computed again.
  EXPECT_GE(driver.served(c).finish->num_cached_tokens, 12);
  driver.CheckQuiescent();
}

TEST_P(LossTest, CachedBlocksThatNobodyHoldsAreForgotten) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  SchedulerDriver driver(SmallLayout(4, 61), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 22, 2));
  driver.RunUntilOutputs(a, 1);
  const BlockId block = TailBlock(driver, a, 2);
  driver.Drain();
  const RequestId other = Submit(&driver, MakeRequest("b", 5, 12, 1));
  driver.RunUntilOutputs(other, 2);
  Lose(&driver, {block});
  EXPECT_EQ(driver.scheduler().stats().num_cut_requests, 0u);
  const RequestId c = Submit(&driver, MakeRequest("c", 21, 2));
  driver.Finish();
  EXPECT_EQ(driver.served(c).finish->num_cached_tokens, 8);
}

TEST_P(LossTest, KeepsItsRegionAndLosesTheTail) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  Request request = MakeRequest("a", 22, 30);
  request.eviction = Recency(6);
  const RequestId id = Submit(&driver, request);
  driver.RunUntilOutputs(id, 16);
  ASSERT_THAT(driver.served(id).recorded, SizeIs(1));
  const SequenceSlot slot = driver.SlotOf(id);
  // Positions 20 to 23, 24 to 27, ...: the compression was at 22.
  Lose(&driver, {TailBlock(driver, id, 1)});
  driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
  EXPECT_EQ(driver.StartInPlan(id)->source, slot);
  EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, 24);
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_evictions, 1u);
}

// Its compression is still to come, and does where it would.
TEST_P(LossTest, IsCompressedAfterALossBeforeThat) {
  SchedulerOptions options = Options();
  options.max_num_batched_tokens = 16;
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
  Request request = MakeRequest("a", 200, 6);
  request.eviction = Recency(6);
  const RequestId id = Submit(&driver, request);
  for (int32_t i = 0; i < 3; ++i) driver.Step();
  const SequenceSlot slot = driver.SlotOf(id);
  Lose(&driver, {TailBlock(driver, id, 5), TailBlock(driver, id, 9)});
  driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
  EXPECT_EQ(driver.StartInPlan(id)->source, slot);
  EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, 20);
  driver.Finish();
  ASSERT_THAT(driver.served(id).recorded, SizeIs(1));
  EXPECT_EQ(driver.served(id).recorded[0].length, 200);
}

// What was computed before the compression cannot be computed after it; nor is
// anything left of who lost its region. The prefix cache may have what was
// there before: five pages.
TEST_P(LossTest, ReplaysItsCompressionWhenItMust) {
  for (const bool caches : {false, true}) {
    for (const bool of_region : {false, true}) {
      SchedulerOptions options = Options();
      options.enable_prefix_caching = caches;
      SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
      Request request = MakeRequest("a", 22, 30);
      request.eviction = Recency(6);
      const RequestId id = Submit(&driver, request);
      driver.RunUntilOutputs(id, 16);
      const SequenceCache& sequence =
          driver.scheduler().manager().sequence(driver.SlotOf(id));
      const BlockId block = of_region ? sequence.first().region->blocks.front()
                                      : sequence.first().tail.front();
      Lose(&driver, {block});
      driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
      EXPECT_EQ(driver.StartInPlan(id)->source, kNoSequenceSlot);
      EXPECT_EQ(driver.StartInPlan(id)->region, kNoRegion);
      EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, caches ? 20 : 0);
      driver.Finish();
      EXPECT_EQ(driver.scheduler().stats().num_evictions, 2u);
    }
  }
}

// A page counts in all groups, and a prefix as long as the window before its
// end is there: in the tables, or else in the prefix cache.
TEST_P(LossTest, GoesOnAsFarAsEveryGroupHasIt) {
  for (const bool caches : {false, true}) {
    for (const int32_t group : {0, 1}) {
      for (const bool has_moved : {false, true}) {
        SCOPED_TRACE(testing::Message() << "caches " << caches << ", group "
                                        << group << ", moved " << has_moved);
        SchedulerOptions options = Options();
        options.enable_prefix_caching = caches;
        ModelLayout layout = SmallLayout(4, 61, 2, 2);
        layout.group_windows = {20};
        SchedulerDriver driver(layout, options);
        const RequestId id = Submit(&driver, MakeRequest("a", 10, 60));
        // The window of 20 has them all, or not what comes before 44.
        driver.RunUntilOutputs(id, has_moved ? 41 : 5);
        const size_t page = has_moved ? 11 : 2;
        const int32_t length = has_moved ? 44 : 8;
        const SequenceSlot slot = driver.SlotOf(id);
        Lose(&driver, {group == 0 ? TailBlock(driver, id, page)
                                  : BlocksByPage(driver.scheduler()
                                                     .manager()
                                                     .sequence(slot)
                                                     .groups[1])[page]});
        driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
        EXPECT_EQ(driver.StartInPlan(id)->source,
                  has_moved ? kNoSequenceSlot : slot);
        EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens,
                  has_moved && !caches ? 0 : length);
        driver.Finish();
      }
    }
  }
}

TEST_P(LossTest, LosesAnOrderInFlight) {
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), Options());
  Request request = MakeRequest("a", 22, 30);
  const RequestId id = Submit(&driver, request);
  driver.RunUntilOutputs(id, 4);
  ASSERT_OK_AND_ASSIGN(const uint64_t number,
                       driver.Evict(id, RecencyCommand(6)));
  while (driver.ok() && driver.plan().evictions.empty()) {
    if (!driver.Issue()) driver.Answer();
  }
  driver.engine().LoseBlocks({TailBlock(driver, id, 2)});
  driver.Answer();
  driver.Drain();
  ASSERT_THAT(driver.served(id).evictions, SizeIs(1));
  EXPECT_EQ(driver.served(id).evictions[0].command, number);
  EXPECT_THAT(driver.served(id).evictions[0].status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("lost blocks")));
  driver.CheckQuiescent();
}

TEST_P(LossTest, AccumulatedScoresAreAccumulatedAgain) {
  SchedulerOptions options = Options();
  options.engine.num_scorer_states = 1;
  SchedulerDriver driver(SmallLayout(4, 61, 2, 2), options);
  Request request = MakeRequest("a", 22, 40);
  request.eviction = Recency(6, EvictionMode::kDecode, 16);
  request.eviction.policy.scorer = ScorerSpec{};
  request.eviction.policy.scorer.kind = ScorerKind::kH2o;
  const RequestId id = Submit(&driver, request);
  driver.RunUntilOutputs(id, 8);
  Lose(&driver, {TailBlock(driver, id, 1)});
  driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
  EXPECT_EQ(driver.StartInPlan(id)->num_cached_tokens, 0);
  driver.Finish();
}

// The engine refuses the only squeeze; nothing else says where accumulation
// begins.
TEST_P(LossTest, StartsAnewWithoutTheSqueezeThatWasRefused) {
  SchedulerOptions options = Options();
  options.engine.num_scorer_states = 2;
  SchedulerDriver driver(SmallLayout(4, 25), options);
  driver.engine().RefuseOrders(true);
  Request request = MakeRequest("a", 20, 60);
  request.eviction = Recency(8);
  request.eviction.mode = EvictionMode::kPressure;
  request.eviction.policy.scorer = ScorerSpec{};
  request.eviction.policy.scorer.kind = ScorerKind::kExpectedAttention;
  request.eviction.policy.scorer.n_sink = 4;
  const RequestId id = Submit(&driver, request);
  Submit(&driver, MakeRequest("b", 20, 60, 1));
  driver.RunUntil([&] { return !driver.served(id).evictions.empty(); });
  ASSERT_FALSE(driver.served(id).evictions.empty());
  EXPECT_FALSE(driver.served(id).evictions[0].status.ok());
  if (driver.SlotOf(id) != kNoSequenceSlot) {
    Lose(&driver, {TailBlock(driver, id, 0)});
  }
  driver.RunUntil([&] { return driver.StartInPlan(id) != nullptr; });
  ASSERT_NE(driver.StartInPlan(id), nullptr);
  EXPECT_EQ(driver.StartInPlan(id)->state_begin, 4);
  driver.Finish();
}

TEST_P(LossTest, RefusesBlocksThatThePoolDoesNotHave) {
  SchedulerDriver driver(SmallLayout(4, 20), Options());
  Submit(&driver, MakeRequest("a", 22, 3));
  ASSERT_TRUE(driver.Issue());
  std::vector<WrongAnswer> cases;
  cases.reserve(3);
  for (const int32_t block : {0, -1, 21}) {
    cases.push_back({"lost_blocks[1]: expected 1 to 20", [block](auto* result) {
                       result->lost_blocks = {BlockId{3}, BlockId{block}};
                     }});
  }
  driver.AnswerWith([&](StepResult* result) {
    ExpectRefused(cases, *result, &driver.scheduler());
  });
  driver.Finish();
}

}  // namespace
}  // namespace blockmgr
