// An EngineTables that has computed one prompt, and plans to go on with.
#ifndef TESTS_ENGINE_TABLES_TABLES_FIXTURE_H_
#define TESTS_ENGINE_TABLES_TABLES_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

inline constexpr SequenceSlot kTestSlot{3};

inline const ModelLayout kTablesLayout{.num_layers = 2,
                                       .num_heads = 2,
                                       .num_q_heads = 4,
                                       .head_dim = 16,
                                       .page_size = 16,
                                       .dtype = DType::kFloat32,
                                       .num_blocks = 64};

inline std::vector<BlockId> Blocks(int32_t first, int32_t count) {
  std::vector<BlockId> blocks(static_cast<size_t>(count));
  for (BlockId& block : blocks) block = BlockId{first++};
  return blocks;
}

// Starts kTestSlot with 40 tokens and computes them all.
inline StepPlan StartPlan() {
  StepPlan plan;
  plan.starts = {{.slot = kTestSlot,
                  .request = RequestId{7},
                  .num_tokens = 40,
                  .query_window = 8}};
  plan.start_tokens.assign(40, 5);
  plan.slots = {kTestSlot};
  plan.positions = {0};
  plan.num_tokens = {40};
  plan.samples = {1};
  plan.block_offsets = {0, 3};
  plan.blocks = Blocks(1, 3);
  return plan;
}

inline StepPlan DecodePlan() {
  StepPlan plan;
  plan.slots = {kTestSlot};
  plan.positions = {40};
  plan.num_tokens = {1};
  plan.samples = {1};
  plan.block_offsets = {0, 0};
  return plan;
}

// Evicts [0, 32) after a decode to 41 tokens, into one fresh block.
inline StepPlan EvictionPlan() {
  StepPlan plan = DecodePlan();
  EvictionOrder& order = plan.evictions.emplace_back();
  order.slot = kTestSlot;
  order.cut = 32;
  order.length = 41;
  order.num_destinations = 1;
  order.page_total = 4;
  order.policy.scorer.kind = ScorerKind::kStreaming;
  plan.destinations = Blocks(10, 1);
  return plan;
}

// Makes a right plan wrong.
using Spoil = std::function<void(StepPlan*)>;

inline auto IsRefused(const std::string& message) { return IsInvalid(message); }

class AnyTablesTest : public ::testing::Test {
 protected:
  explicit AnyTablesTest(EngineTables tables) : tables_(std::move(tables)) {}

  // The plan, spoilt, is refused with this message.
  void ExpectRefused(
      StepPlan plan, const std::string& message,
      const Spoil& spoil = [](StepPlan*) {}) {
    spoil(&plan);
    EXPECT_THAT(tables_.Apply(plan), IsRefused(message));
  }

  EngineTables tables_;
};

class EngineTablesTest : public AnyTablesTest {
 protected:
  EngineTablesTest() : AnyTablesTest(EngineTables(kTablesLayout, 8)) {
    EXPECT_OK(tables_.Apply(StartPlan()));
    tables_.AddSampled(kTestSlot, 9);
  }

  // Expects also that a refused plan leaves the sequence as it was.
  void ExpectRefused(
      const StepPlan& plan, const std::string& message,
      const Spoil& spoil = [](StepPlan*) {}) {
    AnyTablesTest::ExpectRefused(plan, message, spoil);
    EXPECT_EQ(tables_.row(kTestSlot).num_computed, 40);
    EXPECT_THAT(BlocksOf(kTestSlot), testing::SizeIs(3));
  }

  // Of group 0.
  const std::vector<BlockId>& BlocksOf(SequenceSlot slot) {
    return tables_.row(slot).groups.front().blocks;
  }
  const TableRegion& RegionOf(SequenceSlot slot) {
    return tables_.row(slot).groups.front().region;
  }

  // So is the first order, when the plan has been applied.
  void ExpectOrderRefused(const std::string& message, const Spoil& spoil) {
    EngineTables tables = tables_;
    StepPlan plan = EvictionPlan();
    spoil(&plan);
    ASSERT_OK(tables.Apply(plan));
    EXPECT_THAT(tables.CheckOrder(plan, plan.evictions[0]), IsRefused(message));
  }
};

}  // namespace blockmgr

#endif  // TESTS_ENGINE_TABLES_TABLES_FIXTURE_H_
