// Attention of CudaBackend against that of CpuBackend.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/kernels/cuda/host/device_cases.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

using Decode = CudaBackendOptions::Decode;

class CudaBackendAttentionTest : public DeviceTest {};

// A batch of sequences in one layer, and their queries.
struct Batch {
  int32_t layer = 0;
  std::vector<TestSequence> sequences;
  std::vector<SequenceKv> views;
  std::vector<int32_t> offsets = {0};
  std::vector<float> queries;
  int32_t window = 0;
  std::vector<float> sinks;

  void Add(TestSequence sequence, int32_t num_queries,
           std::span<const float> rows) {
    sequences.push_back(std::move(sequence));
    offsets.push_back(offsets.back() + num_queries);
    queries.insert(queries.end(), rows.begin(), rows.end());
  }
  std::vector<float> Run(Backend& backend) {
    views.clear();
    for (const TestSequence& sequence : sequences) {
      views.push_back(sequence.View());
    }
    std::vector<float> output(queries.size(), NAN);
    backend.Attention({.layer = layer,
                       .sequences = views,
                       .query_offsets = offsets,
                       .queries = queries.data(),
                       .output = output.data(),
                       .scale = 0.125f,
                       .window = window,
                       .sinks = sinks.empty() ? nullptr : sinks.data()});
    return output;
  }
};

struct AttentionSetup {
  AttentionSetup(uint64_t seed, int32_t length)
      : rng(seed),
        // Room for five sequences with regions and tails of this length.
        layout(DeviceLayout(rng, seed, 12 * (length / 16 + 1) + 8)),
        model(layout),
        picker(layout, 6 * (length / 16 + 1), rng) {
    batch.layer = RandomInt(rng, 0, layout.num_layers - 1);
  }

  void Add(int32_t max_region, int32_t tail_length, int32_t num_queries) {
    TestSequence sequence =
        picker.MakeSequence(batch.layer, max_region, tail_length, &model, rng);
    batch.Add(std::move(sequence), num_queries,
              RoundedFloats(rng, layout.dtype,
                            int64_t{num_queries} * token_floats()));
  }
  int64_t token_floats() const {
    return int64_t{layout.num_q_heads} * layout.head_dim;
  }
  std::unique_ptr<CudaBackend> MakeDevice(Decode decode) const {
    auto device = MakeDeviceBackend(layout, 3, {.decode = decode});
    model.CopyTo(device.get());
    return device;
  }

  Rng rng;
  ModelLayout layout;
  PoolModel model;
  PagePicker picker;
  Batch batch;
};

void ExpectWhatTheCpuComputes(AttentionSetup& test) {
  const auto cpu = test.model.MakeBackend();
  const std::vector<float> want = test.batch.Run(*cpu);
  for (const Decode decode :
       {Decode::kInvariant, Decode::kBalanced, Decode::kChunked}) {
    const auto device = test.MakeDevice(decode);
    EXPECT_LE(RelativeError(test.batch.Run(*device), want),
              Tolerance(test.layout.dtype));
  }
}

TEST_F(CudaBackendAttentionTest, AttentionEqualsTheCpus) {
  const int32_t length = 40 * TestLengthFactor();
  for (uint64_t seed = 0; seed < CountDeviceCases(15); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    AttentionSetup test(seed, length);
    // Decodes, one without a region, chunks, and one that does nothing.
    const int32_t chunk = RandomInt(test.rng, 2, 20);
    if (seed % 2 == 1) {
      test.batch.sinks = RandomFloats(test.rng, test.layout.num_q_heads);
    }
    test.Add(length, RandomInt(test.rng, 1, length), 1);
    if (seed % 3 != 1) test.Add(length, chunk + 3, chunk);
    test.Add(0, RandomInt(test.rng, 1, length), 1);
    test.Add(length, 3, 0);
    if (seed % 3 != 2) test.Add(0, chunk, chunk);
    // Head sizes go by seed % 3: every mode meets every size.
    const auto device =
        test.MakeDevice(static_cast<Decode>((seed + seed / 3) % 3));
    const std::vector<float> want = test.batch.Run(*test.model.MakeBackend());
    const std::vector<float> got = test.batch.Run(*device);
    const double tolerance = Tolerance(test.layout.dtype);
    EXPECT_LE(RelativeError(got, want), tolerance);
    const int64_t row_size = test.layout.head_dim;
    for (std::size_t i = 0; i < want.size(); i += row_size) {
      ASSERT_LE(RelativeError(std::span(got).subspan(i, row_size),
                              std::span(want).subspan(i, row_size)),
                2.5 * tolerance)
          << "row " << i / row_size;
    }
  }
}

TEST_F(CudaBackendAttentionTest, AttentionUnderAWindowEqualsTheCpus) {
  const int32_t length = 200 * PoolLengthFactor();
  for (uint64_t seed = 0; seed < CountDeviceCases(9); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    AttentionSetup test(seed, length);
    test.batch.window = RandomInt(test.rng, 1, length);
    const int32_t chunk = RandomInt(test.rng, 2, 20);
    test.Add(0, length, 1);
    test.Add(0, RandomInt(test.rng, 1, length), 1);
    test.Add(0, RandomInt(test.rng, chunk, length), chunk);
    test.Add(0, chunk, chunk);
    const auto cpu = test.model.MakeBackend();
    const std::vector<float> want = test.batch.Run(*cpu);
    // What is before the window is not even an id.
    for (std::size_t s = 0; s < test.batch.sequences.size(); ++s) {
      TestSequence& sequence = test.batch.sequences[s];
      const int32_t num_queries =
          test.batch.offsets[s + 1] - test.batch.offsets[s];
      const int32_t first = std::max(
          0, sequence.tail_length - num_queries + 1 - test.batch.window);
      std::fill_n(sequence.tail_blocks.begin(), first / test.layout.page_size,
                  BlockId{1 << 30});
    }
    EXPECT_EQ(test.batch.Run(*cpu), want);
    ExpectWhatTheCpuComputes(test);
  }
}

TEST_F(CudaBackendAttentionTest,
       AttentionOverRegionsUnderAWindowEqualsTheCpus) {
  const int32_t length = 100 * PoolLengthFactor();
  for (uint64_t seed = 0; seed < CountDeviceCases(9); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    AttentionSetup test(seed, length);
    test.batch.window = RandomInt(test.rng, 1, 2 * length);
    const int32_t chunk = RandomInt(test.rng, 2, 20);
    test.Add(length, RandomInt(test.rng, 1, length), 1);
    test.Add(0, RandomInt(test.rng, 1, length), 1);
    test.Add(length, RandomInt(test.rng, chunk, length), chunk);
    test.Add(0, RandomInt(test.rng, chunk, length), chunk);
    for (TestSequence& sequence : test.batch.sequences) {
      if (sequence.region_offsets.empty()) continue;
      sequence.TakePositions(test.layout,
                             length + RandomInt(test.rng, 0, length), test.rng);
    }
    if (seed % 2 == 1) {
      test.batch.sinks = RandomFloats(test.rng, test.layout.num_q_heads);
    }
    ExpectWhatTheCpuComputes(test);
  }
}

// A call with one query alone, the `token`th of the batch, gives the bits that
// the query had in it.
void ExpectSameBitsAlone(const AttentionSetup& test, Backend& device,
                         const TestSequence& sequence, int64_t token,
                         std::span<const float> together) {
  const int64_t begin = token * test.token_floats();
  Batch alone;
  alone.layer = test.batch.layer;
  alone.window = test.batch.window;
  alone.Add(sequence, 1,
            std::span(test.batch.queries).subspan(begin, test.token_floats()));
  const std::vector<float> output = alone.Run(device);
  EXPECT_EQ(std::memcmp(output.data(), together.data() + begin,
                        output.size() * sizeof(float)),
            0)
      << "token " << token;
}

TEST_F(CudaBackendAttentionTest, InvariantDecodeDoesNotDependOnTheBatch) {
  AttentionSetup test(4, 700);
  for (int32_t i = 0; i < 3; ++i) test.Add(600, 100 * i + 7, 1);
  const auto device = test.MakeDevice(Decode::kInvariant);
  const std::vector<float> together = test.batch.Run(*device);
  for (int32_t i = 0; i < 3; ++i) {
    ExpectSameBitsAlone(test, *device, test.batch.sequences[i], i, together);
  }
}

// Over a region, and under a window.
TEST_F(CudaBackendAttentionTest, ChunkedDecodeDoesNotDependOnTheSplit) {
  for (const bool has_window : {false, true}) {
    SCOPED_TRACE(has_window);
    AttentionSetup test(7, 300);
    const int32_t tail = has_window ? 250 : 9;
    test.Add(has_window ? 0 : 90, tail, 9);
    test.batch.window = has_window ? 70 : 0;
    const auto device = test.MakeDevice(Decode::kChunked);
    const std::vector<float> together = test.batch.Run(*device);
    for (int32_t j = 0; j < 9; ++j) {
      TestSequence sequence = test.batch.sequences[0];
      sequence.tail_length = tail - 9 + j + 1;
      ExpectSameBitsAlone(test, *device, sequence, j, together);
    }
  }
}

TEST_F(CudaBackendAttentionTest, SteadyStepsAllocateNothing) {
  AttentionSetup test(2, 64);
  test.Add(64, 9, 1);
  test.Add(64, 30, 8);
  const auto device = test.MakeDevice(Decode::kInvariant);
  test.batch.Run(*device);
  const int64_t bytes = device->scratch_bytes();
  EXPECT_GT(bytes, 0);
  for (int32_t step = 0; step < 3; ++step) test.batch.Run(*device);
  EXPECT_EQ(device->scratch_bytes(), bytes);
}

}  // namespace
}  // namespace blockmgr
