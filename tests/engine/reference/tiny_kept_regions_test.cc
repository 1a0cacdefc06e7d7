// Sequences of the tiny engine that start on regions which others have made in
// all layer groups, against a dense float64 model.

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "engine/reference/tiny_engine.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// Windows of the layers, and the number of shards.
using KeptRegionsCase = std::tuple<std::vector<int32_t>, int32_t>;

// A prompt of 200 tokens. Slot 0 evicts below 96 in every group, 112 being
// computed, and keeps the regions by this name.
class TinyKeptRegionsTest : public ::testing::TestWithParam<KeptRegionsCase> {
 protected:
  static constexpr RegionId kName{5};
  static constexpr int32_t kLength = 200;
  static constexpr int32_t kPage = 16;

  TinyKeptRegionsTest()
      : random_(20),
        prompt_(RandomTokens(kLength, 64, &random_)),
        model_(SmallWindowModel(20, std::get<0>(GetParam()))),
        host_(model_, DType::kFloat32, 400, std::get<1>(GetParam()), 64) {}

  // Orders in all groups, or in group 0, of what slots have scheduled.
  void Order(int32_t slot, int32_t cut, RegionId name, bool everywhere) {
    const EvictionTarget target = Keep("0.3");
    const char* const policy = "snapkv(window=8) | adakv | topk";
    const size_t first = host_.plan().evictions.size();
    if (everywhere) {
      host_.EvictEverywhere(slot, cut, policy, target, DestinationKind::kMixed);
    } else {
      host_.Evict(slot, cut, policy, target, DestinationKind::kMixed);
    }
    host_.plan().evictions[first].region = name;
  }
  // Runs the plan, in which one slot is evicted from, and masks what is gone.
  void RunOrders(DenseReference* reference) {
    ASSERT_OK(host_.Run());
    const int32_t num_heads = model_->shape().num_heads;
    for (const EngineHarness::Eviction& eviction : host_.evictions()) {
      const EvictionOrder& order = eviction.order;
      for (int32_t i = 0; i < host_.layout().pages_per_block(); ++i) {
        const int32_t layer =
            model_->groups().LayerAt(i / num_heads, order.group);
        if (layer < 0) continue;
        reference->Keep(layer, i % num_heads, order.cut,
                        eviction.KeptPositions(static_cast<size_t>(i)));
      }
    }
  }
  void MakeKept() {
    host_.Start(0, prompt_);
    host_.Schedule(0, 112);
    Order(0, 96, kName, true);
    maker_.emplace(model_.get());
    maker_->Forward(std::span(prompt_).first(112));
    RunOrders(&*maker_);
    ASSERT_EQ(std::ssize(host_.evictions()), host_.layout().num_groups());
  }
  // The maker goes on to a length.
  void MakeMore(int32_t length) {
    const int32_t begin = maker_->length();
    if (length == begin) return;
    host_.Schedule(0, length - begin);
    ASSERT_OK(host_.Run());
    maker_->Forward(std::span(prompt_)
                        .first(static_cast<size_t>(length))
                        .subspan(static_cast<size_t>(begin)));
  }
  // The rest of the prompt in both slots, and more: equal, and as in `dense`,
  // which is where both are.
  void ExpectBothGoOn(DenseReference dense) {
    const int32_t num_tokens = kLength - dense.length();
    std::vector<double> expected = dense.Forward(
        std::span(prompt_).subspan(static_cast<size_t>(dense.length())));
    host_.Schedule(0, num_tokens);
    host_.Schedule(1, num_tokens);
    ASSERT_OK(host_.Run());
    for (int32_t i = 0; i < 50; ++i) {
      ExpectLogits(host_.logits(1), expected);
      ASSERT_EQ(host_.logits(0), host_.logits(1));
      expected =
          dense.Forward(host_.tokens(1)[static_cast<size_t>(dense.length())]);
      host_.Schedule(0, 1);
      host_.Schedule(1, 1);
      ASSERT_OK(host_.Run());
    }
  }
  // Swaps a slot out, whose regions are all in the window, and frees its
  // blocks; returns what it had.
  SequenceTable SwapOut(int32_t slot, SwapId swap) {
    SequenceTable was = row(slot);
    host_.Release(slot);
    std::vector<BlockTransfer>& transfers = host_.plan().transfers_out;
    const auto add = [&](std::span<const BlockId> blocks) {
      for (const BlockId block : blocks) {
        const auto host = static_cast<int32_t>(transfers.size());
        transfers.push_back({block, HostBlockId{host}});
      }
    };
    for (const GroupTable& group : was.groups) {
      add(group.region.blocks);
      add(group.blocks);
    }
    host_.plan().swap_outs = {
        {.slot = SequenceSlot{slot},
         .swap = swap,
         .num_tokens = was.num_computed,
         .num_transfers = static_cast<int32_t>(transfers.size())}};
    EXPECT_OK(host_.Run());
    return was;
  }
  // Has it back in another slot, where it computes the rest of the prompt. With
  // a region, that of group 0 is shared.
  void SwapIn(int32_t slot, SwapId swap, const SequenceTable& was,
              RegionId region) {
    StepPlan plan;
    // The harness takes the lower ones first.
    int32_t next_block = 300;
    const size_t num_shared =
        region == kNoRegion ? 0 : was.groups[0].region.blocks.size();
    auto host = static_cast<int32_t>(num_shared);
    const auto copy = [&] {
      const BlockId block{next_block++};
      plan.transfers_in.push_back({block, HostBlockId{host++}});
      return block;
    };
    plan.block_offsets = {0};
    for (size_t i = 0; i < was.groups.size(); ++i) {
      const GroupTable& group = was.groups[i];
      for (size_t j = i == 0 ? num_shared : 0; j < group.region.blocks.size();
           ++j) {
        copy();
      }
      const auto num_pages =
          static_cast<size_t>(CeilDiv(kLength - group.region.cut, kPage));
      for (size_t j = 0; j < num_pages; ++j) {
        plan.blocks.push_back(j < group.blocks.size() ? copy()
                                                      : BlockId{next_block++});
      }
      plan.block_offsets.push_back(std::ssize(plan.blocks));
    }
    plan.starts = {
        {.slot = SequenceSlot{slot},
         .request = RequestId{9},
         .num_tokens = kLength,
         .num_cached_tokens = was.num_computed,
         .region = region,
         .swap = swap,
         .num_transfers = static_cast<int32_t>(plan.transfers_in.size())}};
    plan.start_tokens = prompt_;
    plan.slots = {SequenceSlot{slot}};
    plan.positions = {was.num_computed};
    plan.num_tokens = {kLength - was.num_computed};
    plan.samples = {1};
    StepResult result;
    ASSERT_OK(host_.engine().Run(plan, &result));
  }
  const SequenceTable& row(int32_t slot) {
    return host_.engine().tables().row(SequenceSlot{slot});
  }
  // Of all groups.
  int32_t CountRegions(int32_t slot) {
    int32_t num_regions = 0;
    for (const GroupTable& group : row(slot).groups) {
      num_regions += group.region.cut > 0 ? 1 : 0;
    }
    return num_regions;
  }

  std::mt19937_64 random_;
  const std::vector<int32_t> prompt_;
  const std::shared_ptr<const LanguageModel> model_;
  EngineHarness host_;
  std::optional<DenseReference> maker_;
};

std::string NameOfKeptRegions(
    const ::testing::TestParamInfo<KeptRegionsCase>& info) {
  return NameOfWindows(std::get<0>(info.param)) + "_Shards_" +
         std::to_string(std::get<1>(info.param));
}

// One window group, padded; two windows with groups of their own; more window
// groups than layers without a window.
INSTANTIATE_TEST_SUITE_P(
    Hybrid, TinyKeptRegionsTest,
    ::testing::Combine(::testing::Values(std::vector<int32_t>{48, 0, 0},
                                         std::vector<int32_t>{36, 0, 80, 0, 36},
                                         std::vector<int32_t>{40, 40, 0, 40}),
                       ::testing::Values(1, 2)),
    NameOfKeptRegions);

// Windows take leave of them one after the other, the last at 176.
TEST_P(TinyKeptRegionsTest, WhoStartsOnThemComputesWhatTheirMakerDoes) {
  for (const int32_t num_pages : {1, 2, 3, 4, 5}) {
    SCOPED_TRACE(num_pages);
    MakeKept();
    MakeMore(96 + 16 * num_pages);
    if (HasFatalFailure()) return;
    host_.StartOnRegion(1, prompt_, 0, kName, num_pages);
    host_.plan().dropped_regions = {kName};
    ExpectBothGoOn(*maker_);
    if (num_pages < 3) {
      EXPECT_EQ(CountRegions(1), host_.layout().num_groups());
    }
    if (num_pages == 5) {
      EXPECT_EQ(CountRegions(1), 1);
    }
    host_.Release(1);
    host_.Release(0);
    ASSERT_OK(host_.Run());
  }
}

// Of groups without an order in the step of the name those made before.
TEST_P(TinyKeptRegionsTest, OlderOnesAreKeptAsLongAsWindowsReachThem) {
  constexpr RegionId kLater{6};
  for (const int32_t length : {128, 144, 160}) {
    SCOPED_TRACE(length);
    MakeKept();
    MakeMore(length - 16);
    host_.Schedule(0, 16);
    Order(0, length - 16, kLater, false);
    maker_->Forward(std::span(prompt_)
                        .first(static_cast<size_t>(length))
                        .subspan(static_cast<size_t>(length) - 16));
    RunOrders(&*maker_);
    if (HasFatalFailure()) return;
    host_.StartOnRegion(1, prompt_, 0, kLater);
    host_.plan().dropped_regions = {kName, kLater};
    ExpectBothGoOn(*maker_);
    if (length == 128) {
      EXPECT_EQ(CountRegions(1), host_.layout().num_groups());
    }
    for (size_t group = 1; group < row(1).groups.size(); ++group) {
      const TableRegion& region = row(1).groups[group].region;
      EXPECT_TRUE(region.cut == 0 || region.length == 112) << region.length;
    }
    host_.Release(1);
    host_.Release(0);
    ASSERT_OK(host_.Run());
  }
}

// Each time in other groups; the last name is the one that is started on.
TEST_P(TinyKeptRegionsTest, RandomOrdersAreKeptAsTheyWereMade) {
  const auto up_to = [this](uint64_t limit) {
    return static_cast<int32_t>(random_() % (limit + 1));
  };
  uint64_t num_names = 0;
  for (int32_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    maker_.emplace(model_.get());
    host_.Start(0, prompt_);
    int32_t cut = kPage * (1 + up_to(3));
    for (; cut + kPage <= 144; cut += kPage * (1 + up_to(2))) {
      const int32_t begin = maker_->length();
      const int32_t length = cut + kPage;
      host_.Schedule(0, length - begin);
      Order(0, cut, RegionId{++num_names}, true);
      std::erase_if(host_.plan().evictions, [&](const EvictionOrder& order) {
        return order.group > 0 && up_to(1) == 0;
      });
      maker_->Forward(std::span(prompt_)
                          .first(static_cast<size_t>(length))
                          .subspan(static_cast<size_t>(begin)));
      RunOrders(&*maker_);
      if (HasFatalFailure()) return;
    }
    const int32_t last_cut = row(0).groups[0].region.cut;
    const int32_t num_pages = 1 + up_to(2);
    MakeMore(last_cut + kPage * num_pages);
    host_.StartOnRegion(1, prompt_, 0, RegionId{num_names}, num_pages);
    ExpectBothGoOn(*maker_);
    host_.Release(1);
    host_.Release(0);
    ASSERT_OK(host_.Run());
  }
}

// An order that fails in a window group leaves its positions where they are.
TEST_P(TinyKeptRegionsTest, WhatAnOrderDidNotMakeIsNotKept) {
  host_.Start(0, prompt_);
  host_.Schedule(0, 112);
  Order(0, 96, kName, true);
  ++host_.plan().evictions[1].length;
  maker_.emplace(model_.get());
  maker_->Forward(std::span(prompt_).first(112));
  RunOrders(&*maker_);
  if (HasFatalFailure()) return;
  EXPECT_THAT(host_.result().evictions[1].error, Not(IsEmpty()));
  host_.StartOnRegion(1, prompt_, 0, kName);
  ExpectBothGoOn(*maker_);
  EXPECT_EQ(CountRegions(1), host_.layout().num_groups() - 1);
  EXPECT_EQ(row(1).groups[1].region.cut, 0);
}

// Two start on the same; one of them evicts, and a third starts on that.
TEST_P(TinyKeptRegionsTest, EvictionsOfOneConcernNoOther) {
  constexpr RegionId kLater{6};
  MakeKept();
  for (const int32_t slot : {1, 2}) {
    host_.StartOnRegion(slot, prompt_, 0, kName);
    host_.Schedule(slot, 32);
  }
  host_.Schedule(0, 32);
  host_.plan().dropped_regions = {kName};
  Order(2, 128, kLater, true);
  DenseReference other = *maker_;
  other.Forward(std::span(prompt_).first(144).subspan(112));
  RunOrders(&other);
  if (HasFatalFailure()) return;
  ASSERT_EQ(std::ssize(host_.evictions()), host_.layout().num_groups());
  host_.StartOnRegion(3, prompt_, 2, kLater);
  host_.plan().dropped_regions = {kLater};
  for (const int32_t slot : {0, 1, 2, 3}) host_.Schedule(slot, 56);
  ASSERT_OK(host_.Run());
  std::vector<double> expected =
      maker_->Forward(std::span(prompt_).subspan(112));
  std::vector<double> expected_of_other =
      other.Forward(std::span(prompt_).subspan(144));
  for (int32_t i = 0; i < 40; ++i) {
    ExpectLogits(host_.logits(1), expected);
    ASSERT_EQ(host_.logits(0), host_.logits(1));
    ExpectLogits(host_.logits(3), expected_of_other);
    ASSERT_EQ(host_.logits(2), host_.logits(3));
    const auto place = static_cast<size_t>(other.length());
    expected = maker_->Forward(host_.tokens(1)[place]);
    expected_of_other = other.Forward(host_.tokens(3)[place]);
    for (const int32_t slot : {0, 1, 2, 3}) host_.Schedule(slot, 1);
    ASSERT_OK(host_.Run());
  }
}

// Out to the host tier and back: with all its regions, or with those of window
// groups, where group 0's is shared still.
TEST_P(TinyKeptRegionsTest, AStartGoesOnAfterASwap) {
  for (const bool is_shared : {false, true}) {
    SCOPED_TRACE(is_shared);
    MakeKept();
    host_.StartOnRegion(1, prompt_, 0, kName);
    DenseReference dense = *maker_;
    host_.Schedule(1, 11);
    ASSERT_OK(host_.Run());
    dense.Forward(std::span(prompt_).first(123).subspan(112));
    const SequenceTable was = SwapOut(1, SwapId{3});
    // Its blocks are another's from here on.
    host_.Start(2, RandomTokens(60, 64, &random_));
    host_.Schedule(2, 60);
    // What it comes back to is written then, whatever was lost there.
    host_.engine().set_fault([&](const StepPlan&) {
      std::vector<BlockId> blocks;
      for (int32_t i = 300; i < 380; ++i) blocks.push_back(BlockId{i});
      return blocks;
    });
    ASSERT_OK(host_.Run());
    host_.engine().set_fault({});
    SwapIn(4, SwapId{3}, was, is_shared ? kName : kNoRegion);
    if (HasFatalFailure()) return;
    const std::vector<double> expected =
        dense.Forward(std::span(prompt_).subspan(123));
    ExpectLogits(host_.logits(4), expected);
    EXPECT_EQ(row(4).groups[0].region.blocks == row(0).groups[0].region.blocks,
              is_shared);
    EXPECT_EQ(CountRegions(4), host_.layout().num_groups());
    host_.plan().dropped_regions = {kName};
    host_.plan().released = {SequenceSlot{4}};
    host_.Release(2);
    host_.Release(0);
    ASSERT_OK(host_.Run());
  }
}

}  // namespace
}  // namespace blockmgr
