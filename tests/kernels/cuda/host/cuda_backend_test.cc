// CudaBackend against CpuBackend: the same calls to both.
#include "kernels/cuda/host/cuda_backend.h"

#include <bit>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/cuda/host/device_cases.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

class CudaBackendTest : public DeviceTest {};

std::vector<SlotMove> DrawMoves(const ModelLayout& layout, Rng& rng) {
  const std::vector<SlotIndex> slots = ShuffledSlots(layout, rng);
  std::vector<SlotMove> moves;
  const std::size_t count = RandomInt(rng, 0, 60);
  for (std::size_t i = 0; i + 1 < slots.size() && moves.size() < count;
       i += 2) {
    moves.push_back({.source = slots[i], .destination = slots[i + 1]});
  }
  return moves;
}

// Up to four groups, each a cycle of slots of its own.
CompactionMoves DrawMovesInPlace(const ModelLayout& layout, Rng& rng) {
  const std::vector<SlotIndex> slots = ShuffledSlots(layout, rng);
  CompactionMoves moves;
  moves.in_place = true;
  std::size_t begin = 0;
  for (int32_t group = RandomInt(rng, 0, 4); group > 0; --group) {
    const std::size_t size = RandomInt(rng, 2, 15);
    for (std::size_t i = 0; i < size; ++i) {
      moves.moves.push_back({.source = slots[begin + i],
                             .destination = slots[begin + (i + 1) % size]});
    }
    begin += size;
    moves.group_ends.push_back(std::ssize(moves.moves));
  }
  return moves;
}

TEST_F(CudaBackendTest, RowsEqualTheCpus) {
  for (uint64_t seed = 0; seed < CountDeviceCases(6); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const ModelLayout layout = DeviceLayout(rng, seed, 5);
    auto cpu = CreateCpuBackend(layout);
    ASSERT_TRUE(cpu.ok());
    // Room to stage all groups of moves together, or one at a time.
    CudaBackendOptions options;
    if (seed % 2 == 1) options.staged_bytes = 4096;
    const auto device = MakeDeviceBackend(layout, seed, options);
    for (Backend* backend : {cpu->get(), static_cast<Backend*>(device.get())}) {
      Rng same = rng;
      backend->Poison();
      for (int32_t round = 0; round < 3; ++round) {
        std::vector<int64_t> slots(5 * layout.page_size);
        std::iota(slots.begin(), slots.end(), int64_t{0});
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
        moves.moves = DrawMoves(layout, same);
        moves.group_ends = {std::ssize(moves.moves)};
        backend->Move(moves);
        backend->Move(DrawMovesInPlace(layout, same));
        const std::vector<BlockCopy> copies = {{BlockId{1}, BlockId{4}},
                                               {BlockId{2}, BlockId{3}}};
        backend->CopyBlocks(std::span(copies).first(round));
      }
    }
    ASSERT_TRUE(device->Flush().ok());
    EXPECT_EQ(Difference(*device, **cpu), "");
  }
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
  device->Move(
      {.moves = {{.source = 0, .destination = -1}}, .group_ends = {1}});
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

}  // namespace
}  // namespace blockmgr
