// Models with sliding windows: what falls out of them is there for others, and
// requests take no more than windows and a chunk. The engine checks every entry
// that it reads.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/case_count.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

ModelLayout WindowLayout(int32_t num_usable, int32_t window,
                         std::vector<int32_t> group_windows) {
  ModelLayout layout = SmallLayout(4, num_usable, 2, 2);
  layout.window = window;
  layout.group_windows = std::move(group_windows);
  return layout;
}

class WindowsTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions(GetParam());
    options.max_num_batched_tokens = 16;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, WindowsTest, testing::Values(1, 2, 4));

// 200 tokens in 50 blocks of group 0, and 8 of the other: its window of 8
// tokens, chunks of 16, and where they begin within a page. With chunks of 4,
// the least, it is 4.
TEST_P(WindowsTest, LongPromptTakesWindowAndChunk) {
  SchedulerDriver driver(WindowLayout(50 + 7, 0, {8}), Options());
  const RequestId a = Submit(&driver, MakeRequest("a", 190, 11));
  driver.Finish();
  EXPECT_THAT(driver.served(a).outputs, SizeIs(11));
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  const auto refused = driver.Submit(MakeRequest("b", 190, 30));
  EXPECT_THAT(refused.status().message(),
              HasSubstr("it needs 59 blocks at its peak (190 prompt and 30 "
                        "output tokens), the pool has 57"));
}

// Many more than would fit with full tables run at once, to their end: what is
// promised to each is its windows.
TEST_P(WindowsTest, GuaranteedAdmissionCountsWindows) {
  SchedulerOptions options = Options();
  options.admission = AdmissionPolicy::kGuaranteed;
  // Each: 15 of group 0, (8 + 16) / 4 + 1 of the others.
  SchedulerDriver driver(WindowLayout(4 * (15 + 7 + 7), 0, {8, 8}), options);
  for (int32_t i = 0; i < 8; ++i) {
    Submit(&driver, MakeRequest("r" + std::to_string(i), 40, 20, i));
  }
  int32_t most = 0;
  driver.RunUntil([&] {
    most = std::max(most, driver.scheduler().stats().num_running);
    return false;
  });
  EXPECT_GE(most, 4);
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
  driver.CheckQuiescent();
}

// Blocks that several share fall out for none of them alone: what is promised
// does not count on them.
TEST_P(WindowsTest, GuaranteedAdmissionKeepsWordWithSharedWindows) {
  for (const bool forks : {false, true}) {
    SchedulerOptions options = Options();
    options.admission = AdmissionPolicy::kGuaranteed;
    options.enable_prefix_caching = !forks;
    for (int32_t num_usable = 100; num_usable < 180;
         num_usable += kBrief ? 5 : 1) {
      SchedulerDriver driver(WindowLayout(num_usable, 0, {32, 32}), options);
      Submit(&driver, MakeRequest("a", 70, 40));
      driver.RunUntil([&] {
        return driver.scheduler().stats().num_running == 1 &&
               driver.CountTokensInPlan(RequestId{1}) == 1;
      });
      for (int32_t i = 0; i < 3; ++i) {
        Request request = MakeRequest("b" + std::to_string(i), 70, 40);
        if (forks) request.fork_of = "a";
        Submit(&driver, request);
        Submit(&driver, MakeRequest("c" + std::to_string(i), 1, 60, i + 1));
      }
      driver.Finish();
      ASSERT_EQ(driver.scheduler().stats().num_preemptions, 0) << num_usable;
    }
  }
}

// A step computes less of a request where windows and a whole chunk would be
// too much; only what cannot be at all is refused.
TEST_P(WindowsTest, ChunksAreAsLargeAsThePoolAllows) {
  // 35 of group 0; of each window 2 + 4 + 1 with chunks of 16, 2 + 1 + 1 with
  // chunks of 4.
  for (const int32_t num_usable : {35 + 4 * 4, 35 + 4 * 7}) {
    SchedulerDriver driver(WindowLayout(num_usable, 0, {8, 8, 8, 8}),
                           Options());
    const RequestId a = Submit(&driver, MakeRequest("a", 120, 21));
    driver.Drain();
    EXPECT_THAT(driver.served(a).outputs, SizeIs(21));
    EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
    EXPECT_THAT(driver.Submit(MakeRequest("b", 120, 200)),
                StatusIs(absl::StatusCode::kResourceExhausted));
    driver.CheckQuiescent();
  }
}

// What falls out when the steps in flight are answered is waited for; nobody is
// preempted for blocks that are about to come.
TEST_P(WindowsTest, BlocksThatFallOutAreWaitedFor) {
  SchedulerDriver driver(WindowLayout(2 * 25 + 10, 0, {8}), Options());
  Submit(&driver, MakeRequest("a", 90, 10));
  Submit(&driver, MakeRequest("b", 90, 10, 1));
  driver.Finish();
  EXPECT_EQ(driver.scheduler().stats().num_preemptions, 0);
}

TEST_P(WindowsTest, StartsNameTheWindowOfTheirPrefix) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  SchedulerDriver driver(WindowLayout(80, 0, {8, 12}), options);
  Submit(&driver, MakeRequest("a", 40, 2));
  driver.Drain();
  const RequestId b = Submit(&driver, MakeRequest("b", 43, 2));
  ASSERT_TRUE(driver.Issue());
  const StepPlan& plan = driver.plan();
  ASSERT_THAT(plan.starts, SizeIs(1));
  EXPECT_EQ(plan.starts[0].num_cached_tokens, 40);
  EXPECT_THAT(plan.block_offsets, ElementsAre(0, 11, 22, 33));
  for (int32_t page = 0; page < 11; ++page) {
    EXPECT_NE(plan.blocks[page], kNullBlock) << page;
    EXPECT_EQ(plan.blocks[11 + page] == kNullBlock, page < 8) << page;
    EXPECT_EQ(plan.blocks[22 + page] == kNullBlock, page < 7) << page;
  }
  driver.Finish();
  EXPECT_EQ(driver.served(b).finish->num_cached_tokens, 40);
}

// A command reads no more queries than a step of the request will compute when
// it is replayed: here those are fewer than the options allow.
TEST_P(WindowsTest, CommandsReadNoMoreThanAStepOfTheRequest) {
  SchedulerOptions options = Options();
  options.query_window = 8;
  SchedulerDriver driver(WindowLayout(35 + 4 * 4, 0, {8, 8, 8, 8}), options);
  const RequestId a = Submit(&driver, MakeRequest("a", 120, 21));
  driver.RunUntilOutputs(a, 3);
  EvictionCommand command = RecencyCommand(16);
  command.policy = SnapKv(8, 16).policy;
  ASSERT_TRUE(driver.Evict(a, command).ok());
  driver.RunUntil([&] { return !driver.served(a).evictions.empty(); });
  ASSERT_THAT(driver.served(a).evictions, SizeIs(1));
  EXPECT_TRUE(driver.served(a).evictions[0].status.ok());
  driver.LoseEngine();
  driver.Finish();
  EXPECT_THAT(driver.served(a).outputs, SizeIs(21));
}

TEST_P(WindowsTest, WindowsAloneHaveNothingToEvict) {
  SchedulerDriver driver(WindowLayout(20, 8, {}), Options());
  Request request = MakeRequest("a", 60, 30);
  request.eviction = Recency(16);
  EXPECT_THAT(driver.Submit(request),
              IsInvalid("eviction: expected none for a model whose "
                        "layers all have a sliding window (8"));
  request.eviction = RequestEviction();
  const RequestId a = Submit(&driver, request);
  driver.RunUntil([&] { return !driver.served(a).outputs.empty(); });
  EXPECT_THAT(driver.Evict(a, RecencyCommand(16)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  driver.Drain();
}

RequestEviction HalfOfWindows() {
  RequestEviction eviction = Recency(16);
  eviction.target.window_keep_ratio = {5, 10};
  return eviction;
}

class WindowRegionsTest : public ::testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.engine.num_scorer_states = 1;
    options.engine.supports_window_evictions = true;
    return options;
  }

  // Schedules a step and carries it out: every head keeps `kept` entries.
  void Step(int32_t kept) {
    StepPlan plan;
    ASSERT_TRUE(scheduler_->Schedule(&plan));
    StepResult result = AnswerTo(plan);
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      result.evictions.push_back(
          {.ok = true, .error = "", .counts = std::vector<int32_t>(4, kept)});
    }
    plans_.push_back(std::move(plan));
    ASSERT_OK(scheduler_->Update(result, &effects_));
    scheduler_->CheckInvariants();
  }

  const std::unique_ptr<Scheduler> scheduler_ =
      Scheduler::Create(WindowLayout(200, 0, {8, 40}), Options()).value();
  std::vector<StepPlan> plans_;
  Effects effects_;
};

TEST_F(WindowRegionsTest, EveryGroupThatGainsByItHasAnOrder) {
  Request request = MakeRequest("a", 60, 10);
  request.eviction = HalfOfWindows();
  ASSERT_OK(scheduler_->Submit(request));
  Step(16);
  // The window of 8 reaches into one page below the cut of 56: one block, and
  // its region would have one.
  const std::vector<EvictionOrder>& orders = plans_[0].evictions;
  ASSERT_THAT(orders, SizeIs(2));
  EXPECT_EQ(orders[0].group, 0);
  EXPECT_EQ(orders[0].target.tokens, 16);
  EXPECT_EQ(orders[0].page_total, 16);
  EXPECT_EQ(orders[1].group, 2);
  EXPECT_EQ(orders[1].slot, orders[0].slot);
  EXPECT_EQ(orders[1].cut, 56);
  EXPECT_EQ(orders[1].length, 60);
  // Half of positions 21 to 55: 17 entries per head, two heads in a layer have
  // floor(34 / 4) pages.
  EXPECT_EQ(orders[1].target.ratio, (KeepRatio{5, 10}));
  EXPECT_FALSE(orders[1].target.evicts_in_windows());
  EXPECT_EQ(orders[1].page_total, 2 * 8);
  EXPECT_EQ(orders[1].num_destinations, 4);
  // Regions of 4 blocks and a page behind each; 2 pages of the window of 8.
  EXPECT_EQ(scheduler_->num_used_blocks(), 5 + 5 + 2);
  ASSERT_THAT(effects_.evictions, SizeIs(1));
  EXPECT_OK(effects_.evictions[0].status);
  // 14 blocks became 4, and 9 became 4.
  EXPECT_EQ(effects_.evictions[0].freed_blocks, 10 + 5);
  EXPECT_THAT(effects_.evictions[0].kept_entries, SizeIs(4));
}

TEST_F(WindowRegionsTest, ARegionGoesWhenItsCutFallsOut) {
  Request request = MakeRequest("a", 60, 60);
  request.eviction = HalfOfWindows();
  ASSERT_OK(scheduler_->Submit(request));
  Step(16);
  const auto decode_to = [this](int32_t length) {
    while (plans_.back().positions.back() < length - 1) Step(0);
  };
  // Of 95 tokens the last attends to position 55: 4 blocks and the 10 pages
  // behind the cut, as in group 0, and 3 pages of the window of 8.
  decode_to(95);
  EXPECT_EQ(scheduler_->num_used_blocks(), 14 + 14 + 3);
  decode_to(96);
  EXPECT_EQ(scheduler_->num_used_blocks(), 14 + 10 + 2);
}

TEST_F(WindowRegionsTest, NamesWhatItCannotPlan) {
  const std::vector<std::pair<std::string, std::function<void(Request*)>>>
      cases = {
          {"with scores accumulated",
           [](Request* r) {
             r->eviction.policy.scorer.kind = ScorerKind::kH2o;
             r->eviction.policy.scorer.recent = 4;
           }},
          {"ratio",
           [](Request* r) {
             r->eviction.target.window_keep_ratio = {3, 2};
           }},
      };
  for (const auto& [message, spoil] : cases) {
    Request request = MakeRequest("a", 60, 10);
    request.eviction = HalfOfWindows();
    spoil(&request);
    EXPECT_THAT(scheduler_->Submit(request), IsInvalid(message));
  }
}

TEST_F(WindowRegionsTest, AnEngineThatDoesNotSayItEvictsThereIsNotAskedTo) {
  SchedulerOptions options = Options();
  options.engine.supports_window_evictions = false;
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Scheduler> scheduler,
      Scheduler::Create(WindowLayout(200, 0, {8, 40}), options));
  Request request = MakeRequest("a", 60, 10);
  request.eviction = HalfOfWindows();
  EXPECT_THAT(
      scheduler->Submit(request),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("eviction.target.window_keep_ratio: expected 1 for an "
                         "engine that did not announce "
                         "supports_window_evictions, got 0.5")));
  EXPECT_EQ(scheduler->stats().num_waiting, 0);
  request.eviction.target.window_keep_ratio = {};
  EXPECT_OK(scheduler->Submit(request));
}

TEST_F(WindowRegionsTest, AModelWithoutWindowsHasNothingToEvictThere) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Scheduler> scheduler,
                       Scheduler::Create(WindowLayout(200, 0, {}), Options()));
  Request request = MakeRequest("a", 60, 10);
  request.eviction = HalfOfWindows();
  EXPECT_THAT(scheduler->Submit(request),
              IsInvalid("eviction.target.window_keep_ratio: expected 1 for a "
                        "model of which no group of layers has a window, got "
                        "0.5"));
}

TEST_F(WindowRegionsTest, CommandsAreOfTheOthersOnly) {
  ASSERT_OK_AND_ASSIGN(const RequestId id,
                       scheduler_->Submit(MakeRequest("a", 60, 10)));
  Step(0);
  EvictionCommand command = RecencyCommand(16);
  command.target.window_keep_ratio = {5, 10};
  EXPECT_THAT(scheduler_->Evict(id, command),
              IsInvalid("target.window_keep_ratio: expected 1 for a request "
                        "that runs: its windows have no room for a region, "
                        "got 0.5"));
  command.target.window_keep_ratio = {};
  EXPECT_OK(scheduler_->Evict(id, command));
}

// Compressed prefixes that are shared, with what is left of their windows;
// every read is checked.
class SharedWindowRegionsTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options = CachingOptions(GetParam());
    options.engine.supports_window_evictions = true;
    return options;
  }
  // Compressed when 60 of 61 tokens are computed, unless it is longer.
  static Request Sharer(const char* id, int32_t max_tokens = 9) {
    Request request = MakeRequest(id, 61, max_tokens);
    request.eviction = HalfOfWindows();
    request.eviction.share_prefix = true;
    return request;
  }
  // Runs a request to its end; how it started is in plan_.
  RequestId Serve(const Request& request) {
    const RequestId id = Submit(&driver_, request);
    driver_.RunFull([&] {
      if (!driver_.plan().starts.empty()) plan_ = driver_.plan();
    });
    return id;
  }
  // Of the run of the request that started last.
  std::span<const BlockId> NewBlocks(int32_t group) {
    return plan_.NewBlocks(driver_.scheduler().manager().layout(), 0, group);
  }
  // Pages without a block before its first one.
  int32_t CountNullPages(int32_t group) {
    const std::span<const BlockId> blocks = NewBlocks(group);
    size_t num_pages = 0;
    while (blocks[num_pages] == kNullBlock) ++num_pages;
    return static_cast<int32_t>(num_pages);
  }

  SchedulerDriver driver_{WindowLayout(200, 0, {8, 40}), Options()};
  StepPlan plan_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SharedWindowRegionsTest,
                         testing::Values(1, 4));

TEST_P(SharedWindowRegionsTest, SharersStartOnTheRegionsOfAllGroups) {
  const RequestId a = Serve(Sharer("a"));
  EXPECT_EQ(plan_.evictions.size(), 2u);
  EXPECT_NE(plan_.evictions[0].region, kNoRegion);
  EXPECT_EQ(plan_.evictions[1].group, 2);
  EXPECT_EQ(plan_.evictions[1].region, kNoRegion);
  const RegionId region = plan_.evictions[0].region;
  const RequestId b = Serve(Sharer("b"));
  EXPECT_EQ(plan_.starts[0].region, region);
  EXPECT_EQ(plan_.starts[0].num_cached_tokens, 60);
  EXPECT_THAT(plan_.evictions, SizeIs(0));
  // Group 1 has no region, and its window begins in page 13; that of group 2
  // stands for the pages below the cut.
  EXPECT_EQ(CountNullPages(1), 13);
  EXPECT_EQ(CountNullPages(2), 0);
  EXPECT_EQ(NewBlocks(1).size() - NewBlocks(2).size(), 14U);
  EXPECT_EQ(driver_.served(b).recorded, driver_.served(a).recorded);
  driver_.CheckQuiescent();
}

TEST_P(SharedWindowRegionsTest, WhoGoesOnFarEnoughNeedsNone) {
  const RequestId a = Serve(Sharer("a", 60));
  Request b = Sharer("b");
  // The conversation goes on behind what "a" was answered.
  const std::vector<int32_t>& outputs = driver_.served(a).outputs;
  b.prompt.insert(b.prompt.end(), outputs.begin(), outputs.end() - 12);
  ASSERT_THAT(b.prompt, SizeIs(109));
  b.eviction.share_multiple = 0;
  Serve(b);
  EXPECT_NE(plan_.starts[0].region, kNoRegion);
  // What is computed up to 107 is of use; the region was gone at 96.
  EXPECT_EQ(plan_.starts[0].num_cached_tokens, 104);
  EXPECT_EQ(CountNullPages(2), (104 - 40) / 4);
  driver_.CheckQuiescent();
}

TEST_P(SharedWindowRegionsTest, WhoKeepsOtherwiseInWindowsSharesNothing) {
  Serve(Sharer("a"));
  Request b = Sharer("b");
  b.eviction.target.window_keep_ratio = {4, 10};
  Serve(b);
  EXPECT_EQ(plan_.starts[0].region, kNoRegion);
  Request c = Sharer("c");
  c.eviction.target.window_keep_ratio = {};
  Serve(c);
  EXPECT_EQ(plan_.starts[0].region, kNoRegion);
}

TEST_P(SharedWindowRegionsTest, WhatIsKeptInVainIsDropped) {
  const RequestId a = Submit(&driver_, Sharer("a"));
  ASSERT_TRUE(driver_.Issue());
  const RegionId region = driver_.plan().evictions[0].region;
  driver_.AnswerWith([](StepResult* result) {
    result->evictions[1] = {.ok = false, .error = "no memory", .counts = {}};
  });
  while (driver_.engine().num_queued() > 0) driver_.Answer();
  ASSERT_TRUE(driver_.Issue());
  EXPECT_THAT(driver_.plan().dropped_regions, ElementsAre(region));
  driver_.Finish();
  EXPECT_EQ(driver_.served(a).finish->reason, FinishReason::kLength);
  EXPECT_THAT(driver_.served(a).recorded, SizeIs(0));
}

// Two that crowd a pool, and are squeezed before one is preempted.
class SqueezedWindowsTest : public testing::TestWithParam<int32_t> {
 protected:
  SqueezedWindowsTest() {
    for (const char* id : {"a", "b"}) {
      Request request = MakeRequest(id, 40, 60, id[0]);
      request.eviction = HalfOfWindows();
      request.eviction.mode = EvictionMode::kPressure;
      Submit(&driver_, request);
    }
  }
  static ModelLayout Layout() {
    ModelLayout layout = WindowLayout(200, 0, {24, 40});
    layout.num_blocks = 60;
    return layout;
  }
  static SchedulerOptions Options() {
    SchedulerOptions options = CachingOptions(GetParam());
    options.engine.supports_window_evictions = true;
    options.admission = AdmissionPolicy::kMaxUtilization;
    return options;
  }
  // Runs both to their ends; `change` is made to every answer.
  template <typename Change>
  void Serve(Change change) {
    while (driver_.ok() && driver_.scheduler().has_unfinished_requests()) {
      while (driver_.Issue()) {
      }
      driver_.AnswerWith(change);
    }
    driver_.CheckQuiescent();
  }

  SchedulerDriver driver_{Layout(), Options()};
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, SqueezedWindowsTest,
                         testing::Values(1, 4));

TEST_P(SqueezedWindowsTest, RegionsInWindowsArePartOfASqueeze) {
  size_t num_squeezes = 0;
  size_t num_outcomes = 0;
  Serve([&](StepResult* result) {
    num_squeezes += result->evictions.empty() ? 0 : 1;
    num_outcomes += result->evictions.size();
  });
  EXPECT_GT(driver_.scheduler().stats().num_squeezes, 0);
  // One for each group that gains by it.
  EXPECT_GT(num_outcomes, num_squeezes);
}

// What an engine has moved in one group cannot be undone in another: all of it
// is computed again.
TEST_P(SqueezedWindowsTest, WhoseSqueezeIsHalfRefusedIsComputedAgain) {
  int32_t num_refused = 0;
  Serve([&num_refused](StepResult* result) {
    if (num_refused > 0 || result->evictions.size() < 2) return;
    ++num_refused;
    result->evictions.back() = {.ok = false, .error = "no", .counts = {}};
  });
  EXPECT_EQ(num_refused, 1);
  EXPECT_EQ(driver_.scheduler().stats().num_refused_evictions, 1);
  EXPECT_GT(driver_.scheduler().stats().num_recomputed_tokens, 0);
  for (const auto& [id, served] : driver_.all()) {
    EXPECT_EQ(served.finish->reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace blockmgr
