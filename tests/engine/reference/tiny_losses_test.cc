// Blocks of a tiny engine that lose their content.

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/tiny_engine.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kPromptTokens = 70;

class TinyLossesTest : public ::testing::Test {
 protected:
  TinyLossesTest() : host_(SmallModel(31), DType::kFloat32) {
    std::mt19937_64 random(31);
    host_.Start(0, RandomTokens(kPromptTokens, 64, &random));
    expected_.push_back(host_.Prefill(0, std::vector{kPromptTokens}));
    for (int32_t i = 0; i < 4; ++i) expected_.push_back(host_.Decode(0));
    host_.engine().set_fault([this](const StepPlan&) {
      std::vector<BlockId> lost;
      if (next_.has_value()) lost.push_back(host_.blocks(0)[*next_]);
      next_.reset();
      return lost;
    });
  }

  // The next step ends with the loss of the index-th block of the tail.
  void LoseNext(size_t index) { next_ = index; }

  EngineHarness host_;
  std::optional<size_t> next_;
  std::vector<std::vector<float>> expected_;  // logits after the prompt, ...
};

TEST_F(TinyLossesTest, ReportsThemWithTheStep) {
  LoseNext(2);
  host_.Decode(0);
  EXPECT_THAT(host_.result().lost_blocks, ElementsAre(host_.blocks(0)[2]));
  EXPECT_FALSE(host_.logits(0).empty());  // computed before
  host_.Decode(0);
  EXPECT_THAT(host_.result().lost_blocks, IsEmpty());
  EXPECT_TRUE(host_.logits(0).empty());  // shown to nobody
}

TEST_F(TinyLossesTest, ASequenceStartsAgainAfterWhatIsLeft) {
  LoseNext(2);
  host_.Decode(0);
  const SequenceSlot slot{0};
  const SequenceTable& table = host_.engine().tables().row(slot);
  const std::vector<BlockId> tail = table.groups[0].blocks;
  StepPlan plan;
  plan.starts = {{.slot = slot,
                  .request = RequestId{9},
                  .num_tokens = kPromptTokens + 1,
                  .num_cached_tokens = 32,
                  .source = slot}};
  plan.start_tokens.assign(host_.tokens(0).begin(),
                           host_.tokens(0).begin() + kPromptTokens + 1);
  plan.slots = {slot};
  plan.positions = {32};
  plan.num_tokens = {kPromptTokens + 1 - 32};
  plan.samples = {1};
  plan.block_offsets = {0, 3};
  // Any blocks will do, lost ones too.
  plan.blocks = {tail[2], tail[3], tail[4]};
  std::vector<float> logits;
  TinyObserver observer;
  observer.on_logits = [&](SequenceSlot, int32_t position,
                           std::span<const float> values) {
    EXPECT_EQ(position, kPromptTokens);
    logits.assign(values.begin(), values.end());
  };
  host_.engine().set_observer(observer);
  StepResult result;
  ASSERT_OK(host_.engine().Run(plan, &result));
  EXPECT_EQ(logits, expected_[1]);
  EXPECT_THAT(table.groups[0].blocks,
              ElementsAre(tail[0], tail[1], tail[2], tail[3], tail[4]));
}

TEST_F(TinyLossesTest, NothingIsMovedThatIsLost) {
  LoseNext(0);
  host_.Decode(0);
  host_.Schedule(0, 1);
  host_.Evict(0, 64, "streaming | uniform | topk", KeepTokens(8),
              DestinationKind::kFresh);
  ASSERT_OK(host_.Run());
  ASSERT_EQ(host_.result().evictions.size(), 1u);
  EXPECT_FALSE(host_.result().evictions[0].ok);
  EXPECT_THAT(host_.result().evictions[0].error,
              testing::HasSubstr("lost blocks"));
}

// The scheduler may hand the copy on before it hears of the loss.
TEST_F(TinyLossesTest, ACopyOfALostBlockIsLost) {
  LoseNext(4);
  host_.Decode(0);
  StepPlan plan;
  plan.slots = {SequenceSlot{0}};
  plan.positions = {host_.engine().tables().row(SequenceSlot{0}).num_computed};
  plan.num_tokens = {1};
  plan.samples = {1};
  plan.block_offsets = {0, 0};
  plan.copies = {{.slot = SequenceSlot{0},
                  .blocks = {host_.blocks(0)[4], BlockId{200}},
                  .num_tokens = plan.positions[0] % 16}};
  StepResult result;
  ASSERT_OK(host_.engine().Run(plan, &result));
  EXPECT_THAT(result.lost_blocks, ElementsAre(BlockId{200}));
}

}  // namespace
}  // namespace blockmgr
