// Who evicts where an engine's cache is on a device: the device. Without gRPC,
// for what a line cannot ask for; and on the emulator only, whose runtime can
// be made to go wrong.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/kernels/cuda/emulated_runtime.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr int32_t kVocabularySize = 64;
constexpr int32_t kCut = 96;

std::shared_ptr<const LanguageModel> SmallestModel() {
  return RandomModel(ModelShape{.num_layers = 2,
                                .num_q_heads = 4,
                                .num_heads = 2,
                                .head_dim = 64,
                                .hidden = 64,
                                .mlp = 128,
                                .vocabulary = kVocabularySize},
                     7);
}

enum class Fault { kNone, kIgnoresScores, kMovesNothing };

// A device with a fault where it evicts.
class FaultyRuntime : public EmulatedRuntime {
 public:
  explicit FaultyRuntime(Fault fault)
      : EmulatedRuntime(3, int64_t{1} << 28), fault_(fault) {}

  void Select(const SelectProblem& problem) override {
    SelectProblem changed = problem;
    if (fault_ == Fault::kIgnoresScores) changed.scores = nullptr;
    EmulatedRuntime::Select(changed);
  }
  void Move(const MoveRows& move) override {
    if (fault_ != Fault::kMovesNothing) EmulatedRuntime::Move(move);
  }

 private:
  const Fault fault_;
};

std::unique_ptr<Backend> DeviceFor(const LanguageModel& model,
                                   Fault fault = Fault::kNone) {
  auto backend =
      CudaBackend::Create(MakeLayout(model.shape(), 16, DType::kFloat16, 32),
                          {.decode = CudaBackendOptions::Decode::kChunked},
                          std::make_unique<FaultyRuntime>(fault));
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// A prompt, an eviction, and the tokens behind it.
struct Trace {
  std::string error;
  std::vector<EngineHarness::Eviction> evictions;
  std::vector<std::vector<float>> logits;
};

Trace RunWith(std::unique_ptr<Backend> backend) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(std::move(backend));
  EngineHarness host(SmallestModel(), std::move(backends));
  std::mt19937_64 random(5);
  host.Start(0, RandomTokens(100, kVocabularySize, &random));
  host.Schedule(0, 100);
  EXPECT_OK(host.Run());
  Trace trace;
  host.Evict(0, kCut, "snapkv(window=8) | adakv",
             {.kind = EvictionTarget::Kind::kTokens, .ratio = {}, .tokens = 48},
             DestinationKind::kMixed);
  EXPECT_OK(host.Run());
  trace.error = host.result().evictions[0].error;
  trace.evictions = host.evictions();
  for (int32_t i = 0; i < 4; ++i) trace.logits.push_back(host.Decode(0));
  return trace;
}

// What the CPU would keep by the scores that the engine saw.
KeepSets SelectedByCpu(const EngineHarness::Eviction& eviction) {
  const EvictionOrder& order = eviction.order;
  return SelectEntries(order.policy, order.target, {2, 2, 16},
                       {order.cut, order.length},
                       {.offsets = eviction.candidates.offsets,
                        .positions = eviction.candidates.positions,
                        .scores = eviction.scores,
                        .value_norms = {},
                        .products = {}},
                       {});
}

class CudaEvictionTest : public DeviceTest {};

// A fault of the device's shows.
TEST_F(CudaEvictionTest, TheDeviceSelects) {
  const auto model = SmallestModel();
  const Trace right = RunWith(DeviceFor(*model));
  ASSERT_EQ(right.error, "");
  EXPECT_EQ(right.evictions[0].keep.ranks,
            SelectedByCpu(right.evictions[0]).ranks);
  const Trace wrong = RunWith(DeviceFor(*model, Fault::kIgnoresScores));
  ASSERT_EQ(wrong.error, "");
  EXPECT_EQ(wrong.evictions[0].scores, right.evictions[0].scores);
  EXPECT_NE(wrong.evictions[0].keep.ranks, right.evictions[0].keep.ranks);
}

TEST_F(CudaEvictionTest, TheDeviceMoves) {
  const auto model = SmallestModel();
  const Trace right = RunWith(DeviceFor(*model));
  const Trace wrong = RunWith(DeviceFor(*model, Fault::kMovesNothing));
  EXPECT_EQ(wrong.evictions[0].keep.ranks, right.evictions[0].keep.ranks);
  EXPECT_NE(wrong.logits, right.logits);
}

}  // namespace
}  // namespace blockmgr
