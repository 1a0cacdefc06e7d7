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

constexpr int32_t kDecodeSlots = 5;
constexpr int32_t kDecodeVocabulary = 64;
// The queries that sequences in odd slots keep.
constexpr int32_t kDecodeWindow = 8;

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

  // Runs a step of a cycle of eight. In the first three, sequences begin,
  // compute a chunk of a prompt, or end. In the others they only decode: all,
  // then all but one. In the last, all that are long enough are compressed.
  void Step(int32_t step) {
    const bool is_calm = step % 8 > 2;
    const int32_t paused_slot = step % 8 > 4 ? step / 8 % kDecodeSlots : -1;
    evicts_ = step % 8 == 7;
    for (int32_t slot = 0; slot < kDecodeSlots; ++slot) {
      if (slot == paused_slot) continue;
      Sequence& sequence = sequences_[static_cast<size_t>(slot)];
      if (sequence.is_running && !is_calm && Draw(6) == 0) {
        engine_->Release(slot);
        sequence = Sequence();
      } else if (sequence.is_running) {
        Compute(slot, is_calm, &sequence);
      } else if (!is_calm && Draw(2) == 0) {
        sequence = {.is_running = true, .left = 1 + Draw(50)};
        engine_->Start(slot,
                       RandomTokens(sequence.left, kDecodeVocabulary, &random_),
                       slot % 2 == 0 ? 0 : kDecodeWindow);
        Compute(slot, is_calm, &sequence);
      }
    }
    ASSERT_OK(engine_->Run());
    for (const EvictionOutcome& outcome : engine_->result().evictions) {
      ASSERT_TRUE(outcome.ok) << outcome.error;
    }
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
    const int32_t cut = (sequence->computed - 1) / 16 * 16;
    if (!evicts_ || cut < sequence->cut + 16) return;
    sequence->cut = cut;
    engine_->Evict(slot, cut,
                   slot % 2 == 0 ? "knorm | adakv" : "snapkv(window=8) | adakv",
                   Keep("0.5"), DestinationKind::kFresh);
  }

  const std::unique_ptr<EngineHarness> engine_;
  std::mt19937_64 random_;
  bool evicts_ = false;  // in this step
  std::vector<Sequence> sequences_ = std::vector<Sequence>(kDecodeSlots);
};

// Kernel, windows of layers, shards.
using Case = std::tuple<Decode, std::vector<int32_t>, int32_t>;

class TinyDecodeTest : public DeviceTest {};
class TinyDecodeKernelTest : public DeviceTest,
                             public testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(Kernels, TinyDecodeKernelTest,
                         testing::Values(Case(Decode::kChunked, {0, 0}, 1),
                                         Case(Decode::kInvariant, {0, 32}, 2),
                                         Case(Decode::kBalanced, {0, 0}, 1)));

// The greatest difference of a logit.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double one = std::abs(double{a[i]} - double{b[i]});
    if (std::isnan(one)) return HUGE_VAL;
    difference = std::max(difference, one);
  }
  return difference;
}

// Expects equal scores, also where queries were left on the device.
void ExpectSameScores(const EngineHarness& eager, const EngineHarness& graphs,
                      double limit) {
  ASSERT_EQ(eager.evictions().size(), graphs.evictions().size());
  int32_t num_observed = 0;
  for (size_t i = 0; i < eager.evictions().size(); ++i) {
    const EngineHarness::Eviction& one = eager.evictions()[i];
    if (one.order.policy.query_window() > 0) ++num_observed;
    std::vector<float> expected = one.scores;
    std::vector<float> got = graphs.evictions()[i].scores;
    // Entries that are always kept have infinite scores.
    std::ranges::replace(expected, INFINITY, 0.0f);
    std::ranges::replace(got, INFINITY, 0.0f);
    EXPECT_LE(Difference(expected, got), limit);
  }
  EXPECT_GT(num_observed, 0) << eager.evictions().size();
}

// Lists grow by tokens and shrink by evictions, sequences come and go, and
// prompts between decode steps use the same buffers.
TEST_P(TinyDecodeKernelTest, AReplayedStepIsTheStep) {
  const auto& [decode, windows, num_shards] = GetParam();
  const auto model = SmallDeviceModel(num_shards, windows);
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
      eager.Step(step);
      graphs.Step(step);
      for (int32_t slot = 0; slot < kDecodeSlots; ++slot) {
        ASSERT_LE(Difference(eager.engine().logits(slot),
                             graphs.engine().logits(slot)),
                  is_exact ? 0.0 : 1e-2);
        is_equal &= eager.engine().tokens(slot) == graphs.engine().tokens(slot);
      }
    }
    // If bits may differ, another token that is as likely may have been drawn.
    EXPECT_TRUE(is_equal || !is_exact);
    if (!is_equal) continue;
    ExpectSameScores(eager.engine(), graphs.engine(), is_exact ? 0.0 : 1e-2);
    const DeviceGraphs& captured = graphs.engine().engine().graphs();
    EXPECT_OK(captured.error());
    EXPECT_GT(captured.num_captures(), 1);
    EXPECT_GT(captured.num_replays(), 8);
    EXPECT_EQ(eager.engine().engine().graphs().num_replays(), 0);
  }
}

// Tables have room for 16 pages at first. A longer list comes to a batch of as
// many rows.
TEST_F(TinyDecodeTest, ListsGrowOutOfTheirRoom) {
  const auto model = SmallDeviceModel(1, {0, 0});
  const bool is_exact = !MakeTestRuntime(1)->UseProductLibrary().ok();
  const auto eager = MakeEngine(model, Decode::kInvariant, 1, false);
  const auto graphs = MakeEngine(model, Decode::kInvariant, 1, true);
  for (int32_t step = 0; step < 10; ++step) {
    SCOPED_TRACE(step);
    const int32_t num_slots = step < 5 ? 3 : 4;
    for (EngineHarness* engine : {eager.get(), graphs.get()}) {
      std::mt19937_64 random(5);
      for (int32_t slot = 0; slot < num_slots; ++slot) {
        const int32_t length = slot < 3 ? 40 : 270;
        const bool starts = step == (slot < 3 ? 0 : 5);
        if (starts) {
          engine->Start(slot, RandomTokens(length, kDecodeVocabulary, &random),
                        0);
        }
        engine->Schedule(slot, starts ? length : 1);
      }
      ASSERT_OK(engine->Run());
    }
    for (int32_t slot = 0; slot < num_slots; ++slot) {
      ASSERT_LE(Difference(eager->logits(slot), graphs->logits(slot)),
                is_exact ? 0.0 : 1e-2);
    }
  }
  EXPECT_GT(graphs->engine().graphs().num_captures(), 1);
}

}  // namespace
}  // namespace blockmgr
