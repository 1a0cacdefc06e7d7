// An EngineTables of a model with window groups, and plans for it.
#ifndef TESTS_BENCH_ENGINE_TABLES_WINDOWS_FIXTURE_H_
#define TESTS_BENCH_ENGINE_TABLES_WINDOWS_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/engine/tables.h"
#include "tests/bench/engine/tables_fixture.h"
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

// A run of one slot, with new blocks of group 0 and of the window groups.
inline StepPlan RunPlan(SequenceSlot slot, int32_t position, int32_t num_tokens,
                        const std::vector<std::vector<int32_t>>& blocks) {
  StepPlan plan;
  plan.slots = {slot};
  plan.positions = {position};
  plan.num_tokens = {num_tokens};
  plan.samples = {position + num_tokens == 70 ? uint8_t{1} : uint8_t{0}};
  plan.blocks = Ids(blocks[0]);
  plan.block_offsets = {0, std::ssize(plan.blocks)};
  if (blocks.size() > 1) plan.window_offsets = {0};
  for (size_t group = 1; group < blocks.size(); ++group) {
    for (const BlockId block : Ids(blocks[group])) {
      plan.window_blocks.push_back(block);
    }
    plan.window_offsets.push_back(std::ssize(plan.window_blocks));
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
class EngineTablesWindowsTest : public ::testing::Test {
 protected:
  EngineTablesWindowsTest() : tables_(Windowed(0, {20, 48}), 8, 16) {}

  void ExpectRefused(StepPlan plan, const std::function<void(StepPlan*)>& spoil,
                     const char* message) {
    spoil(&plan);
    EXPECT_THAT(tables_.Apply(plan),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr(message)));
  }
  // Of a slot that some plan has started.
  std::vector<std::vector<BlockId>> Windows(SequenceSlot slot) {
    return tables_.row(slot).window_blocks;
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

  EngineTables tables_;
};

}  // namespace blockmgr

#endif  // TESTS_BENCH_ENGINE_TABLES_WINDOWS_FIXTURE_H_
