// An EngineTables of a model with window groups, and plans for it.
#ifndef TESTS_ENGINE_TABLES_TABLES_WINDOWS_FIXTURE_H_
#define TESTS_ENGINE_TABLES_TABLES_WINDOWS_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tables/tables.h"
#include "tests/engine/tables/tables_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {

inline ModelLayout Windowed(int32_t window,
                            std::vector<int32_t> group_windows) {
  ModelLayout layout = kTablesLayout;
  layout.window = window;
  layout.group_windows = std::move(group_windows);
  return layout;
}

inline std::vector<BlockId> Ids(const std::vector<int32_t>& numbers) {
  std::vector<BlockId> ids;
  ids.reserve(numbers.size());
  for (const int32_t number : numbers) ids.push_back(BlockId{number});
  return ids;
}

// A run of one slot, with the new blocks of every group.
inline StepPlan RunPlan(SequenceSlot slot, int32_t position, int32_t num_tokens,
                        const std::vector<std::vector<int32_t>>& blocks) {
  StepPlan plan;
  plan.slots = {slot};
  plan.positions = {position};
  plan.num_tokens = {num_tokens};
  plan.samples = {position + num_tokens == 70 ? uint8_t{1} : uint8_t{0}};
  plan.block_offsets = {0};
  for (const std::vector<int32_t>& group : blocks) {
    for (const BlockId block : Ids(group)) plan.blocks.push_back(block);
    plan.block_offsets.push_back(std::ssize(plan.blocks));
  }
  return plan;
}

// The same, of a sequence of 70 tokens that starts behind `num_cached`.
inline StepPlan StartRun(SequenceSlot slot, int32_t num_cached,
                         int32_t num_tokens,
                         const std::vector<std::vector<int32_t>>& blocks) {
  StepPlan plan = RunPlan(slot, num_cached, num_tokens, blocks);
  plan.starts = {{.slot = slot,
                  .request = RequestId{7},
                  .num_tokens = 70,
                  .num_cached_tokens = num_cached}};
  plan.start_tokens.assign(70, 5);
  return plan;
}

// Pages of 16 tokens, windows of 20 and 48.
class EngineTablesWindowsTest : public AnyTablesTest {
 protected:
  EngineTablesWindowsTest()
      : AnyTablesTest(EngineTables(Windowed(0, {20, 48}), 8, 16)) {}

  // Block tables of a slot that some plan has started, [num_groups].
  std::vector<std::vector<BlockId>> Tables(SequenceSlot slot) {
    std::vector<std::vector<BlockId>> tables;
    for (const GroupTable& group : tables_.row(slot).groups) {
      tables.push_back(group.blocks);
    }
    return tables;
  }
  // All 70 tokens in kTestSlot.
  void ComputeAll() {
    ASSERT_OK(tables_.Apply(
        StartRun(kTestSlot, 0, 40, {{1, 2, 3}, {11, 12, 13}, {21, 22, 23}})));
    ASSERT_OK(tables_.Apply(
        RunPlan(kTestSlot, 40, 30, {{4, 5}, {14, 15}, {24, 25}})));
    tables_.AddSampled(kTestSlot, 9);
  }
  // The next token, or the first drafts, of kTestSlot.
  static StepPlan Decode(int32_t num_tokens,
                         const std::vector<std::vector<int32_t>>& blocks) {
    StepPlan plan = RunPlan(kTestSlot, 70, num_tokens, blocks);
    plan.samples = {1};
    return plan;
  }
  static BlockTransfer Transfer(int32_t block, int32_t host) {
    return {.block = BlockId{block}, .host = HostBlockId{host}};
  }
};

// All 70 tokens are computed: pages 1 to 5 in group 0, 11 to 15 in the group
// with a window of 20, 21 to 25 in that of 48.
class EngineTablesWindowRegionsTest : public EngineTablesWindowsTest {
 protected:
  EngineTablesWindowRegionsTest() { ComputeAll(); }

  static EvictionOrder OrderIn(int32_t group, int32_t destination_begin) {
    EvictionOrder order;
    order.slot = kTestSlot;
    order.group = group;
    order.cut = 64;
    order.length = 71;
    order.destination_begin = destination_begin;
    order.num_destinations = 1;
    order.page_total = 4;
    order.policy.scorer.kind = ScorerKind::kStreaming;
    return order;
  }
  // The next token, then an order in every group, on blocks 30, 31 and 32.
  static StepPlan OrdersPlan() {
    StepPlan plan = Decode(1, {{}, {}, {}});
    for (int32_t group = 0; group < 3; ++group) {
      plan.evictions.push_back(OrderIn(group, group));
    }
    plan.destinations = Blocks(30, 3);
    return plan;
  }
  void CommitAll(const StepPlan& plan, const std::vector<int32_t>& counts) {
    for (const EvictionOrder& order : plan.evictions) {
      ASSERT_OK(tables_.CheckOrder(plan, order));
      ASSERT_OK(tables_.CheckCounts(order, counts));
      tables_.Commit(plan, order, counts);
    }
  }
  // Token by token until so many are computed. REQUIRES: from 71 on.
  void DecodeTo(int32_t length) {
    for (int32_t n = row().num_computed; n < length; ++n) {
      tables_.AddSampled(kTestSlot, 9);
      const bool is_page = n % 16 == 0;
      const int32_t block = 40 + 3 * (n / 16 - 5);
      using New = std::vector<std::vector<int32_t>>;
      StepPlan plan = RunPlan(
          kTestSlot, n, 1,
          is_page ? New{{block}, {block + 1}, {block + 2}} : New{{}, {}, {}});
      plan.samples = {1};
      ASSERT_OK(tables_.Apply(plan));
    }
  }
  const SequenceTable& row() { return tables_.row(kTestSlot); }
  // The region of a group of kTestSlot that the last run attended to, or null.
  const TableRegion* Attended(size_t group) {
    return row().groups[group].attended_region();
  }

  // The order in this group, spoilt, after those of the groups before.
  void ExpectOrderRefused(
      int32_t group, const std::string& message,
      const std::function<void(StepPlan*, EvictionOrder*)>& spoil) {
    StepPlan plan = OrdersPlan();
    EvictionOrder& order = plan.evictions[static_cast<size_t>(group)];
    spoil(&plan, &order);
    EngineTables tables = tables_;
    ASSERT_OK(tables.Apply(plan));
    EXPECT_THAT(tables.CheckOrder(plan, order), IsRefused(message));
  }
};

}  // namespace blockmgr

#endif  // TESTS_ENGINE_TABLES_TABLES_WINDOWS_FIXTURE_H_
