// Selection and compaction of the device: the CPU's, bit for bit.
#include "kernels/cuda/host/device_selector.h"

#include <cstdint>
#include <span>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/compaction.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/ragged_region.h"
#include "kernels/backend.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/kernels/cuda/host/device_cases.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

class DeviceSelectorTest : public DeviceTest {};

ModelLayout SmallLayout() {
  return {.num_layers = 2,
          .num_heads = 2,
          .num_q_heads = 2,
          .head_dim = 64,
          .page_size = 16,
          .num_blocks = 40};
}

SelectBatch BatchOf(const EvictionCase& c, const FlatEntries& flat) {
  return {.policy = c.policy,
          .target = c.target,
          .shape = c.shape,
          .range = c.range,
          .entries = flat.view(),
          .external = c.external};
}

// Heads of more entries than a CTA looks at, one of them without any.
void MakeLong(Rng& rng, EvictionCase* eviction) {
  eviction->range.cut = 4500;
  eviction->range.length = 4530;
  eviction->target.tokens = RandomInt(rng, 1, 4500);
  for (std::size_t head = 0; head < eviction->positions.size(); ++head) {
    std::vector<int32_t>& positions = eviction->positions[head];
    positions.clear();
    const int32_t keep_one_in = head == 1 ? 1 << 20 : RandomInt(rng, 1, 9);
    for (int32_t i = 0; i < 4500; ++i) {
      if (head == 0 || RandomInt(rng, 1, keep_one_in) == 1) {
        positions.push_back(i);
      }
    }
    eviction->external[head] = RandomInt(rng, 0, 4500);
  }
  DrawScores(rng, eviction);
}

void ExpectSame(Backend* device, const EvictionCase& c) {
  SCOPED_TRACE(Describe(c));
  const KeepSets got = device->Select(BatchOf(c, FlatEntries(c)));
  const KeepSets want = Select(c);
  EXPECT_EQ(got.offsets, want.offsets);
  EXPECT_EQ(got.ranks, want.ranks);
  EXPECT_EQ(got.num_nan, want.num_nan);
}

TEST_F(DeviceSelectorTest, SelectsWhatTheCpuSelects) {
  const auto device = MakeDeviceBackend(SmallLayout(), 1);
  for (uint64_t seed = 0; seed < CountDeviceCases(20); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    ExpectSame(device.get(), RandomCase(rng));
  }
}

TEST_F(DeviceSelectorTest, LongHeadsToo) {
  const auto device = MakeDeviceBackend(SmallLayout(), 1);
  for (uint64_t seed = 50; seed < 50 + CountDeviceCases(2); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    EvictionCase c = RandomCase(rng);
    MakeLong(rng, &c);
    ExpectSame(device.get(), c);
  }
}

// Keeps one entry of the first head, on one page.
void CompactOne(CudaBackend* device, SlotIndex slot, PageId page) {
  const std::vector<int64_t> offsets = {0, 1, 1, 1, 1};
  const std::vector<int32_t> page_offsets = {0, 1, 1, 1, 1};
  const std::vector<int32_t> held(4, 0);
  const KeepSets keep{.offsets = offsets, .ranks = {0}};
  const int32_t position = 70;
  const std::vector<int32_t> positions =
      device->Compact({.offsets = offsets,
                       .slots = std::span(&slot, 1),
                       .positions = std::span(&position, 1),
                       .keep = &keep,
                       .page_offsets = page_offsets,
                       .pages = std::span(&page, 1),
                       .held_pages = held});
  EXPECT_EQ(positions, std::vector<int32_t>{position});
}

TEST_F(DeviceSelectorTest, IdsOutsideThePoolAreReportedAndWriteNothing) {
  Rng rng(9);
  const ModelLayout layout = SmallLayout();
  PoolModel model(layout);
  model.FillAll(rng);
  const auto device = MakeDeviceBackend(layout, 9);
  model.CopyTo(device.get());
  const auto num_pages = static_cast<int32_t>(layout.num_pages());
  for (const int32_t page : {-1, num_pages, num_pages + 1000}) {
    CompactOne(device.get(), 3, PageId{page});
    const absl::Status status = device->Flush();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "slots")) << page;
    CompactOne(device.get(), int64_t{page} * layout.page_size, PageId{4});
    EXPECT_TRUE(absl::StrContains(device->Flush().message(), "slots")) << page;
  }
  EXPECT_TRUE(model.Matches(*device));
  // It stays where it is.
  CompactOne(device.get(), 0, PageId{0});
  EXPECT_TRUE(device->Flush().ok());
  EXPECT_TRUE(model.Matches(*device));
}

TEST_F(DeviceSelectorTest, KeepingNothingMovesNothing) {
  const auto device = MakeDeviceBackend(SmallLayout(), 1);
  const std::vector<int64_t> offsets(5, 0);
  const std::vector<int32_t> page_offsets(5, 0);
  const std::vector<int32_t> held(4, 0);
  const KeepSets keep{.offsets = offsets, .ranks = {}};
  EXPECT_TRUE(device
                  ->Compact({.offsets = offsets,
                             .slots = {},
                             .positions = {},
                             .keep = &keep,
                             .page_offsets = page_offsets,
                             .pages = {},
                             .held_pages = held})
                  .empty());
  EXPECT_TRUE(device->Flush().ok());
}

}  // namespace
}  // namespace blockmgr
