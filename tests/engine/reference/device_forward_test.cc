// Whole models on a device: the emulator or a GPU, whichever the program is
// linked with.
#include "engine/reference/device_forward.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/reference/tiny_backends.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/gguf_reference.h"
#include "tests/engine/reference/test_util.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

std::shared_ptr<const LanguageModel> Load(const GgufSpec& spec) {
  auto model = LoadSpec(spec);
  EXPECT_OK(model);
  return *std::move(model);
}

std::vector<std::unique_ptr<Backend>> OnDevice(const LanguageModel& model,
                                               int32_t num_shards = 1) {
  ModelLayout layout = MakeLayout(model.shape(), 16, DType::kFloat16, 64);
  layout.num_shards = num_shards;
  const std::shared_ptr<DeviceRuntime> runtime = MakeTestRuntime(1);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int32_t shard = 0; shard < num_shards; ++shard) {
    auto backend = CudaBackend::Create(
        layout.ShardLayout(), {.decode = CudaBackendOptions::Decode::kChunked},
        runtime);
    EXPECT_OK(backend.status());
    backends.push_back(*std::move(backend));
  }
  return backends;
}

class DeviceModelTest
    : public DeviceTest,
      public testing::WithParamInterface<std::tuple<const char*, TensorType>> {
};

INSTANTIATE_TEST_SUITE_P(Models, DeviceModelTest,
                         testing::Values(std::tuple("llama", TensorType::kQ8_0),
                                         std::tuple("qwen2", TensorType::kF16),
                                         std::tuple("gemma3", TensorType::kF32),
                                         std::tuple("gemma3",
                                                    TensorType::kBF16)));

// In chunks, in shards, and with windows that tokens fall out of.
TEST_P(DeviceModelTest, ComputesTheModelOfTheFile) {
  const auto [architecture, type] = GetParam();
  const GgufSpec spec = RandomSpec(architecture, type, 7);
  const auto model = Load(spec);
  std::mt19937_64 random(8);
  const int32_t num_shards = model->shape().num_heads % 2 == 0 ? 2 : 1;
  EngineHarness engine(model, OnDevice(*model, num_shards));
  engine.Start(0, RandomTokens(37, model->shape().vocabulary, &random));
  const std::vector<float> prefill =
      engine.Prefill(0, std::vector<int32_t>{22, 15});
  const std::vector<float> decode = engine.Decode(0);
  const std::vector<std::vector<double>> expected =
      ReferenceLogits(spec, std::span(engine.tokens(0)).first(38));
  const double limit = type == TensorType::kBF16 ? 2e-2 : 4e-3;
  EXPECT_LT(ErrorOf(prefill, expected[36]), limit);
  EXPECT_LT(ErrorOf(decode, expected[37]), limit);
}

class DeviceForwardTest : public DeviceTest {};

// The vendor's library may add in another order where there are other rows.
double BatchError(const EngineHarness& alone, const EngineHarness& batch) {
  double error = 0;
  for (size_t i = 0; i < alone.logits(0).size(); ++i) {
    error = std::max(error, std::abs(double{alone.logits(0)[i]} -
                                     double{batch.logits(0)[i]}));
  }
  return error;
}

TEST_F(DeviceForwardTest, ARowDoesNotDependOnOthers) {
  const auto model = Load(RandomSpec("qwen2", TensorType::kF16, 9));
  const bool has_library = MakeTestRuntime(1)->UseProductLibrary().ok();
  std::mt19937_64 random(10);
  const std::vector<int32_t> prompt =
      RandomTokens(30, model->shape().vocabulary, &random);
  EngineHarness alone(model, OnDevice(*model));
  alone.Start(0, prompt);
  alone.Prefill(0, std::vector<int32_t>{30});
  EngineHarness batch(model, OnDevice(*model));
  batch.Start(0, prompt);
  batch.Start(1, RandomTokens(20, model->shape().vocabulary, &random));
  for (const auto& [first, second] : {std::pair(17, 20), std::pair(13, 1)}) {
    batch.Schedule(0, first);
    batch.Schedule(1, second);
    ASSERT_OK(batch.Run());
  }
  EXPECT_LE(BatchError(alone, batch), has_library ? 1e-3 : 0.0);
}

// Tokens that the device draws are those that the host draws from the same
// logits, which an observer asks for.
TEST_F(DeviceForwardTest, DrawsWhatTheHostWouldSample) {
  const auto model = Load(RandomSpec("llama", TensorType::kF16, 11));
  const std::vector<SamplingParams> all = {
      {.temperature = 0.0},
      {.temperature = 0.8, .seed = 1},
      {.temperature = 1.5, .min_p = 0.02, .seed = 2},
      {.temperature = 0.9,
       .repetition_penalty = 1.3,
       .presence_penalty = 0.4,
       .frequency_penalty = -0.3,
       .logit_bias = {{7, 2.0}, {9, -100.0}},
       .seed = 3},
      {.temperature = 0.0, .frequency_penalty = 2.0, .min_tokens = 3},
      {.temperature = 1.0, .top_p = 0.9, .seed = 4},  // on the host
  };
  std::vector<std::vector<int32_t>> tokens[2];
  for (const bool is_observed : {false, true}) {
    EngineHarness engine(model, OnDevice(*model));
    if (!is_observed) engine.engine().set_observer({});
    std::mt19937_64 random(12);
    for (int32_t slot = 0; slot < std::ssize(all); ++slot) {
      engine.Start(slot, RandomTokens(5 + slot, 96, &random));
      RequestInfo info;
      info.num_prompt_tokens = 5 + slot;
      info.sampling = all[static_cast<size_t>(slot)];
      info.stop_token_ids = {1, 2, 3, 5, 8, 13};
      engine.Schedule(slot, 5 + slot);
      engine.plan().starts.back().info =
          std::make_shared<RequestInfo>(std::move(info));
    }
    for (int32_t step = 0; step < 8; ++step) {
      ASSERT_OK(engine.Run());
      for (int32_t slot = 0; step < 7 && slot < std::ssize(all); ++slot) {
        engine.Schedule(slot, 1);
      }
    }
    for (int32_t slot = 0; slot < std::ssize(all); ++slot) {
      tokens[is_observed ? 1 : 0].push_back(engine.tokens(slot));
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

}  // namespace
}  // namespace blockmgr
