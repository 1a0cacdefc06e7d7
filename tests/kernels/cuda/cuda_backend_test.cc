// CudaBackend against CpuBackend: the same calls to both.
#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "kernels/backend.h"
#include "tests/kernels/cuda/device_cases.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

using Decode = CudaBackendOptions::Decode;

class CudaBackendTest : public DeviceTest {};

std::string Difference(const Backend& device, const Backend& cpu) {
  const ModelLayout& layout = cpu.layout();
  std::vector<float> got(2 * layout.head_dim);
  std::vector<float> want(2 * layout.head_dim);
  for (SlotIndex slot = 0; slot < layout.num_pages() * layout.page_size;
       ++slot) {
    device.ReadSlot(slot, got);
    cpu.ReadSlot(slot, want);
    if (std::memcmp(got.data(), want.data(), got.size() * 4) != 0) {
      return absl::StrCat("slot ", slot);
    }
  }
  return "";
}

std::vector<SlotMove> DrawMoves(const ModelLayout& layout, Rng& rng) {
  std::vector<SlotIndex> slots(layout.num_pages() * layout.page_size);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = static_cast<SlotIndex>(i);
  }
  Shuffle(&slots, rng);
  std::vector<SlotMove> moves;
  const std::size_t count = RandomInt(rng, 0, 60);
  for (std::size_t i = 0; i + 1 < slots.size() && moves.size() < count;
       i += 2) {
    moves.push_back({.source = slots[i], .destination = slots[i + 1]});
  }
  return moves;
}

TEST_F(CudaBackendTest, RowsEqualTheCpus) {
  for (uint64_t seed = 0; seed < NumCases(6); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const ModelLayout layout = DeviceLayout(rng, seed, 5);
    auto cpu = CreateCpuBackend(layout);
    ASSERT_TRUE(cpu.ok());
    const auto device = MakeDeviceBackend(layout, seed);
    for (Backend* backend : {cpu->get(), static_cast<Backend*>(device.get())}) {
      Rng same = rng;
      backend->Poison();
      for (int32_t round = 0; round < 3; ++round) {
        std::vector<int64_t> slots(5 * layout.page_size);
        for (std::size_t i = 0; i < slots.size(); ++i) {
          slots[i] = static_cast<int64_t>(i);
        }
        Shuffle(&slots, same);
        slots.resize(RandomInt(same, 1, 40));
        for (int64_t& slot : slots) {
          if (RandomInt(same, 0, 5) == 0) slot = -1;
        }
        const int64_t size =
            std::ssize(slots) * layout.num_heads * layout.head_dim;
        std::vector<float> keys = RandomFloats(same, size);
        // Every kind of NaN, subnormals and what overflows.
        for (std::size_t i = 0; i < keys.size(); i += 3) {
          const auto bits = static_cast<uint32_t>(same());
          keys[i] =
              std::bit_cast<float>(i % 2 == 0 ? bits | 0x7F800000u : bits);
        }
        const std::vector<float> values = RandomFloats(same, size);
        backend->Append({.layer = RandomInt(same, 0, layout.num_layers - 1),
                         .slot_mapping = slots,
                         .keys = keys.data(),
                         .values = values.data()});
        CompactionMoves moves;
        moves.phase1 = DrawMoves(layout, same);
        moves.phase2 = DrawMoves(layout, same);
        backend->Move(moves);
        const std::vector<BlockCopy> copies = {{BlockId{1}, BlockId{4}},
                                               {BlockId{2}, BlockId{3}}};
        backend->CopyBlocks(std::span(copies).first(round));
      }
    }
    ASSERT_TRUE(device->Flush().ok());
    EXPECT_EQ(Difference(*device, **cpu), "");
  }
}

// A batch of sequences in one layer, and their queries.
struct Batch {
  int32_t layer = 0;
  std::vector<TestSequence> sequences;
  std::vector<SequenceKv> views;
  std::vector<int32_t> offsets = {0};
  std::vector<float> queries;
  int32_t window = 0;

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
                       .window = window});
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

TEST_F(CudaBackendTest, AttentionEqualsTheCpus) {
  const int32_t length = 40 * TestLengthFactor();
  for (uint64_t seed = 0; seed < NumCases(15); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    AttentionSetup test(seed, length);
    // Decodes, one without a region, chunks, and one that does nothing.
    const int32_t chunk = RandomInt(test.rng, 2, 20);
    test.Add(length, RandomInt(test.rng, 1, length), 1);
    if (seed % 3 != 1) test.Add(length, chunk + 3, chunk);
    test.Add(0, RandomInt(test.rng, 1, length), 1);
    test.Add(length, 3, 0);
    if (seed % 3 != 2) test.Add(0, chunk, chunk);
    const auto cpu = test.model.MakeBackend();
    // Head sizes go by seed % 3: every mode meets every size.
    const auto device =
        test.MakeDevice(static_cast<Decode>((seed + seed / 3) % 3));
    const std::vector<float> want = test.batch.Run(*cpu);
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

TEST_F(CudaBackendTest, AttentionUnderAWindowEqualsTheCpus) {
  const int32_t length = 200 * TestLengthFactor();
  for (uint64_t seed = 0; seed < NumCases(9); ++seed) {
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
    for (const Decode decode :
         {Decode::kInvariant, Decode::kBalanced, Decode::kChunked}) {
      const auto device = test.MakeDevice(decode);
      EXPECT_LE(RelativeError(test.batch.Run(*device), want),
                Tolerance(test.layout.dtype));
    }
  }
}

TEST_F(CudaBackendTest, AttentionOverRegionsUnderAWindowEqualsTheCpus) {
  const int32_t length = 100 * TestLengthFactor();
  for (uint64_t seed = 0; seed < NumCases(9); ++seed) {
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
    const auto cpu = test.model.MakeBackend();
    const std::vector<float> want = test.batch.Run(*cpu);
    for (const Decode decode :
         {Decode::kInvariant, Decode::kBalanced, Decode::kChunked}) {
      const auto device = test.MakeDevice(decode);
      EXPECT_LE(RelativeError(test.batch.Run(*device), want),
                Tolerance(test.layout.dtype));
    }
  }
}

TEST_F(CudaBackendTest, OneHugeHeadEqualsTheCpus) {
  AttentionSetup test(1, 900);
  TestSequence sequence =
      test.picker.MakeSequence(test.batch.layer, 1, 5, &test.model, test.rng);
  sequence.region_pages.clear();
  sequence.region_offsets = {0};
  sequence.region_lengths.clear();
  // The first head has all pages of some blocks, the others none.
  for (int32_t head = 0; head < test.layout.num_heads; ++head) {
    for (int32_t i = 0; head == 0 && i < 20; ++i) {
      sequence.region_pages.push_back(test.layout.page_id(
          test.batch.layer, BlockId{i + 1}, i % test.layout.num_heads));
    }
    sequence.region_offsets.push_back(
        static_cast<int32_t>(sequence.region_pages.size()));
    sequence.region_lengths.push_back(head == 0 ? 20 * test.layout.page_size - 3
                                                : 0);
  }
  for (int32_t head = 0; head < test.layout.num_heads; ++head) {
    for (const SlotIndex slot : sequence.Slots(test.layout, head)) {
      test.model.FillRandom(slot, test.rng);
    }
  }
  test.batch.Add(
      sequence, 1,
      RoundedFloats(test.rng, test.layout.dtype, test.token_floats()));
  const auto cpu = test.model.MakeBackend();
  const std::vector<float> want = test.batch.Run(*cpu);
  for (const Decode decode :
       {Decode::kInvariant, Decode::kBalanced, Decode::kChunked}) {
    const auto device = test.MakeDevice(decode);
    EXPECT_LE(RelativeError(test.batch.Run(*device), want),
              Tolerance(test.layout.dtype));
  }
}

TEST_F(CudaBackendTest, InvariantDecodeDoesNotDependOnTheBatch) {
  AttentionSetup test(4, 700);
  for (int32_t i = 0; i < 3; ++i) test.Add(600, 100 * i + 7, 1);
  const auto device = test.MakeDevice(Decode::kInvariant);
  const std::vector<float> together = test.batch.Run(*device);
  for (int32_t i = 0; i < 3; ++i) {
    const auto query =
        std::span(test.batch.queries)
            .subspan(i * test.token_floats(), test.token_floats());
    Batch alone;
    alone.layer = test.batch.layer;
    alone.Add(test.batch.sequences[i], 1, query);
    const std::vector<float> output = alone.Run(*device);
    EXPECT_EQ(
        std::memcmp(output.data(), together.data() + i * test.token_floats(),
                    output.size() * sizeof(float)),
        0)
        << "sequence " << i;
  }
}

// Over a region, and under a window.
class ChunkedDecodeTest : public DeviceTest,
                          public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Windows, ChunkedDecodeTest, testing::Bool());

TEST_P(ChunkedDecodeTest, DoesNotDependOnTheSplit) {
  const bool has_window = GetParam();
  AttentionSetup test(7, 300);
  const int32_t tail = has_window ? 250 : 9;
  test.Add(has_window ? 0 : 90, tail, 9);
  test.batch.window = has_window ? 70 : 0;
  const auto device = test.MakeDevice(Decode::kChunked);
  const std::vector<float> together = test.batch.Run(*device);
  for (int32_t j = 0; j < 9; ++j) {
    Batch alone;
    alone.layer = test.batch.layer;
    alone.window = test.batch.window;
    TestSequence sequence = test.batch.sequences[0];
    sequence.tail_length = tail - 9 + j + 1;
    alone.Add(sequence, 1,
              std::span(test.batch.queries)
                  .subspan(j * test.token_floats(), test.token_floats()));
    const std::vector<float> output = alone.Run(*device);
    EXPECT_EQ(
        std::memcmp(output.data(), together.data() + j * test.token_floats(),
                    output.size() * sizeof(float)),
        0)
        << "token " << j;
  }
}

TEST_F(CudaBackendTest, SteadyStepsAllocateNothing) {
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

TEST_F(CudaBackendTest, IdsOutsideThePoolAreReportedAndWriteNothing) {
  Rng rng(5);
  const ModelLayout layout = DeviceLayout(rng, 0, 4);
  PoolModel model(layout);
  model.FillAll(rng);
  const auto device = MakeDeviceBackend(layout, 5);
  model.CopyTo(device.get());
  ASSERT_TRUE(device->Flush().ok());
  const std::vector<float> rows =
      RandomFloats(rng, int64_t{2} * layout.num_heads * layout.head_dim);
  const std::vector<int64_t> slots = {-1, 4 * layout.page_size};
  device->Append({.layer = 0,
                  .slot_mapping = slots,
                  .keys = rows.data(),
                  .values = rows.data()});
  const absl::Status append = device->Flush();
  EXPECT_EQ(append.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(append.message(), "slots"));
  EXPECT_TRUE(device->Flush().ok());
  const std::vector<BlockCopy> copies = {{BlockId{1}, BlockId{4}}};
  device->CopyBlocks(copies);
  const absl::Status copy = device->Flush();
  EXPECT_EQ(copy.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(copy.message(), "blocks"));
  // The source alone is outside.
  const std::vector<BlockCopy> from_outside = {{BlockId{4}, BlockId{1}}};
  device->CopyBlocks(from_outside);
  EXPECT_TRUE(absl::StrContains(device->Flush().message(), "blocks"));
  device->Move({.phase1 = {{.source = 0, .destination = -1}}, .phase2 = {}});
  EXPECT_FALSE(device->Flush().ok());
  EXPECT_TRUE(model.Matches(*device));
}

TEST_F(CudaBackendTest, RefusesLayoutsWithoutKernels) {
  const auto refusal = [](auto change) {
    ModelLayout layout{.num_layers = 1,
                       .num_heads = 1,
                       .num_q_heads = 1,
                       .head_dim = 64,
                       .num_blocks = 2};
    change(layout);
    return CudaBackend::Create(layout, {}, MakeTestRuntime(0))
        .status()
        .ToString();
  };
  EXPECT_EQ(refusal([](ModelLayout&) {}), "OK");
  EXPECT_EQ(refusal([](ModelLayout& l) { l.dtype = DType::kFloat16; }), "OK");
  EXPECT_TRUE(absl::StrContains(
      refusal([](ModelLayout& l) { l.dtype = DType::kFloat32; }), "dtype"));
  EXPECT_TRUE(absl::StrContains(
      refusal([](ModelLayout& l) { l.head_dim = 96; }), "head_dim"));
  EXPECT_TRUE(absl::StrContains(
      refusal([](ModelLayout& l) { l.page_size = 8; }), "page_size"));
  EXPECT_TRUE(absl::StrContains(
      refusal([](ModelLayout& l) { l.num_q_heads = 17; }), "num_q_heads"));
  EXPECT_TRUE(
      absl::StrContains(refusal([](ModelLayout& l) { l.num_blocks = 1 << 30; }),
                        "RESOURCE_EXHAUSTED"));
}

TEST_F(CudaBackendTest, SaysWhatItDoesNotSupport) {
  const auto supports = [](absl::string_view text) {
    const auto policy = ParsePolicy(text);
    EXPECT_TRUE(policy.ok()) << text;
    return CudaBackend::Supports(*policy).code();
  };
  for (const absl::string_view text :
       {"snapkv", "h2o", "keydiff", "keydiff(anchor=pairwise)", "knorm",
        "streaming", "random", "external", "snapkv | adakv | critical"}) {
    EXPECT_EQ(supports(text), absl::StatusCode::kOk) << text;
  }
  for (const absl::string_view text :
       {"tova", "expected_attention", "keydiff(anchor=median)",
        "snapkv | round(token) | parity(kvpress)"}) {
    EXPECT_EQ(supports(text), absl::StatusCode::kUnimplemented) << text;
  }
}

TEST_F(CudaBackendTest, AbortsOnWhatHasNoKernel) {
  Rng rng(5);
  const auto device = MakeDeviceBackend(DeviceLayout(rng, 0, 4), 5);
  EXPECT_DEATH(device->AddQueries(nullptr, 0, nullptr), "expected_attention");
}

}  // namespace
}  // namespace blockmgr
