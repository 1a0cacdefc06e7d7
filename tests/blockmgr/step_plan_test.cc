#include "blockmgr/step_plan.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

StepPlan FullPlan() {
  StepPlan plan;
  plan.id = StepId{9};
  plan.released = {SequenceSlot{1}};
  plan.starts.push_back({.slot = SequenceSlot{2}, .num_tokens = 3});
  plan.start_tokens = {5, 6, 7};
  plan.slots = {SequenceSlot{2}, SequenceSlot{4}};
  plan.positions = {0, 8};
  plan.num_tokens = {2'000'000'000, 2'000'000'000};
  plan.samples = {1, 0};
  plan.block_offsets = {0, 1, 1};
  plan.blocks = {BlockId{3}};
  plan.evictions.emplace_back();
  plan.destinations = {BlockId{8}};
  return plan;
}

TEST(StepPlanTest, TotalTokensIsASumIn64Bits) {
  EXPECT_EQ(FullPlan().total_tokens(), 4'000'000'000);
  EXPECT_EQ(StepPlan{}.total_tokens(), 0);
}

TEST(StepPlanTest, ClearEmptiesEveryArrayAndKeepsTheMemory) {
  StepPlan plan = FullPlan();
  const size_t capacity = plan.start_tokens.capacity();
  plan.Clear();
  EXPECT_EQ(plan.id, StepId{0});
  EXPECT_TRUE(plan.released.empty());
  EXPECT_TRUE(plan.starts.empty());
  EXPECT_TRUE(plan.start_tokens.empty());
  EXPECT_TRUE(plan.slots.empty());
  EXPECT_TRUE(plan.positions.empty());
  EXPECT_TRUE(plan.num_tokens.empty());
  EXPECT_TRUE(plan.samples.empty());
  EXPECT_TRUE(plan.block_offsets.empty());
  EXPECT_TRUE(plan.blocks.empty());
  EXPECT_TRUE(plan.evictions.empty());
  EXPECT_TRUE(plan.destinations.empty());
  EXPECT_EQ(plan.start_tokens.capacity(), capacity);
}

}  // namespace
}  // namespace blockmgr
