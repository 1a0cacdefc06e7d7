// What a step plan says.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<int32_t> TokensOf(const StepPlan& plan,
                              const SequenceStart& start) {
  const auto begin = plan.start_tokens.begin() + start.token_begin;
  return {begin, begin + start.num_tokens};
}

TEST(SchedulerApplyTest, AStartCarriesTheTokensAndTheQueryWindow) {
  SchedulerDriver driver(SmallLayout(4, 20), PlainOptions());
  Submit(&driver, MakeRequest("a", 6, 4));
  Request request = MakeRequest("b", 20, 4, 1);
  request.eviction = SnapKv(7, 4);
  Submit(&driver, request);
  ASSERT_TRUE(driver.Issue());
  const StepPlan& plan = driver.plan();
  ASSERT_THAT(plan.starts, SizeIs(2));
  EXPECT_EQ(TokensOf(plan, plan.starts[0]), MakeRequest("", 6, 1).prompt);
  EXPECT_EQ(TokensOf(plan, plan.starts[1]), request.prompt);
  EXPECT_EQ(plan.starts[0].query_window, 4);  // the option
  EXPECT_EQ(plan.starts[1].query_window, 7);
  EXPECT_EQ(plan.starts[0].num_cached_tokens, 0);
  EXPECT_THAT(plan.positions, ElementsAre(0, 0));
  EXPECT_THAT(plan.num_tokens, ElementsAre(6, 20));
  EXPECT_THAT(plan.samples, ElementsAre(1, 1));
  EXPECT_THAT(plan.block_offsets, ElementsAre(0, 2, 7));
}

TEST(SchedulerApplyTest, BlocksComeWhenPagesAreFull) {
  SchedulerDriver driver(SmallLayout(4, 20), PlainOptions());
  const RequestId id = Submit(&driver, MakeRequest("a", 6, 6));
  std::vector<size_t> counts;
  while (driver.scheduler().has_unfinished_requests() && driver.ok()) {
    driver.Step();
    counts.push_back(driver.BlocksInPlan(id).size());
  }
  // Positions 0..5, 6, 7, 8, 9, 10; the sixth output is no input.
  EXPECT_THAT(counts, ElementsAre(2, 0, 0, 1, 0, 0));
}

// Two requests that begin alike, a step after each other.
class PrefixHitPlanTest : public testing::Test {
 protected:
  // The first has ten tokens; the plan of the second's first step is at hand.
  void Run(bool reuse_partial_blocks, int32_t num_prompt) {
    SchedulerOptions options = CachingOptions();
    options.reuse_partial_blocks = reuse_partial_blocks;
    driver_ = std::make_unique<SchedulerDriver>(SmallLayout(4, 20), options);
    const RequestId a = Submit(driver_.get(), MakeRequest("a", 10, 20));
    driver_->Step();
    first_ = driver_->BlocksInPlan(a);
    b_ = Submit(driver_.get(), MakeRequest("b", num_prompt, 20));
    driver_->Step();
    second_ = driver_->BlocksInPlan(b_);
    ASSERT_THAT(driver_->plan().starts, SizeIs(1));
  }
  void Finish() { driver_->Finish(); }

  std::unique_ptr<SchedulerDriver> driver_;
  RequestId b_{0};
  std::vector<BlockId> first_;
  std::vector<BlockId> second_;
};

TEST_F(PrefixHitPlanTest, MatchedBlocksComeFirst) {
  Run(false, 10);
  EXPECT_EQ(driver_->plan().starts[0].num_cached_tokens, 8);
  ASSERT_THAT(second_, SizeIs(3));
  EXPECT_EQ(second_[0], first_[0]);
  EXPECT_EQ(second_[1], first_[1]);
  EXPECT_NE(second_[2], first_[2]);
  EXPECT_EQ(driver_->CountTokensInPlan(b_), 2);
  Finish();
}

// The first rows of the second block, where that is wanted.
TEST_F(PrefixHitPlanTest, APartOfABlockIsCopied) {
  for (const bool wanted : {false, true}) {
    Run(wanted, 7);
    // The last token is computed in any case.
    EXPECT_EQ(driver_->plan().starts[0].num_cached_tokens, wanted ? 6 : 4);
    EXPECT_EQ(driver_->CountTokensInPlan(b_), wanted ? 1 : 3);
    ASSERT_THAT(second_, SizeIs(2));
    EXPECT_EQ(second_[0], first_[0]);
    EXPECT_NE(second_[1], first_[1]);
    const std::vector<CopyOnWrite>& copies = driver_->plan().copies;
    ASSERT_EQ(copies.size(), wanted ? 1u : 0u);
    if (wanted) {
      EXPECT_EQ(copies[0], (CopyOnWrite{driver_->plan().starts[0].slot,
                                        {first_[1], second_[1]},
                                        2}));
    }
    Finish();
  }
}

// The source of a copy is held until the copy is made: where that is too much,
// the rows are computed.
TEST(SchedulerApplyTest, APartThatDoesNotFitIsComputed) {
  for (const int32_t num_usable : {2, 3}) {
    SchedulerOptions options = CachingOptions();
    options.reuse_partial_blocks = true;
    SchedulerDriver driver(SmallLayout(4, num_usable), options);
    Submit(&driver, MakeRequest("a", 8, 1));
    driver.Drain();
    const RequestId b = Submit(&driver, MakeRequest("b", 7, 2));
    driver.Step();
    ASSERT_THAT(driver.plan().starts, SizeIs(1));
    EXPECT_EQ(driver.plan().starts[0].num_cached_tokens,
              num_usable == 2 ? 4 : 6);
    EXPECT_EQ(driver.plan().copies.size(), num_usable == 2 ? 0u : 1u);
    driver.Finish();
    EXPECT_EQ(driver.served(b).outputs.size(), 2u);
  }
}

// Tenants, adapters, salts and pictures share no rows with others.
TEST(SchedulerApplyTest, PartsOfBlocksStayInTheirScope) {
  const std::vector<ContentScope> scopes = {
      {},
      {.tenant = "t"},
      {.lora = "l"},
      {.cache_salt = "s"},
      {.media = {{.begin = 1, .length = 2, .hash = "h"}}}};
  for (size_t i = 0; i < scopes.size(); ++i) {
    for (size_t j = 0; j < scopes.size(); ++j) {
      SCOPED_TRACE(testing::Message() << i << " and " << j);
      SchedulerOptions options = CachingOptions();
      options.reuse_partial_blocks = true;
      SchedulerDriver driver(SmallLayout(4, 20), options);
      Request request = MakeRequest("a", 10, 1);
      request.scope = scopes[i];
      Submit(&driver, request);
      driver.Drain();
      request = MakeRequest("b", 7, 2);
      request.scope = scopes[j];
      Submit(&driver, request);
      driver.Step();
      ASSERT_THAT(driver.plan().starts, SizeIs(1));
      EXPECT_EQ(driver.plan().starts[0].num_cached_tokens, i == j ? 6 : 0);
      EXPECT_THAT(driver.plan().copies, SizeIs(i == j ? 1 : 0));
      driver.Finish();
    }
  }
}

TEST(SchedulerApplyTest, AReleasedSlotIsToldBeforeItIsUsedAgain) {
  SchedulerOptions options = PlainOptions();
  options.max_num_seqs = 1;
  SchedulerDriver driver(SmallLayout(4, 20), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 4, 1));
  driver.Step();
  ASSERT_TRUE(driver.served(a).finish.has_value());
  EXPECT_THAT(driver.plan().released, IsEmpty());
  Submit(&driver, MakeRequest("b", 4, 3));
  driver.Step();
  EXPECT_THAT(driver.plan().released, ElementsAre(SequenceSlot{0}));
  ASSERT_THAT(driver.plan().starts, SizeIs(1));
  EXPECT_EQ(driver.plan().starts[0].slot, SequenceSlot{0});
  driver.Step();
  EXPECT_THAT(driver.plan().released, IsEmpty());
}

TEST(SchedulerApplyTest, AResumedRequestBringsItsOutputs) {
  SchedulerDriver driver(SmallLayout(4, 20), PlainOptions());
  const RequestId id = Submit(&driver, MakeRequest("a", 5, 9));
  driver.RunUntilOutputs(id, 3);
  driver.LoseEngine();
  ASSERT_TRUE(driver.Issue());
  std::vector<int32_t> known = driver.served(id).request.prompt;
  known.insert(known.end(), driver.served(id).outputs.begin(),
               driver.served(id).outputs.end());
  ASSERT_THAT(driver.plan().starts, SizeIs(1));
  EXPECT_EQ(TokensOf(driver.plan(), driver.plan().starts[0]), known);
  EXPECT_THAT(driver.plan().num_tokens, ElementsAre(8));
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_recomputed_tokens, 7);
}

class EvictionOrderTest : public testing::Test {
 protected:
  // 22 tokens, 4 to a page: [0, 20) goes into 6 pages of 4 in a block.
  void Order(CompactionPreference preference, int32_t num_usable) {
    SchedulerOptions options = PlainOptions();
    options.compaction = preference;
    driver_ = std::make_unique<SchedulerDriver>(
        SmallLayout(4, num_usable, 2, 2), options);
    Request request = MakeRequest("a", 22, 9);
    request.eviction = Recency(6);
    id_ = Submit(driver_.get(), request);
    ASSERT_TRUE(driver_->Issue());
    const StepPlan& plan = driver_->plan();
    ASSERT_THAT(plan.evictions, SizeIs(1));
    const EvictionOrder& order = plan.evictions[0];
    EXPECT_EQ(order.slot, driver_->SlotOf(id_));
    EXPECT_EQ(order.cut, 20);
    EXPECT_EQ(order.length, 22);
    EXPECT_EQ(order.page_total, 6);
    EXPECT_EQ(order.num_destinations, 2);
    EXPECT_EQ(order.policy, request.eviction.policy);
    EXPECT_EQ(order.target, request.eviction.target);
    EXPECT_EQ(order.scores, nullptr);
    EXPECT_EQ(order.budgets, nullptr);
    blocks_ = driver_->BlocksInPlan(id_);
    ASSERT_THAT(blocks_, SizeIs(6));
  }
  void Finish() {
    driver_->Drain();
    ASSERT_THAT(driver_->served(id_).evictions, SizeIs(1));
    const EvictionEffect& effect = driver_->served(id_).evictions[0];
    EXPECT_EQ(effect.command, 0);
    EXPECT_EQ(effect.cut, 20);
    EXPECT_GE(effect.freed_blocks, 3);
    EXPECT_EQ(
        effect.freed_bytes,
        effect.freed_blocks * driver_->scheduler().layout().block_bytes());
    int64_t kept = 0;
    for (const int32_t count : effect.kept_entries) kept += count;
    EXPECT_EQ(effect.evicted_entries + kept, 4 * 20);
    driver_->CheckQuiescent();
  }

  std::unique_ptr<SchedulerDriver> driver_;
  RequestId id_{0};
  std::vector<BlockId> blocks_;
};

TEST_F(EvictionOrderTest, CopiesToFreshBlocks) {
  Order(CompactionPreference::kFreshFirst, 8);
  for (const BlockId block : driver_->plan().destinations) {
    EXPECT_THAT(blocks_, testing::Not(testing::Contains(block)));
  }
  Finish();
}

TEST_F(EvictionOrderTest, CompactsInPlaceWhereBlocksAreShort) {
  Order(CompactionPreference::kFreshFirst, 7);
  EXPECT_THAT(driver_->plan().destinations,
              ElementsAre(blocks_[0], blocks_[1]));
  Finish();
}

TEST_F(EvictionOrderTest, CompactsInPlaceWherePreferred) {
  Order(CompactionPreference::kInPlace, 20);
  EXPECT_THAT(driver_->plan().destinations,
              ElementsAre(blocks_[0], blocks_[1]));
  Finish();
}

// Two requests of 6 blocks whose orders take 2 destinations each, in one step.
// How many of them copy: the second only as far as the first, and the
// watermark, have left blocks.
class HeadroomTest : public testing::TestWithParam<bool> {
 protected:
  static int32_t CountCopies(int32_t num_usable, double watermark) {
    const bool while_running = GetParam();
    SchedulerOptions options = PlainOptions();
    options.watermark = watermark;
    options.compaction = CompactionPreference::kFreshFirst;
    options.chunk_policy = ChunkPolicy::kEqualProgress;
    options.max_num_batched_tokens = while_running ? 32 : 64;
    SchedulerDriver driver(SmallLayout(4, num_usable, 2, 2), options);
    std::vector<RequestId> ids;
    for (const char* name : {"a", "b"}) {
      Request request = MakeRequest(name, 22, 2, name[0]);
      request.eviction = Recency(6);
      ids.push_back(Submit(&driver, request));
    }
    std::vector<BlockId> held;
    if (while_running) {
      driver.Step();
      held = driver.plan().blocks;
    }
    EXPECT_TRUE(driver.Issue());
    const StepPlan& plan = driver.plan();
    held.insert(held.end(), plan.blocks.begin(), plan.blocks.end());
    EXPECT_THAT(held, SizeIs(12));
    EXPECT_THAT(plan.evictions, SizeIs(2));
    int32_t num_copies = 0;
    for (const EvictionOrder& order : plan.evictions) {
      EXPECT_EQ(order.num_destinations, 2);
      const auto begin = plan.destinations.begin() + order.destination_begin;
      num_copies += std::count(held.begin(), held.end(), *begin) == 0;
    }
    driver.Finish();
    return num_copies;
  }
};

TEST_P(HeadroomTest, IsSharedByTheOrdersOfAStep) {
  EXPECT_EQ(CountCopies(16, 0), 2);
  EXPECT_EQ(CountCopies(15, 0), 1);
  EXPECT_EQ(CountCopies(14, 0), 1);
  // Of two that are admitted, the first copies, and the second has to wait.
  if (GetParam()) {
    EXPECT_EQ(CountCopies(13, 0), 0);
  }
}

TEST_P(HeadroomTest, IsWhatIsBeyondTheWatermark) {
  // 20 % of 20 blocks.
  EXPECT_EQ(CountCopies(20, 0.2), 2);
  EXPECT_EQ(CountCopies(20, 0.25), 1);
  EXPECT_EQ(CountCopies(20, 0.3), 1);
  if (GetParam()) {
    EXPECT_EQ(CountCopies(20, 0.35), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(WhileRunning, HeadroomTest, testing::Bool());

TEST_F(EvictionOrderTest, TheSequenceRunsOnWhileItIsUnderWay) {
  SchedulerDriver driver(SmallLayout(4, 20, 2, 2), PlainOptions(3));
  Request request = MakeRequest("a", 22, 9);
  request.eviction = Recency(6);
  const RequestId id = Submit(&driver, request);
  ASSERT_TRUE(driver.Issue());
  ASSERT_TRUE(driver.Issue());
  EXPECT_EQ(driver.CountTokensInPlan(id), 1);
  EXPECT_EQ(driver.scheduler().stats().blocks.used_blocks, 8);
  driver.Answer();
  EXPECT_THAT(driver.served(id).evictions, SizeIs(1));
  driver.Finish();
}

}  // namespace
}  // namespace blockmgr
