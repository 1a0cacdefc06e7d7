// A device that is there and cannot run the kernels, has no room, or fails.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <gtest/gtest.h>

#include "kernels/cuda/host/cuda_backend.h"
#include "tests/kernels/cuda/emulated_runtime.h"

namespace blockmgr {
namespace {

// Has failed once it was told so.
class FailingRuntime : public EmulatedRuntime {
 public:
  FailingRuntime() : EmulatedRuntime(1, int64_t{1} << 28) {}

  const absl::Status& status() const override {
    return failure_.ok() ? EmulatedRuntime::status() : failure_;
  }
  void Fail(absl::string_view why) { failure_ = absl::InternalError(why); }

 private:
  absl::Status failure_;
};

// Fails when it is asked how many CTAs it holds, as CUDA does for a kernel that
// there is no code for, or that wants more shared memory than there is.
class UnfitRuntime final : public FailingRuntime {
 public:
  int32_t CountDecodeCtas(const RowShape&, int32_t) override {
    Fail("no kernel image");
    return 1;
  }
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

TEST(UnfitDeviceTest, TheDevicesOwnErrorIsPrintedWhereThereIsNoWayOn) {
  auto owned = std::make_unique<FailingRuntime>();
  FailingRuntime* runtime = owned.get();
  const auto backend = CudaBackend::Create(SmallLayout(), {}, std::move(owned));
  ASSERT_TRUE(backend.ok()) << backend.status();
  runtime->Fail("fell off the bus");
  std::vector<float> row(128);
  EXPECT_DEATH((*backend)->ReadSlot(16, row), "INTERNAL: fell off the bus");
}

}  // namespace
}  // namespace blockmgr
