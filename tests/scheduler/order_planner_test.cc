// When a step orders an eviction, by a state and a decision made by hand. What
// is ordered is tested with the whole scheduler (pressure_test.cc,
// eviction_requests_test.cc).
#include "scheduler/order_planner.h"

#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

// A request with a prompt of 8 tokens and two outputs.
class OrderPlannerTest : public ::testing::Test {
 protected:
  OrderPlannerTest() {
    request_ = state_.requests.Add(RequestId{1}, "a");
    request_->num_prompt = 8;
    request_->tokens.resize(10);
    decision_.Clear(state_.requests.num_objects());
  }

  SchedulerState state_{SmallLayout(4, 100), SchedulerOptions()};
  StepDecision decision_;
  OrderPlanner orders_{state_, decision_};
  RequestState* request_ = nullptr;
};

TEST_F(OrderPlannerTest, APointIsDueAtItsLengthOnly) {
  request_->eviction.compressions.emplace_back().length = 8;
  EXPECT_FALSE(orders_.MayOrder(*request_, 0, 7));
  EXPECT_TRUE(orders_.MayOrder(*request_, 0, 8));
  EXPECT_FALSE(orders_.MayOrder(*request_, 0, 9));
  EXPECT_FALSE(orders_.MayOrder(*request_, 1, 8));
}

TEST_F(OrderPlannerTest, ACommandWaitsForAStepThatReachesTheLastToken) {
  EXPECT_FALSE(orders_.MayOrder(*request_, 0, 10));
  request_->command = std::make_unique<PendingCommand>();
  EXPECT_FALSE(orders_.MayOrder(*request_, 0, 9));
  EXPECT_TRUE(orders_.MayOrder(*request_, 0, 10));
  request_->order_in_flight = true;
  EXPECT_FALSE(orders_.MayOrder(*request_, 0, 10));
}

TEST_F(OrderPlannerTest, ASqueezeIsOrderedIfItWasChosen) {
  request_->eviction.squeeze = std::make_unique<const EvictionCommand>();
  EXPECT_FALSE(orders_.MayOrder(*request_, 0, 10));
  decision_.squeezed.push_back(request_);
  EXPECT_TRUE(orders_.MayOrder(*request_, 0, 10));
}

TEST_F(OrderPlannerTest, AForkIsCompressedAsTheDecisionSays) {
  EvictionPlan inherited;
  inherited.compressions.emplace_back().length = 9;
  decision_.Inherit(*request_, std::move(inherited));
  EXPECT_TRUE(orders_.MayOrder(*request_, 0, 9));
  EXPECT_TRUE(request_->eviction.compressions.empty());
}

}  // namespace
}  // namespace blockmgr
