// Graphs of steps, on the emulator.
#include "engine/reference/device_graphs.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"
#include "engine/reference/device_forward.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/engine/reference/engine_harness.h"
#include "tests/engine/reference/test_util.h"
#include "tests/kernels/cuda/emulated_runtime.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using Counts = EmulatedRuntime::Counts;

constexpr int64_t kBytes = 64;
constexpr int64_t kMaxBytes = int64_t{1} << 27;

// Steps that fill memory on the device.
class DeviceGraphsTest : public testing::Test {
 protected:
  ~DeviceGraphsTest() override { runtime_.Free(memory_); }

  // Runs a step with these arguments, in which the memory is filled with
  // `byte`. Returns what it then has.
  uint8_t Run(const std::vector<uint64_t>& arguments, uint8_t byte) {
    runtime_.Fill(memory_, 0, kBytes);
    graphs_.Run(arguments, [&] { runtime_.Fill(memory_, byte, kBytes); });
    std::vector<std::byte> bytes(kBytes);
    runtime_.Download(bytes, memory_);
    return static_cast<uint8_t>(bytes.back());
  }

  EmulatedRuntime runtime_ = EmulatedRuntime(1, kMaxBytes);
  char* memory_ = *runtime_.Allocate(kBytes);
  DeviceGraphs graphs_ = DeviceGraphs(&runtime_);
};

TEST_F(DeviceGraphsTest, TheSecondStepIsCaptured) {
  for (int32_t step = 0; step < 4; ++step) {
    EXPECT_EQ(Run({8, 1}, 5), 5);
    EXPECT_EQ(graphs_.num_captures(), step > 0 ? 1 : 0);
    EXPECT_EQ(graphs_.num_replays(), step);
  }
  // A step of 8 rows has run before, one of 16 rows has not.
  EXPECT_EQ(Run({8, 2}, 6), 6);
  EXPECT_EQ(graphs_.num_captures(), 2);
  EXPECT_EQ(Run({16, 2}, 7), 7);
  EXPECT_EQ(graphs_.num_captures(), 2);
  // The first graph is still there.
  EXPECT_EQ(Run({8, 1}, 5), 5);
  EXPECT_EQ(graphs_.num_captures(), 2);
}

// A caller that leaves an argument out of `arguments` gets what was captured.
TEST_F(DeviceGraphsTest, AReplayHasTheArgumentsOfTheCapture) {
  EXPECT_EQ(Run({8}, 5), 5);
  EXPECT_EQ(Run({8}, 5), 5);
  EXPECT_EQ(Run({8}, 6), 5);
}

TEST_F(DeviceGraphsTest, AReplayAfterItsMemoryWasFreedFails) {
  char* freed = *runtime_.Allocate(kBytes);
  char* other = *runtime_.Allocate(kBytes);
  const auto run = [&] {
    graphs_.Run({8}, [&] { runtime_.Fill(freed, 1, kBytes); });
  };
  run();
  run();
  runtime_.Free(other);
  run();
  EXPECT_OK(runtime_.status());
  runtime_.Free(freed);
  run();
  EXPECT_EQ(runtime_.TakeStatus().code(), absl::StatusCode::kInternal);
}

TEST_F(DeviceGraphsTest, AFailedCaptureLosesNothing) {
  EXPECT_EQ(Run({8}, 5), 5);
  runtime_.FailCaptures(1);
  EXPECT_EQ(Run({8}, 6), 6);
  EXPECT_EQ(graphs_.error().code(), absl::StatusCode::kInternal);
  EXPECT_OK(runtime_.status());
  const Counts before = runtime_.counts();
  EXPECT_EQ(Run({8}, 7), 7);
  EXPECT_EQ((runtime_.counts() - before).captures, 0);
  EXPECT_EQ(graphs_.num_replays(), 0);
  EXPECT_EQ(graphs_.PadRows(9), 9);
}

// A replay could not upload the bytes of another step.
TEST_F(DeviceGraphsTest, AnUploadIsNotCaptured) {
  const std::vector<std::byte> bytes(kBytes, std::byte{9});
  for (int32_t step = 0; step < 3; ++step) {
    graphs_.Run({8}, [&] { runtime_.Upload(memory_, bytes); });
  }
  EXPECT_EQ(graphs_.error().code(), absl::StatusCode::kFailedPrecondition);
  std::vector<std::byte> got(kBytes);
  runtime_.Download(got, memory_);
  EXPECT_EQ(got, bytes);
  EXPECT_OK(runtime_.status());
}

TEST_F(DeviceGraphsTest, KeepsSoManyGraphsAtMost) {
  for (uint64_t i = 0; i <= DeviceGraphs::kMaxGraphs + 1; ++i) {
    EXPECT_EQ(Run({8, i}, 5), 5);
  }
  const int64_t num_captures = graphs_.num_captures();
  EXPECT_EQ(num_captures, int64_t{DeviceGraphs::kMaxGraphs} + 1);
  EXPECT_EQ(Run({8, 1}, 5), 5);
  EXPECT_EQ(graphs_.num_captures(), num_captures + 1);
}

TEST_F(DeviceGraphsTest, PadsToFewNumbersOfRows) {
  for (const auto& [num_rows, padded] : {std::pair(1, 1),
                                         {2, 2},
                                         {3, 4},
                                         {4, 4},
                                         {5, 8},
                                         {8, 8},
                                         {9, 16},
                                         {249, 256},
                                         {256, 256},
                                         {257, 257}}) {
    EXPECT_EQ(graphs_.PadRows(num_rows), padded);
    EXPECT_EQ(DeviceGraphs(nullptr).PadRows(num_rows), num_rows);
  }
  // More are never captured.
  EXPECT_EQ(Run({257}, 1), 1);
  EXPECT_EQ(Run({257}, 2), 2);
  EXPECT_EQ(graphs_.num_captures(), 0);
}

// Whatever memory of the forward pass moves between two decode steps, no graph
// is replayed that uses the old one, which the emulator would refuse.
TEST(DecodeArgumentsTest, SayWhereTheMemoryOfThePassIs) {
  const auto model = RandomModel(ModelShape{.num_layers = 1,
                                            .num_q_heads = 1,
                                            .num_heads = 1,
                                            .head_dim = 64,
                                            .hidden = 64,
                                            .mlp = 64,
                                            .vocabulary = 64},
                                 7);
  EmulatedRuntime runtime(1, kMaxBytes);
  auto forward = DeviceForward::Create(
      model.get(), MakeLayout(model->shape(), 16, DType::kFloat16, 64),
      &runtime);
  ASSERT_OK(forward.status());
  DeviceGraphs graphs(&runtime);
  const auto decode = [&](int32_t num_rows) {
    const std::vector<int32_t> tokens(static_cast<size_t>(num_rows), 1);
    std::vector<uint64_t> arguments;
    ASSERT_OK((*forward)->PrepareDecode(tokens, tokens, num_rows, &arguments));
    graphs.Run(arguments, [&] {
      (*forward)->BeginDecode();
      (*forward)->Project(0);
      (*forward)->FinishDecode();
    });
    ASSERT_OK(runtime.status());
  };
  const auto decode_twice = [&] {
    decode(2);
    decode(2);
  };
  decode_twice();
  EXPECT_EQ(graphs.num_replays(), 1);
  // More rows than there is room for at first.
  const std::vector<int32_t> prompt(2500, 1);
  (*forward)->Begin(prompt, prompt);
  decode_twice();
  // More logits.
  (*forward)->Begin(std::vector<int32_t>(40, 1), std::vector<int32_t>(40, 1));
  std::vector<size_t> rows(40);
  std::iota(rows.begin(), rows.end(), size_t{0});
  (*forward)->ComputeLogits(rows);
  decode_twice();
  // More queries.
  decode(64);
  decode_twice();
  EXPECT_EQ(graphs.num_captures(), 4);
}

// An engine whose calls of the runtime are counted.
class CountedEngine {
 public:
  static constexpr int32_t kSlots = 5;

  CountedEngine(int32_t num_layers, bool captures_graphs,
                int32_t query_window = 0,
                ScorerState state = ScorerState::kNone) {
    const auto model = SmallDeviceModel(
        1, std::vector<int32_t>(static_cast<size_t>(num_layers)));
    runtime_ = std::make_shared<EmulatedRuntime>(1, kMaxBytes);
    std::vector<std::unique_ptr<Backend>> backends;
    auto backend = CudaBackend::Create(
        MakeLayout(model->shape(), 16, DType::kFloat16, 64),
        {.decode = CudaBackendOptions::Decode::kChunked}, runtime_);
    EXPECT_OK(backend.status());
    backends.push_back(*std::move(backend));
    engine_ = std::make_unique<EngineHarness>(model, std::move(backends), 0,
                                              captures_graphs);
    engine_->engine().set_observer({});
    std::mt19937_64 random(3);
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      engine_->Start(slot, RandomTokens(5 + slot, 64, &random), query_window);
      engine_->Schedule(slot, 5 + slot);
      engine_->plan().starts.back().scorer_state = state;
    }
    EXPECT_OK(engine_->Run());
  }

  // Returns what a decode step of all sequences asks of the runtime.
  Counts Decode() {
    const Counts before = runtime_->counts();
    for (int32_t slot = 0; slot < kSlots; ++slot) engine_->Schedule(slot, 1);
    EXPECT_OK(engine_->Run());
    return runtime_->counts() - before;
  }

  EmulatedRuntime& runtime() { return *runtime_; }
  EngineHarness& engine() { return *engine_; }

 private:
  std::shared_ptr<EmulatedRuntime> runtime_;
  std::unique_ptr<EngineHarness> engine_;
};

// Ten kernels in a layer, and the embedding, its norm, the last norm, the
// logits and the draw of tokens.
int64_t CountKernels(int64_t num_layers) { return 10 * num_layers + 5; }

TEST(DecodeCountsTest, AStepIsAGraphAndADraw) {
  constexpr int32_t kLayers = 3;
  CountedEngine counted(kLayers, true);
  for (int32_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    const Counts got = counted.Decode();
    EXPECT_EQ(got.kernels, CountKernels(kLayers));
    EXPECT_EQ(got.launches, step == 0 ? CountKernels(kLayers) : 1);
    EXPECT_EQ(got.graphs, step == 0 ? 0 : 1);
    EXPECT_EQ(got.captures, step == 1 ? 1 : 0);
    // Inputs of the rows, tables of all layers, and draws.
    EXPECT_EQ(got.uploads, 3);
    // The draws, and before the first step more room for logits.
    EXPECT_EQ(got.waits, step == 0 ? 2 : 1);
  }
  // The first step and the captured step are not counted.
  EXPECT_EQ(counted.engine().engine().step_times().sums().at(8).num_steps, 1);
}

TEST(DecodeCountsTest, WithoutGraphsTablesOfAllLayersAreUploadedTogether) {
  constexpr int32_t kLayers = 3;
  CountedEngine counted(kLayers, false);
  for (int32_t step = 0; step < 3; ++step) {
    const Counts got = counted.Decode();
    EXPECT_EQ(got.launches, CountKernels(kLayers));
    EXPECT_EQ(got.uploads, 3);
    EXPECT_EQ(got.waits, 1);
  }
}

// Queries that scores may need stay on the device.
TEST(DecodeCountsTest, AStepThatKeepsQueriesCopiesThemOnce) {
  constexpr int32_t kLayers = 3;
  CountedEngine counted(kLayers, true, 4);
  for (int32_t step = 0; step < 12; ++step) {
    SCOPED_TRACE(step);
    const Counts got = counted.Decode();
    EXPECT_EQ(got.graphs, step == 0 ? 0 : 1);
    EXPECT_EQ(got.uploads, 3);
    EXPECT_EQ(got.copies, 1);
    EXPECT_EQ(got.waits, step == 0 ? 2 : 1);
  }
}

// Sums over all queries are the host's, layer by layer.
TEST(DecodeCountsTest, AStepThatSumsQueriesUpIsNotCaptured) {
  constexpr int32_t kLayers = 3;
  CountedEngine counted(kLayers, true, 0, ScorerState::kAttentionSums);
  for (int32_t step = 0; step < 3; ++step) {
    const Counts got = counted.Decode();
    EXPECT_EQ(got.graphs, 0);
    EXPECT_GT(got.launches, CountKernels(kLayers));
    EXPECT_GT(got.waits, kLayers);
  }
}

// The history of queries asks for memory in every step until it is whole.
TEST(DecodeMemoryTest, AFullDeviceComputesLayerByLayerFromThenOn) {
  constexpr int32_t kLayers = 2;
  constexpr int32_t kWindow = 4;
  CountedEngine roomy(kLayers, true, kWindow);
  CountedEngine full(kLayers, true, kWindow);
  int64_t num_allocations = 0;
  for (int32_t step = 0; step < 8; ++step) {
    SCOPED_TRACE(step);
    if (step == 2) full.runtime().FailAllocations(1);
    roomy.Decode();
    EXPECT_EQ(full.Decode().graphs, step == 1 ? 1 : 0);
    for (int32_t slot = 0; slot < CountedEngine::kSlots; ++slot) {
      EXPECT_EQ(full.engine().tokens(slot), roomy.engine().tokens(slot));
      EXPECT_EQ(full.engine().logits(slot), roomy.engine().logits(slot));
    }
    const absl::Status& error = full.engine().engine().decode_error();
    EXPECT_EQ(absl::IsResourceExhausted(error), step >= 2) << error;
    // The engine does not ask for memory again.
    if (step > 2) {
      EXPECT_EQ(full.runtime().num_allocations(), num_allocations);
    }
    num_allocations = full.runtime().num_allocations();
  }
  full.engine().engine().Reset();
  EXPECT_OK(full.engine().engine().decode_error());
}

}  // namespace
}  // namespace blockmgr
