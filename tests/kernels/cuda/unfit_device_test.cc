// A device that is there and cannot run the kernels.
#include <cstdint>
#include <memory>
#include <utility>

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace blockmgr {
namespace {

// Fails when it is asked how many CTAs it holds, as CUDA does for a kernel that
// there is no code for, or that wants more shared memory than there is.
class UnfitRuntime final : public EmulatedRuntime {
 public:
  UnfitRuntime() : EmulatedRuntime(1, int64_t{1} << 28) {}

  const absl::Status& status() const override {
    return failure_.ok() ? EmulatedRuntime::status() : failure_;
  }
  int32_t CountDecodeCtas(const RowShape&, int32_t) override {
    failure_ = absl::InternalError("no kernel image");
    return 1;
  }

 private:
  absl::Status failure_;
};

TEST(UnfitDeviceTest, GetsNoBackend) {
  const ModelLayout layout{.num_layers = 1,
                           .num_heads = 1,
                           .num_q_heads = 1,
                           .head_dim = 64,
                           .num_blocks = 2};
  const absl::Status status =
      CudaBackend::Create(layout, {}, std::make_unique<UnfitRuntime>())
          .status();
  EXPECT_EQ(status, absl::InternalError("no kernel image"));
}

}  // namespace
}  // namespace blockmgr
