// Plans made by hand for tests of the CanaryEngine, and an engine to run them.
#ifndef TESTS_TESTING_CANARY_PLANS_H_
#define TESTS_TESTING_CANARY_PLANS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

// Pages of two tokens, two layers of two heads.
inline ModelLayout CanaryLayout(int32_t window,
                                std::vector<int32_t> group_windows) {
  return {.num_layers = 2,
          .num_heads = 2,
          .num_q_heads = 2,
          .head_dim = 8,
          .page_size = 2,
          .dtype = DType::kFloat32,
          .num_blocks = 40,
          .window = window,
          .group_windows = std::move(group_windows)};
}

inline StepPlan EmptyPlan(uint64_t id) {
  StepPlan plan;
  plan.id = StepId{id};
  plan.block_offsets = {0};
  return plan;
}

// `blocks` are the new ones of every group.
inline void AddRun(int32_t slot, int32_t position, int32_t num_tokens,
                   const std::vector<std::vector<int32_t>>& blocks,
                   bool samples, StepPlan* plan) {
  plan->slots.push_back(SequenceSlot{slot});
  plan->positions.push_back(position);
  plan->num_tokens.push_back(num_tokens);
  plan->samples.push_back(samples ? 1 : 0);
  for (const std::vector<int32_t>& group : blocks) {
    for (const int32_t block : group) plan->blocks.push_back(BlockId{block});
    plan->block_offsets.push_back(std::ssize(plan->blocks));
  }
}

inline SequenceStart& AddStart(int32_t slot, const std::vector<int32_t>& tokens,
                               int32_t num_cached, StepPlan* plan) {
  plan->starts.push_back(
      {.slot = SequenceSlot{slot},
       .request = RequestId{static_cast<uint64_t>(slot) + 100},
       .token_begin = std::ssize(plan->start_tokens),
       .num_tokens = static_cast<int32_t>(tokens.size()),
       .num_cached_tokens = num_cached});
  plan->start_tokens.insert(plan->start_tokens.end(), tokens.begin(),
                            tokens.end());
  return plan->starts.back();
}

// Four slots, and five blocks of host memory.
class CanaryTest : public testing::Test {
 protected:
  explicit CanaryTest(int32_t window = 0,
                      std::vector<int32_t> group_windows = {})
      : engine_(CanaryLayout(window, std::move(group_windows)), 4,
                {.num_host_blocks = 5}) {}

  absl::Status Run(const StepPlan& plan) {
    const absl::Status status = engine_.Enqueue(plan);
    return status.ok() ? engine_.Execute().status() : status;
  }

  CanaryEngine engine_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_PLANS_H_
