// Decode steps in graphs against the same steps as they are, on a device: the
// emulator or a GPU, whichever the program is linked with.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "engine/reference/tiny_engine.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using Decode = CudaBackendOptions::Decode;

constexpr int32_t kSlots = 5;
constexpr int32_t kDecodeVocabulary = 64;

std::shared_ptr<const LanguageModel> DecodeModel(
    int32_t num_shards, const std::vector<int32_t>& windows) {
  return RandomModel(
      ModelShape{.num_layers = static_cast<int32_t>(windows.size()),
                 .num_q_heads = 4 * num_shards,
                 .num_heads = 2 * num_shards,
                 .head_dim = 64,
                 .hidden = 64,
                 .mlp = 64,
                 .vocabulary = kDecodeVocabulary,
                 .windows = windows},
      7);
}

std::unique_ptr<EngineHarness> MakeEngine(
    const std::shared_ptr<const LanguageModel>& model, Decode decode,
    int32_t num_shards, bool captures_graphs) {
  ModelLayout layout = MakeLayout(model->shape(), 16, DType::kFloat16, 160);
  layout.num_shards = num_shards;
  const std::shared_ptr<DeviceRuntime> runtime = MakeTestRuntime(1);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int32_t shard = 0; shard < num_shards; ++shard) {
    auto backend =
        CudaBackend::Create(layout.ShardLayout(), {.decode = decode}, runtime);
    EXPECT_OK(backend.status());
    backends.push_back(*std::move(backend));
  }
  return std::make_unique<EngineHarness>(model, std::move(backends), 0,
                                         captures_graphs);
}

// Drives an engine through steps that follow from the seed.
class Script {
 public:
  Script(std::unique_ptr<EngineHarness> engine, uint64_t seed)
      : engine_(std::move(engine)), random_(seed) {}

  // Runs a step. In a calm one, sequences only decode; in any other some begin,
  // compute a chunk of a prompt, are compressed or end.
  void Step(bool is_calm) {
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      Sequence& sequence = sequences_[static_cast<size_t>(slot)];
      if (sequence.is_running && !is_calm && Draw(6) == 0) {
        engine_->Release(slot);
        sequence = Sequence();
      } else if (sequence.is_running) {
        Compute(slot, is_calm, &sequence);
      } else if (!is_calm && Draw(2) == 0) {
        sequence = {.is_running = true, .left = 1 + Draw(50)};
        engine_->Start(
            slot, RandomTokens(sequence.left, kDecodeVocabulary, &random_), 0);
        Compute(slot, is_calm, &sequence);
      }
    }
    ASSERT_OK(engine_->Run());
  }

  EngineHarness& engine() { return *engine_; }

 private:
  struct Sequence {
    bool is_running = false;
    int32_t left = 0;  // of the prompt
    int32_t computed = 0;
    int32_t cut = 0;
  };

  int32_t Draw(int32_t end) {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(end));
  }
  void Compute(int32_t slot, bool is_calm, Sequence* sequence) {
    const int32_t chunk =
        sequence->left == 0
            ? 1
            : (is_calm ? sequence->left : 1 + Draw(sequence->left));
    engine_->Schedule(slot, chunk);
    sequence->left = std::max(sequence->left - chunk, 0);
    sequence->computed += chunk;
    const int32_t cut = sequence->computed / 16 * 16;
    if (is_calm || cut < sequence->cut + 16 || Draw(2) == 0) return;
    sequence->cut = cut;
    engine_->Evict(slot, cut, "knorm | adakv", Keep("0.5"),
                   DestinationKind::kFresh);
  }

  const std::unique_ptr<EngineHarness> engine_;
  std::mt19937_64 random_;
  std::vector<Sequence> sequences_ = std::vector<Sequence>(kSlots);
};

// Kernel, windows of layers, shards.
using Case = std::tuple<Decode, std::vector<int32_t>, int32_t>;

class TinyDecodeTest : public DeviceTest,
                       public testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(Kernels, TinyDecodeTest,
                         testing::Values(Case(Decode::kChunked, {0, 0}, 1),
                                         Case(Decode::kInvariant, {0, 32}, 2),
                                         Case(Decode::kBalanced, {0, 0}, 1)));

// The greatest difference of a logit.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double one = std::abs(double{a[i]} - double{b[i]});
    if (!(one <= difference)) difference = one;
  }
  return difference;
}

// Lists grow by tokens and shrink by evictions, sequences come and go, and
// prompts between decode steps use the same buffers.
TEST_P(TinyDecodeTest, AReplayedStepIsTheStep) {
  const auto& [decode, windows, num_shards] = GetParam();
  const auto model = DecodeModel(num_shards, windows);
  // Dead rows are rows of the batch: the bits may depend on them where they
  // depend on the batch.
  const bool is_exact = decode != Decode::kBalanced &&
                        !MakeTestRuntime(1)->UseProductLibrary().ok();
  for (uint64_t seed = 1; seed <= CountDeviceCases(1); ++seed) {
    SCOPED_TRACE(seed);
    Script eager(MakeEngine(model, decode, num_shards, false), seed);
    Script graphs(MakeEngine(model, decode, num_shards, true), seed);
    bool is_equal = true;
    for (int32_t step = 0; step < 24 && is_equal; ++step) {
      SCOPED_TRACE(step);
      const bool is_calm = step % 8 > 2;
      eager.Step(is_calm);
      graphs.Step(is_calm);
      for (int32_t slot = 0; slot < kSlots; ++slot) {
        ASSERT_LE(Difference(eager.engine().logits(slot),
                             graphs.engine().logits(slot)),
                  is_exact ? 0.0 : 1e-2);
        is_equal &= eager.engine().tokens(slot) == graphs.engine().tokens(slot);
      }
    }
    // Else one of two tokens that are as likely was drawn.
    EXPECT_TRUE(is_equal || !is_exact);
    if (!is_equal) continue;
    const DeviceGraphs& captured = graphs.engine().engine().graphs();
    EXPECT_OK(captured.error());
    EXPECT_GT(captured.num_captures(), 1);
    EXPECT_GT(captured.num_replays(), 8);
    EXPECT_EQ(eager.engine().engine().graphs().num_replays(), 0);
  }
}

}  // namespace
}  // namespace blockmgr
