// A device that is there and cannot run the kernels, has no room, or fails.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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

ModelLayout SmallLayout() {
  return {.num_layers = 1,
          .num_heads = 1,
          .num_q_heads = 1,
          .head_dim = 64,
          .num_blocks = 2};
}

TEST(UnfitDeviceTest, GetsNoBackend) {
  const absl::Status status =
      CudaBackend::Create(SmallLayout(), {}, std::make_unique<UnfitRuntime>())
          .status();
  EXPECT_EQ(status, absl::InternalError("no kernel image"));
}

TEST(UnfitDeviceTest, AFullDeviceSaysSoBeforeTheFirstCall) {
  const ModelLayout layout = SmallLayout();
  for (const int64_t room : {layout.pool_bytes() - 1, layout.pool_bytes()}) {
    const absl::Status status =
        CudaBackend::Create(layout, {},
                            std::make_unique<EmulatedRuntime>(1, room))
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

// Dies in the middle of a step.
class FrailRuntime final : public EmulatedRuntime {
 public:
  FrailRuntime() : EmulatedRuntime(1, int64_t{1} << 28) {}

  const absl::Status& status() const override { return failure_; }
  void Fail() { failure_ = absl::InternalError("fell off the bus"); }

 private:
  absl::Status failure_;
};

TEST(UnfitDeviceTest, TheDevicesOwnErrorIsPrintedWhereThereIsNoWayOn) {
  auto owned = std::make_unique<FrailRuntime>();
  FrailRuntime* runtime = owned.get();
  const auto backend = CudaBackend::Create(SmallLayout(), {}, std::move(owned));
  ASSERT_TRUE(backend.ok()) << backend.status();
  runtime->Fail();
  std::vector<float> row(128);
  EXPECT_DEATH((*backend)->ReadSlot(16, row), "INTERNAL: fell off the bus");
}

}  // namespace
}  // namespace blockmgr
