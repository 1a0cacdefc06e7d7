// Sequences of a tiny engine in host memory.

#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/host_memory.h"
#include "engine/reference/tiny_engine.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kSwapPrompt = 70;
constexpr SequenceSlot kSwapSlot{0};
constexpr SwapId kTinySwap{3};

// Whether the sequence is compressed before it leaves, and the shards.
class TinySwapTest
    : public ::testing::TestWithParam<std::tuple<bool, int32_t>> {
 protected:
  TinySwapTest()
      : host_(SmallModel(31), DType::kFloat32, 512, std::get<1>(GetParam()),
              16) {
    std::mt19937_64 random(31);
    const std::vector<int32_t> prompt = RandomTokens(kSwapPrompt, 64, &random);
    // The same twice: slot 1 stays.
    for (const int32_t slot : {0, 1}) {
      host_.Start(slot, prompt);
      host_.Schedule(slot, kSwapPrompt);
      if (std::get<0>(GetParam())) {
        host_.Evict(slot, 48, "streaming(sinks=4)", KeepTokens(20),
                    DestinationKind::kMixed);
      }
      EXPECT_OK(host_.Run());
      host_.Decode(slot);
    }
  }
  const SequenceTable& row() { return host_.engine().tables().row(kSwapSlot); }

  // Everything computed leaves, into the host blocks from `first_host` on.
  StepResult Leave(int32_t first_host) {
    StepPlan plan;
    const GroupTable& group = row().groups[0];
    std::vector<BlockId> blocks = group.region.blocks;
    num_region_ = blocks.size();
    blocks.insert(blocks.end(), group.blocks.begin(), group.blocks.end());
    num_tokens_ = row().num_computed;
    tokens_ = row().tokens;
    for (const BlockId block : blocks) {
      plan.transfers_out.push_back(
          {.block = block, .host = HostBlockId{first_host++}});
    }
    plan.swap_outs = {{.slot = kSwapSlot,
                       .swap = kTinySwap,
                       .num_tokens = num_tokens_,
                       .num_transfers = static_cast<int32_t>(blocks.size())}};
    plan.released = {kSwapSlot};
    transfers_ = plan.transfers_out;
    StepResult result;
    EXPECT_OK(host_.engine().Run(plan, &result));
    return result;
  }
  // It comes back to blocks of high numbers and goes on with its last token;
  // `logits` after that.
  StepResult ComeBack(std::vector<float>* logits) {
    StepPlan plan;
    plan.starts = {{.slot = kSwapSlot,
                    .request = RequestId{9},
                    .num_tokens = static_cast<int32_t>(tokens_.size()),
                    .num_cached_tokens = num_tokens_,
                    .swap = kTinySwap,
                    .num_transfers = static_cast<int32_t>(transfers_.size())}};
    plan.start_tokens = tokens_;
    plan.slots = {kSwapSlot};
    plan.positions = {num_tokens_};
    plan.num_tokens = {static_cast<int32_t>(tokens_.size()) - num_tokens_};
    plan.samples = {1};
    int32_t next = 500;
    for (size_t i = 0; i < transfers_.size(); ++i) {
      const BlockId block{next--};
      plan.transfers_in.push_back({.block = block, .host = transfers_[i].host});
      if (i >= num_region_) plan.blocks.push_back(block);
    }
    plan.block_offsets = {0, std::ssize(plan.blocks)};
    TinyObserver observer;
    observer.on_logits = [&](SequenceSlot, int32_t,
                             std::span<const float> values) {
      logits->assign(values.begin(), values.end());
    };
    host_.engine().set_observer(observer);
    StepResult result;
    EXPECT_OK(host_.engine().Run(plan, &result));
    return result;
  }

  EngineHarness host_;
  std::vector<BlockTransfer> transfers_;
  std::vector<int32_t> tokens_;
  int32_t num_tokens_ = 0;
  size_t num_region_ = 0;
};

INSTANTIATE_TEST_SUITE_P(CompressedAndShards, TinySwapTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(1, 2)));

TEST_P(TinySwapTest, GoesOnBitForBit) {
  const std::vector<float> expected = host_.Decode(1);
  const StepResult left = Leave(2);
  EXPECT_THAT(left.lost_host_blocks, IsEmpty());
  EXPECT_EQ(num_region_ > 0, std::get<0>(GetParam()));
  // What was in its blocks is overwritten.
  host_.engine().set_fault([this](const StepPlan&) {
    std::vector<BlockId> blocks;
    for (const BlockTransfer& transfer : transfers_) {
      blocks.push_back(transfer.block);
    }
    return blocks;
  });
  host_.Decode(1);
  host_.engine().set_fault({});
  std::vector<float> logits;
  const StepResult result = ComeBack(&logits);
  EXPECT_THAT(result.lost_blocks, IsEmpty());
  EXPECT_EQ(logits, expected);
}

TEST_P(TinySwapTest, ReportsHostMemoryThatLosesItsContent) {
  host_.engine().set_host_fault(
      [](const StepPlan&) { return std::vector<HostBlockId>{HostBlockId{1}}; });
  const StepResult left = Leave(0);
  EXPECT_THAT(left.lost_host_blocks, ElementsAre(HostBlockId{1}));
  host_.engine().set_host_fault({});
  // Too late for who has it back.
  std::vector<float> logits;
  const StepResult result = ComeBack(&logits);
  EXPECT_THAT(result.lost_blocks, ElementsAre(BlockId{499}));
  EXPECT_THAT(logits, IsEmpty());  // shown to nobody
}

TEST_P(TinySwapTest, ReportsCopiesOfLostBlocks) {
  const BlockId lost = row().groups[0].blocks[0];
  host_.engine().set_fault(
      [lost](const StepPlan&) { return std::vector<BlockId>{lost}; });
  host_.Decode(1);
  host_.engine().set_fault({});
  const StepResult left = Leave(0);
  EXPECT_THAT(left.lost_host_blocks,
              ElementsAre(HostBlockId{static_cast<int32_t>(num_region_)}));
}

TEST(TinyHostTierTest, BlocksCostNoMemoryBeforeTheyAreWritten) {
  const int64_t before = ResidentBytes();
  const int32_t num_host_blocks = 1 << 16;
  EngineHarness host(SmallModel(31), DType::kFloat32, 16, 1, num_host_blocks);
  const int64_t host_bytes =
      num_host_blocks * host.engine().tables().layout().block_bytes();
  EXPECT_GT(host_bytes, int64_t{1} << 28);
  EXPECT_LT(ResidentBytes() - before, host_bytes / 4);
}

}  // namespace
}  // namespace blockmgr
