// Requests that are evicted from in windows too: what is ordered, and what is
// refused. That every entry is the right one, the tests over the whole line
// say.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

ModelLayout HybridLayout(std::vector<int32_t> group_windows) {
  ModelLayout layout = SmallLayout(4, 200, 2, 2);
  layout.group_windows = std::move(group_windows);
  return layout;
}

RequestEviction HalfOfWindows() {
  RequestEviction eviction = Recency(16);
  eviction.target.window_ratio = {5, 10};
  return eviction;
}

class WindowRegionsTest : public ::testing::Test {
 protected:
  explicit WindowRegionsTest(std::vector<int32_t> group_windows = {8, 40})
      : scheduler_(
            Scheduler::Create(HybridLayout(std::move(group_windows)), Options())
                .value()) {}
  static SchedulerOptions Options() {
    SchedulerOptions options = PlainOptions();
    options.num_scorer_states = 1;
    options.supports_window_evictions = true;
    return options;
  }

  // Schedules a step and carries it out: every head keeps `kept` entries.
  void Step(int32_t kept) {
    StepPlan plan;
    ASSERT_TRUE(scheduler_->Schedule(&plan));
    StepResult result;
    result.id = plan.id;
    for (const uint8_t samples : plan.samples) {
      result.sampled.push_back(samples != 0 ? 7 : -1);
    }
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      result.evictions.push_back(
          {.ok = true, .error = "", .counts = std::vector<int32_t>(4, kept)});
    }
    plans_.push_back(std::move(plan));
    ASSERT_OK(scheduler_->Update(result, &effects_));
    scheduler_->CheckInvariants();
  }

  std::unique_ptr<Scheduler> scheduler_;
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
          {"in mode pressure",
           [](Request* r) { r->eviction.mode = EvictionMode::kPressure; }},
          {"with share_prefix",
           [](Request* r) { r->eviction.share_prefix = true; }},
          {"with scores accumulated",
           [](Request* r) {
             r->eviction.policy.scorer.kind = ScorerKind::kH2o;
             r->eviction.policy.scorer.recent = 4;
           }},
          {"ratio",
           [](Request* r) {
             r->eviction.target.window_ratio = {3, 2};
           }},
      };
  for (const auto& [message, spoil] : cases) {
    Request request = MakeRequest("a", 60, 10);
    request.eviction = HalfOfWindows();
    spoil(&request);
    EXPECT_THAT(
        scheduler_->Submit(request),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST_F(WindowRegionsTest, AnEngineThatDoesNotSayItEvictsThereIsNotAskedTo) {
  SchedulerOptions options = Options();
  options.supports_window_evictions = false;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Scheduler> scheduler,
                       Scheduler::Create(HybridLayout({8, 40}), options));
  Request request = MakeRequest("a", 60, 10);
  request.eviction = HalfOfWindows();
  EXPECT_THAT(
      scheduler->Submit(request),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("eviction.target.window_keep_ratio: expected 1 for an "
                         "engine that did not announce "
                         "supports_window_evictions, got 0.5")));
  EXPECT_EQ(scheduler->stats().num_waiting, 0);
  request.eviction.target.window_ratio = {};
  EXPECT_OK(scheduler->Submit(request));
}

TEST_F(WindowRegionsTest, CommandsAreOfTheOthersOnly) {
  ASSERT_OK_AND_ASSIGN(const RequestId id,
                       scheduler_->Submit(MakeRequest("a", 60, 10)));
  Step(0);
  EvictionCommand command = RecencyCommand(16);
  command.target.window_ratio = {5, 10};
  EXPECT_THAT(
      scheduler_->Evict(id, command),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("target.window_keep_ratio: expected 1 for a request "
                         "that runs: its windows have no room for a region, "
                         "got 0.5")));
  command.target.window_ratio = {};
  EXPECT_OK(scheduler_->Evict(id, command));
}

class NoWindowsTest : public WindowRegionsTest {
 protected:
  NoWindowsTest() : WindowRegionsTest({}) {}
};

TEST_F(NoWindowsTest, HaveNothingToEvict) {
  Request request = MakeRequest("a", 60, 10);
  request.eviction = HalfOfWindows();
  EXPECT_THAT(
      scheduler_->Submit(request),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("eviction.target.window_keep_ratio: expected 1 for a "
                         "model of which no group of layers has a window, got "
                         "0.5")));
}

}  // namespace
}  // namespace blockmgr
