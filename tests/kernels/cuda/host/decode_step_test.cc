// Steps of single queries against Append and Attention of the backend.
#include "kernels/cuda/host/decode_step.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "kernels/cuda/host/cuda_backend.h"
#include "tests/kernels/cuda/host/device_cases.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

using Decode = CudaBackendOptions::Decode;

// The elements of `rows` in the pool's type.
std::vector<uint16_t> Elements(std::span<const float> rows, DType dtype) {
  std::vector<uint16_t> elements(rows.size());
  std::ranges::transform(rows, elements.begin(),
                         dtype == DType::kFloat16 ? ToFloat16 : ToBFloat16);
  return elements;
}

// A step of sequences in one layer, with what its rows are computed from.
class StepCase {
 public:
  StepCase(uint64_t seed, int32_t length, bool has_regions)
      : rng_(seed),
        layout_(DeviceLayout(rng_, seed, 12 * (length / 16 + 1) + 8)),
        model_(layout_),
        picker_(layout_, 6 * (length / 16 + 1), rng_) {
    for (int32_t i = 0; i < kSequences; ++i) {
      sequences_.push_back(
          picker_.MakeSequence(0, has_regions && i != 1 ? length : 0,
                               RandomInt(rng_, 1, length), &model_, rng_));
      const TestSequence& sequence = sequences_.back();
      const SequenceKv view = sequence.View();
      const int32_t last = view.tail_length - 1;
      mapping_.push_back(
          int64_t{Index(view.tail_blocks[last / layout_.page_size])} *
              layout_.page_size +
          last % layout_.page_size);
    }
    queries_ = Elements(Floats(layout_.num_q_heads), layout_.dtype);
    keys_ = Elements(Floats(layout_.num_heads), layout_.dtype);
  }

  const ModelLayout& layout() const { return layout_; }

  std::unique_ptr<CudaBackend> MakeDevice(Decode decode) const {
    auto device = MakeDeviceBackend(layout_, 3, {.decode = decode});
    model_.CopyTo(device.get());
    return device;
  }

  // Computes the rows of the sequences, one call after another.
  std::vector<uint16_t> RunCalls(CudaBackend* device, int32_t window) {
    Rows rows(this, device);
    std::vector<SequenceKv> views = Views();
    std::vector<int32_t> offsets;
    for (int32_t i = 0; i <= kSequences; ++i) offsets.push_back(i);
    device->Append({.layer = 0,
                    .slot_mapping = mapping_,
                    .device_keys = rows.keys,
                    .device_values = rows.value_rows,
                    .device_token_stride = kv_bytes()});
    device->Attention({.layer = 0,
                       .sequences = views,
                       .query_offsets = offsets,
                       .scale = 0.125f,
                       .window = window,
                       .device_queries = rows.queries,
                       .device_output = rows.output});
    return rows.Output();
  }

  // Computes them as a step of kRows rows.
  std::vector<uint16_t> RunStep(CudaBackend* device, int32_t window) {
    Rows rows(this, device);
    const std::vector<SequenceKv> views = Views();
    DecodeStep& step = *device->decode_step();
    step.Begin(kRows);
    step.Add({.window = window,
              .scale = 0.125f,
              .slot_mapping = mapping_,
              .sequences = views});
    EXPECT_EQ(step.Send(), absl::OkStatus());
    step.Run(0, {.queries = rows.queries,
                 .keys = rows.keys,
                 .values = rows.value_rows,
                 .kv_stride = kv_bytes(),
                 .output = rows.output});
    return rows.Output();
  }

  static constexpr int32_t kSequences = 3;
  static constexpr int32_t kRows = 5;

 private:
  // The rows in device memory.
  struct Rows {
    Rows(StepCase* step, CudaBackend* device)
        : owner(*step), runtime(*device->device_runtime()) {
      queries = Upload(owner.queries_);
      keys = Upload(owner.keys_);
      std::vector<uint16_t> reversed(owner.keys_.rbegin(), owner.keys_.rend());
      value_rows = Upload(reversed);
      output = Upload(std::vector<uint16_t>(owner.queries_.size(), 0xFFFF));
    }
    ~Rows() {
      for (char* memory : {queries, keys, value_rows, output}) {
        runtime.Free(memory);
      }
    }
    char* Upload(const std::vector<uint16_t>& values) {
      const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
      char* const memory = *runtime.Allocate(std::ssize(bytes));
      runtime.Upload(memory, bytes);
      return memory;
    }
    // Returns the output of the sequences, without dead rows.
    std::vector<uint16_t> Output() {
      std::vector<uint16_t> values(owner.queries_.size() / kRows * kSequences);
      runtime.Download(std::as_writable_bytes(std::span(values)), output);
      EXPECT_EQ(runtime.status(), absl::OkStatus());
      return values;
    }

    StepCase& owner;
    DeviceRuntime& runtime;
    char* queries;
    char* keys;
    char* value_rows;  // not the keys
    char* output;
  };

  std::vector<float> Floats(int32_t num_heads) {
    return RandomFloats(rng_, int64_t{kRows} * num_heads * layout_.head_dim);
  }
  int64_t kv_bytes() const { return layout_.num_heads * layout_.row_bytes(); }
  std::vector<SequenceKv> Views() const {
    std::vector<SequenceKv> views;
    for (const TestSequence& sequence : sequences_) {
      views.push_back(sequence.View());
    }
    return views;
  }

  Rng rng_;
  ModelLayout layout_;
  PoolModel model_;
  PagePicker picker_;
  std::vector<TestSequence> sequences_;
  std::vector<int64_t> mapping_;
  std::vector<uint16_t> queries_;  // of kRows rows, dead ones too
  std::vector<uint16_t> keys_;     // also the values
};

class DecodeStepTest : public DeviceTest {};

// Dead rows, with queries and keys of their own, change nothing in the pool,
// and no bits but where bits depend on the batch.
TEST_F(DecodeStepTest, EqualsCallsLayerByLayer) {
  const int32_t length = 90 * PoolLengthFactor();
  for (uint64_t seed = 0; seed < CountDeviceCases(12); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    StepCase test(seed, length, seed % 2 == 0);
    const int32_t window = seed % 4 == 1 ? length / 2 : 0;
    const auto decode = static_cast<Decode>(seed % 3);
    const auto calls = test.MakeDevice(decode);
    const auto step = test.MakeDevice(decode);
    const std::vector<uint16_t> want = test.RunCalls(calls.get(), window);
    const std::vector<uint16_t> got = test.RunStep(step.get(), window);
    if (decode != Decode::kBalanced) {
      EXPECT_EQ(got, want);
    } else {
      const bool half = test.layout().dtype == DType::kFloat16;
      std::vector<float> got_floats(got.size());
      std::vector<float> want_floats(want.size());
      std::ranges::transform(got, got_floats.begin(),
                             half ? FromFloat16 : FromBFloat16);
      std::ranges::transform(want, want_floats.begin(),
                             half ? FromFloat16 : FromBFloat16);
      EXPECT_LE(RelativeError(got_floats, want_floats),
                Tolerance(test.layout().dtype));
    }
    EXPECT_EQ(Difference(*step, *calls), "");
    EXPECT_EQ(step->Flush(), absl::OkStatus());
  }
}

// Lists with room to grow do not change what kernels are told.
TEST_F(DecodeStepTest, ArgumentsChangeWithRoomOnly) {
  Rng rng(1);
  const auto device = MakeDeviceBackend(DeviceLayout(rng, 0, 600), 1);
  DecodeStep& step = *device->decode_step();
  std::vector<BlockId> blocks(512);
  for (int32_t i = 0; i < std::ssize(blocks); ++i) {
    blocks[static_cast<size_t>(i)] = BlockId{i + 1};
  }
  std::vector<uint64_t> last;
  int32_t num_changes = 0;
  int32_t num_steps = 0;
  for (int32_t length = 1; length < 512 * 16; length += 7) {
    const std::vector<SequenceKv> sequences = {
        {.tail_blocks = blocks.data(), .tail_length = length}};
    const std::vector<int64_t> mapping = {length};
    step.Begin(4);
    step.Add({.slot_mapping = mapping, .sequences = sequences});
    ASSERT_EQ(step.Send(), absl::OkStatus());
    const std::span<const uint64_t> arguments = step.arguments();
    if (!std::ranges::equal(arguments, last)) ++num_changes;
    last.assign(arguments.begin(), arguments.end());
    ++num_steps;
  }
  EXPECT_GT(num_steps, 1000);
  // Blocks and tiles have grown by half so often, and memory with them.
  EXPECT_GT(num_changes, 5);
  EXPECT_LT(num_changes, 30);
}

// A longer row of the block tables is told, also where memory does not move.
TEST_F(DecodeStepTest, ArgumentsTellTheRoomOfTables) {
  Rng rng(1);
  const auto device = MakeDeviceBackend(DeviceLayout(rng, 0, 600), 1,
                                        {.decode = Decode::kChunked});
  DecodeStep& step = *device->decode_step();
  const std::vector<BlockId> blocks(40, BlockId{1});
  const auto send = [&](int32_t num_rows, int32_t length) {
    const std::vector<SequenceKv> sequences = {
        {.tail_blocks = blocks.data(), .tail_length = length}};
    const std::vector<int64_t> mapping = {16};
    step.Begin(num_rows);
    step.Add({.slot_mapping = mapping, .sequences = sequences});
    EXPECT_EQ(step.Send(), absl::OkStatus());
    return std::vector<uint64_t>(step.arguments().begin(),
                                 step.arguments().end());
  };
  send(64, 1);
  const int64_t capacity = step.capacity_bytes();
  const std::vector<uint64_t> before = send(2, 1);
  EXPECT_EQ(send(2, 2), before);
  EXPECT_NE(send(2, 600), before);
  EXPECT_EQ(step.capacity_bytes(), capacity);
}

}  // namespace
}  // namespace blockmgr
