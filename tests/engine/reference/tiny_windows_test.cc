// The tiny engine with layers that have sliding windows, against a dense
// float64 model and against itself.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "engine/reference/tiny_engine.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Windows = std::vector<int32_t>;

constexpr int32_t kPage = 16;

class TinyWindowsTest : public ::testing::TestWithParam<Windows> {
 protected:
  std::shared_ptr<const LanguageModel> Model(uint64_t seed) {
    return SmallWindowModel(seed, GetParam());
  }
};

std::string NameOfCase(const ::testing::TestParamInfo<Windows>& param) {
  return NameOfWindows(param.param);
}

// Models without other layers, of one window and two.
INSTANTIATE_TEST_SUITE_P(Sliding, TinyWindowsTest,
                         ::testing::Values(Windows{24, 24}, Windows{17, 40}),
                         NameOfCase);
// One window group, padded; two windows with groups of their own; more window
// groups than layers without a window.
const auto kHybrids = ::testing::Values(
    Windows{32, 0, 0}, Windows{20, 0, 48, 0, 20}, Windows{16, 16, 0, 16});
INSTANTIATE_TEST_SUITE_P(Hybrid, TinyWindowsTest, kHybrids, NameOfCase);

// Sequences take the blocks that others' windows have left behind.
TEST_P(TinyWindowsTest, LogitsMatchTheDenseReference) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto model = Model(seed);
    EngineHarness host(model, DType::kFloat32, 100);
    constexpr int32_t kLengths[] = {110, 31};
    std::vector<DenseReference> references;
    for (const int32_t slot : {0, 1}) {
      const int32_t length = kLengths[slot];
      host.Start(slot, RandomTokens(length, 64, &random));
      const std::vector<float> logits =
          host.Prefill(slot, RandomSplit(length, 40, &random));
      references.emplace_back(model.get());
      ExpectLogits(logits, references.back().Forward(
                               std::span(host.tokens(slot)).first(length)));
    }
    for (int32_t i = 0; i < 60; ++i) {
      host.Schedule(0, 1);
      host.Schedule(1, 1);
      ASSERT_OK(host.Run());
      for (const int32_t slot : {0, 1}) {
        const auto position = static_cast<size_t>(kLengths[slot]) + i;
        DenseReference& reference = references[static_cast<size_t>(slot)];
        ExpectLogits(host.logits(slot),
                     reference.Forward(host.tokens(slot)[position]));
      }
    }
  }
}

TEST_P(TinyWindowsTest, NeitherChunksNorShardsChangeABit) {
  const auto model = Model(3);
  std::mt19937_64 random(3);
  const std::vector<int32_t> prompt = RandomTokens(133, 64, &random);
  std::vector<std::vector<int32_t>> splits = {
      {133}, std::vector<int32_t>(133, 1), {16, 32, 85}};
  for (int i = 0; i < 3; ++i) splits.push_back(RandomSplit(133, 50, &random));
  LogitRows first;
  for (const std::vector<int32_t>& split : splits) {
    SCOPED_TRACE(::testing::PrintToString(split));
    EngineHarness host(model, DType::kBFloat16, 100, split.size() == 3 ? 2 : 1);
    host.Start(0, prompt);
    const LogitRows rows = host.Generate(0, split, 20);
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first);
  }
}

TEST_P(TinyWindowsTest, ACachedPrefixDoesNotChangeABit) {
  const auto model = Model(4);
  std::mt19937_64 random(4);
  const std::vector<int32_t> prompt = RandomTokens(100, 64, &random);
  EngineHarness fresh(model, DType::kFloat32, 100);
  fresh.Start(0, prompt);
  const LogitRows expected = fresh.Generate(0, std::vector{100}, 30);
  EngineHarness host(model, DType::kFloat32, 100);
  host.Start(0, prompt);
  host.Prefill(0, std::vector{80});
  host.StartOnPages(1, prompt, 0, 5);
  EXPECT_EQ(host.Generate(1, std::vector{20}, 30), expected);
  // The first has not been disturbed.
  EXPECT_EQ(host.Generate(0, std::vector{20}, 30), expected);
}

// The last block of every group is copied, and both go their own ways.
TEST_P(TinyWindowsTest, AForkComputesWhatItWouldAlone) {
  const auto model = Model(5);
  std::mt19937_64 random(5);
  const std::vector<int32_t> prompt = RandomTokens(70, 64, &random);
  EngineHarness host(model, DType::kFloat32, 100);
  host.Start(0, prompt);
  host.Prefill(0, std::vector{70});
  const ModelLayout& layout = host.layout();
  std::vector<int32_t> tokens = prompt;
  tokens.push_back((host.tokens(0)[70] + 1) % 64);
  StepPlan plan;
  plan.starts = {{.slot = SequenceSlot{1},
                  .request = RequestId{9},
                  .num_tokens = 71,
                  .num_cached_tokens = 70,
                  .source = SequenceSlot{0}}};
  plan.start_tokens = tokens;
  for (int32_t group = 0; group < layout.num_groups(); ++group) {
    const BlockId last = host.blocks(0, group).back();
    plan.copies.push_back({.slot = SequenceSlot{1},
                           .blocks = {last, BlockId{80 + group}},
                           .num_tokens = 70 % kPage,
                           .group = group});
  }
  plan.slots = {SequenceSlot{1}};
  plan.positions = {70};
  plan.num_tokens = {1};
  plan.samples = {1};
  plan.block_offsets.assign(static_cast<size_t>(layout.num_groups()) + 1, 0);
  StepResult result;
  ASSERT_OK(host.engine().Run(plan, &result));
  DenseReference reference(model.get());
  ExpectLogits(host.logits(1), reference.Forward(tokens));
  DenseReference source(model.get());
  source.Forward(prompt);
  const int32_t next = host.tokens(0)[70];
  ExpectLogits(host.Decode(0), source.Forward(next));
}

// What is before a window does not leave, nor come back.
TEST_P(TinyWindowsTest, GoesOnBitForBitAfterASwap) {
  const auto model = Model(7);
  std::mt19937_64 random(7);
  const std::vector<int32_t> prompt = RandomTokens(90, 64, &random);
  EngineHarness host(model, DType::kFloat32, 200, 1, 32);
  host.Start(0, prompt);
  host.Prefill(0, std::vector{90});
  host.Decode(0);
  const ModelLayout& layout = host.layout();
  const SequenceTable before = host.engine().tables().row(SequenceSlot{0});
  const int32_t num_pages = CeilDiv(before.num_computed, kPage);
  const auto num_groups = static_cast<size_t>(layout.num_groups());
  StepPlan out;
  StepPlan in;
  std::vector<std::vector<BlockId>> tables(num_groups);
  for (size_t g = 0; g < num_groups; ++g) {
    const auto group = static_cast<int32_t>(g);
    const int32_t first = layout.FirstPage(group, before.num_computed);
    tables[g].assign(static_cast<size_t>(first), kNullBlock);
    for (int32_t i = first; i < num_pages; ++i) {
      const BlockId block = host.blocks(0, group)[static_cast<size_t>(i)];
      const HostBlockId place{static_cast<int32_t>(out.transfers_out.size())};
      out.transfers_out.push_back({.block = block, .host = place});
      tables[g].push_back(BlockId{199 - Index(place)});
      in.transfers_in.push_back({.block = tables[g].back(), .host = place});
    }
  }
  const auto num_transfers = static_cast<int32_t>(out.transfers_out.size());
  out.swap_outs = {{.slot = SequenceSlot{0},
                    .swap = SwapId{3},
                    .num_tokens = before.num_computed,
                    .num_transfers = num_transfers}};
  out.released = {SequenceSlot{0}};
  StepResult result;
  ASSERT_OK(host.engine().Run(out, &result));
  in.starts = {{.slot = SequenceSlot{2},
                .request = RequestId{9},
                .num_tokens = before.num_computed + 1,
                .num_cached_tokens = before.num_computed,
                .swap = SwapId{3},
                .num_transfers = num_transfers}};
  in.start_tokens = before.tokens;
  in.slots = {SequenceSlot{2}};
  in.positions = {before.num_computed};
  in.num_tokens = {1};
  in.samples = {1};
  in.block_offsets = {0};
  for (const std::vector<BlockId>& blocks : tables) {
    in.blocks.insert(in.blocks.end(), blocks.begin(), blocks.end());
    in.block_offsets.push_back(std::ssize(in.blocks));
  }
  ASSERT_OK(host.engine().Run(in, &result));
  EXPECT_THAT(result.lost_blocks, IsEmpty());
  DenseReference reference(model.get());
  ExpectLogits(host.logits(2), reference.Forward(before.tokens));
}

// A block falls out of the window; what was computed from its remains does not.
TEST_P(TinyWindowsTest, WhatComesOfALostBlockIsShownToNobody) {
  const auto model = Model(8);
  std::mt19937_64 random(8);
  EngineHarness host(model, DType::kFloat32, 200);
  host.Start(0, RandomTokens(79, 64, &random));
  host.Prefill(0, std::vector{79});
  const int32_t last_group = host.layout().num_groups() - 1;
  const BlockId lost = host.blocks(0, last_group).back();
  host.engine().set_fault([&](const StepPlan&) { return std::vector{lost}; });
  EXPECT_THAT(host.Decode(0), ::testing::Not(IsEmpty()));  // computed before
  EXPECT_THAT(host.result().lost_blocks, ElementsAre(lost));
  host.engine().set_fault({});
  for (int32_t i = 0; i < 3 * kPage; ++i) {
    EXPECT_THAT(host.Decode(0), IsEmpty());
    EXPECT_THAT(host.result().lost_blocks, IsEmpty());
  }
  // Not so for the next who has the slot and the blocks.
  host.Release(0);
  const std::vector<int32_t> prompt = RandomTokens(79, 64, &random);
  host.Start(0, prompt);
  DenseReference reference(model.get());
  ExpectLogits(host.Prefill(0, std::vector{79}), reference.Forward(prompt));
}

// Those that nobody attends to any more do not matter.
TEST_P(TinyWindowsTest, WhatIsLostBehindTheWindowDoesNotMatter) {
  const auto model = Model(9);
  std::mt19937_64 random(9);
  const std::vector<int32_t> prompt = RandomTokens(120, 64, &random);
  EngineHarness host(model, DType::kFloat32, 200);
  host.Start(0, prompt);
  host.Schedule(0, 120);
  const int32_t group = host.layout().num_groups() - 1;
  const BlockId first = host.plan().NewBlocks(host.layout(), 0, group).front();
  ASSERT_OK(host.Run());
  host.engine().set_fault([&](const StepPlan&) { return std::vector{first}; });
  DenseReference reference(model.get());
  reference.Forward(prompt);
  for (int32_t i = 0; i < 2; ++i) {
    const std::vector<float> logits = host.Decode(0);
    ExpectLogits(logits, reference.Forward(host.tokens(0)[120 + i]));
    EXPECT_THAT(host.result().lost_blocks, Contains(first));
  }
}

}  // namespace
}  // namespace blockmgr
