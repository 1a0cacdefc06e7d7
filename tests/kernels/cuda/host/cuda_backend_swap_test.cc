#include <cstddef>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "kernels/cuda/host/cuda_backend.h"
#include "tests/kernels/cuda/host/device_cases.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {
namespace {

class CudaSwapTest : public DeviceTest {};

TEST_F(CudaSwapTest, CopiesBlocksToHostMemoryAndBack) {
  for (uint64_t seed = 0; seed < CountDeviceCases(6); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    PoolModel model(DeviceLayout(rng, seed, 12));
    model.FillAll(rng);
    // At once, one at a time, and two with one left over.
    CudaBackendOptions options;
    if (seed % 3 > 0) {
      options.staged_bytes =
          static_cast<int64_t>(seed % 3) * model.layout().block_bytes();
    }
    const auto device = MakeDeviceBackend(model.layout(), seed, options);
    model.CopyTo(device.get());
    EXPECT_EQ(CheckHostCopies(device.get(), &model, rng), "");
    ASSERT_TRUE(device->Flush().ok());
    EXPECT_TRUE(model.Matches(*device));
  }
}

TEST_F(CudaSwapTest, PagesOutsideThePoolAreReportedAndWriteNothing) {
  Rng rng(7);
  PoolModel model(DeviceLayout(rng, 0, 4));
  model.FillAll(rng);
  const auto device = MakeDeviceBackend(model.layout(), 7);
  model.CopyTo(device.get());
  const std::vector<std::byte> host(model.layout().block_bytes());
  for (const int32_t block : {-1, 4}) {
    const std::vector<BlockTransfer> outside = {
        {BlockId{block}, HostBlockId{0}}};
    device->CopyFromHost(outside, host);
    const absl::Status status = device->Flush();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "pages")) << block;
  }
  EXPECT_TRUE(device->Flush().ok());
  EXPECT_TRUE(model.Matches(*device));
}

}  // namespace
}  // namespace blockmgr
