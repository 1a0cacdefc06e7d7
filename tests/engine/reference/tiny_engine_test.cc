#include "engine/reference/tiny_engine.h"

#include <random>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/testing/dense_reference.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

TEST(TinyEngineTest, LogitsMatchTheDenseReference) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    // One run of the default shape, others of a smaller one.
    const auto model =
        seed == 1 ? RandomModel(ModelShape(), seed) : SmallModel(seed);
    EngineHarness host(model, DType::kFloat32);
    const int32_t length = seed == 1 ? 70 : 150;
    host.Start(0, RandomTokens(length, model->shape().vocabulary, &random));
    const LogitRows trace =
        host.Generate(0, RandomSplit(length, 64, &random), 12);
    DenseReference reference(model.get());
    const std::span<const int32_t> tokens = host.tokens(0);
    ExpectLogits(trace[0], reference.Forward(tokens.first(length)));
    for (size_t i = 1; i < trace.size(); ++i) {
      const size_t position = static_cast<size_t>(length) + i - 1;
      const std::vector<double> expected = reference.Forward(tokens[position]);
      ExpectLogits(trace[i], expected);
      EXPECT_EQ(tokens[position + 1], Argmax(expected));
    }
  }
}

class TinyEngineDTypeTest : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(DTypes, TinyEngineDTypeTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16,
                                           DType::kFloat16),
                         [](const auto& param) {
                           return std::string(DTypeName(param.param));
                         });

TEST_P(TinyEngineDTypeTest, ChunksDoNotChangeABit) {
  const auto model = SmallModel(4);
  std::mt19937_64 random(4);
  const std::vector<int32_t> prompt = RandomTokens(133, 64, &random);
  std::vector<std::vector<int32_t>> splits = {
      {133}, std::vector<int32_t>(133, 1), {16, 32, 85}, {1, 131, 1}};
  for (int i = 0; i < 4; ++i) splits.push_back(RandomSplit(133, 50, &random));
  LogitRows first;
  for (const std::vector<int32_t>& split : splits) {
    SCOPED_TRACE(::testing::PrintToString(split));
    EngineHarness host(model, GetParam());
    host.Start(0, prompt);
    const LogitRows trace = host.Generate(0, split, 6);
    if (first.empty()) first = trace;
    EXPECT_EQ(trace, first);
  }
}

TEST_P(TinyEngineDTypeTest, TheBatchDoesNotChangeABit) {
  const auto model = SmallModel(5);
  std::mt19937_64 random(5);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<LogitRows> alone;
  for (const int32_t length : {5, 40, 17, 90}) {
    prompts.push_back(RandomTokens(length, 64, &random));
    EngineHarness host(model, GetParam());
    host.Start(0, prompts.back());
    alone.push_back(host.Generate(0, std::vector{length}, 8));
  }
  // Prompts in random chunks and decodes mixed, slots in random order.
  EngineHarness host(model, GetParam());
  std::vector<LogitRows> together(prompts.size());
  std::vector<int32_t> left;
  std::vector<int32_t> order;
  for (size_t i = 0; i < prompts.size(); ++i) {
    host.Start(static_cast<int32_t>(i), prompts[i]);
    left.push_back(static_cast<int32_t>(prompts[i].size()));
    order.push_back(static_cast<int32_t>(i));
  }
  for (int step = 0; step < 200; ++step) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int32_t slot : order) {
      const auto index = static_cast<size_t>(slot);
      if (together[index].size() == 9 || random() % 3 == 0) continue;
      const int32_t tokens =
          left[index] == 0
              ? 1
              : std::min(left[index], static_cast<int32_t>(random() % 20 + 1));
      host.Schedule(slot, tokens);
      left[index] -= std::min(left[index], tokens);
    }
    ASSERT_OK(host.Run());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::vector<float>& logits = host.logits(static_cast<int32_t>(i));
      if (!logits.empty()) together[i].push_back(logits);
    }
  }
  EXPECT_EQ(together, alone);
}

TEST_P(TinyEngineDTypeTest, ACachedPrefixDoesNotChangeABit) {
  const auto model = SmallModel(6);
  std::mt19937_64 random(6);
  const std::vector<int32_t> prompt = RandomTokens(100, 64, &random);
  EngineHarness host(model, GetParam());
  host.Start(0, prompt);
  const LogitRows first = host.Generate(0, std::vector{100}, 6);
  host.Start(1, prompt, 32, std::span(host.blocks(0)).first(5));
  EXPECT_EQ(host.Generate(1, std::vector{20}, 6), first);
}

TEST(TinyEngineTest, AReusedSlotStartsAfresh) {
  const auto model = SmallModel(7);
  std::mt19937_64 random(7);
  const std::vector<int32_t> a = RandomTokens(40, 64, &random);
  const std::vector<int32_t> b = RandomTokens(60, 64, &random);
  EngineHarness fresh(model, DType::kFloat32);
  fresh.Start(0, b);
  const LogitRows expected = fresh.Generate(0, std::vector{60}, 3);
  EngineHarness host(model, DType::kFloat32);
  host.Start(0, a);
  host.Generate(0, std::vector{40}, 3);
  host.Release(0);
  host.Start(0, b);
  EXPECT_EQ(host.Generate(0, std::vector{60}, 3), expected);
}

TEST(TinyEngineTest, ABadPlanChangesNothing) {
  const auto model = SmallModel(8);
  std::mt19937_64 random(8);
  EngineHarness host(model, DType::kFloat32);
  host.Start(0, RandomTokens(40, 64, &random));
  host.Prefill(0, std::vector{40});
  StepPlan plan;
  plan.slots = {SequenceSlot{0}};
  plan.positions = {39};
  plan.num_tokens = {1};
  plan.samples = {1};
  plan.block_offsets = {0, 0};
  StepResult result;
  EXPECT_THAT(host.engine().Run(plan, &result),
              IsInvalid("expected position 40, got 39"));
  EXPECT_EQ(host.engine().tables().row(SequenceSlot{0}).num_computed, 40);
  EXPECT_FALSE(host.Decode(0).empty());
}

TEST(TinyEngineTest, SamplesOnlyWhereAsked) {
  const auto model = SmallModel(9);
  std::mt19937_64 random(9);
  EngineHarness host(model, DType::kFloat32);
  host.Start(0, RandomTokens(40, 64, &random));
  host.Start(1, RandomTokens(10, 64, &random));
  host.Schedule(0, 20);
  host.Schedule(1, 10);
  ASSERT_OK(host.Run());
  EXPECT_THAT(host.result().sampled, ElementsAre(-1, host.tokens(1).back()));
}

}  // namespace
}  // namespace blockmgr
