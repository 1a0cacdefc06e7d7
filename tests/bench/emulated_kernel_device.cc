// The benchmark's device on the emulator.
#include <cstdint>
#include <cstring>
#include <memory>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/dtype.h"
#include "tests/bench/kernel_test_device.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class EmulatedKernelDevice final : public KernelDevice {
 public:
  DeviceRuntime& runtime() override { return *runtime_; }
  absl::Status status() const override { return runtime_->status(); }

  void ReadCeiling(const char* from, int64_t num_vectors,
                   uint32_t* sink) override {
    uint32_t sum = 0;
    for (int64_t i = 0; i < num_vectors * 16; ++i) {
      sum += static_cast<uint8_t>(from[i]);
    }
    if (sum == 0) ++*sink;
  }
  void CopyCeiling(const char* from, char* to, int64_t num_vectors) override {
    std::memcpy(to, from, static_cast<std::size_t>(num_vectors) * 16);
  }
  // As kernel_problem.h says.
  void FillElements(uint16_t* out, int64_t count, uint64_t seed,
                    ElementType type) override {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits =
          SplitMix64((seed << 40) + static_cast<uint64_t>(i)) >> 48;
      const float value = static_cast<float>(bits) / 32768.0f - 1.0f;
      out[i] =
          type == ElementType::kHalf ? ToFloat16(value) : ToBFloat16(value);
    }
  }

 private:
  const std::unique_ptr<DeviceRuntime> runtime_ = MakeTestRuntime(1);
};

}  // namespace

std::unique_ptr<KernelDevice> MakeKernelTestDevice() {
  return std::make_unique<EmulatedKernelDevice>();
}

}  // namespace blockmgr
