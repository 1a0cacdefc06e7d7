// CudaBackend next to CpuBackend, for tests that run on whatever device the
// program has.
#ifndef TESTS_KERNELS_CUDA_HOST_DEVICE_CASES_H_
#define TESTS_KERNELS_CUDA_HOST_DEVICE_CASES_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/model_layout.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/cuda_backend.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/kernels/kernel_cases.h"

namespace blockmgr {

// A layout that kernels exist for; all of them in turn by `index`.
inline ModelLayout DeviceLayout(Rng& rng, uint64_t index, int32_t num_blocks) {
  constexpr int32_t kDims[] = {64, 128, 256};
  constexpr int32_t kGroups[] = {1, 4, 8, 16, 3};
  ModelLayout layout;
  layout.num_layers = RandomInt(rng, 1, 2);
  layout.num_heads = RandomInt(rng, 1, 3);
  layout.num_q_heads = layout.num_heads * kGroups[index % 5];
  layout.head_dim = kDims[index % 3];
  layout.page_size = index % 2 == 0 ? 16 : 32;
  layout.dtype = index / 2 % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
  layout.num_blocks = num_blocks;
  return layout;
}

inline std::unique_ptr<CudaBackend> MakeDeviceBackend(
    const ModelLayout& layout, uint64_t seed,
    const CudaBackendOptions& options = {}) {
  auto backend = CudaBackend::Create(layout, options, MakeTestRuntime(seed));
  BM_CHECK(backend.ok());
  return *std::move(backend);
}

// Queries and projections reach the device as the pool's elements: both sides
// get these.
inline std::vector<float> RoundedFloats(Rng& rng, DType dtype, int64_t count) {
  std::vector<float> values = RandomFloats(rng, count);
  for (float& value : values) value = Stored(value, dtype);
  return values;
}

// The first slot with other bits, or "".
inline std::string Difference(const Backend& device, const Backend& cpu) {
  const ModelLayout& layout = cpu.layout();
  const auto row_floats = size_t{2} * static_cast<size_t>(layout.head_dim);
  std::vector<float> got(row_floats);
  std::vector<float> want(row_floats);
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

// Of attention: fp16 has eight times the precision of bf16.
inline double Tolerance(DType dtype) {
  return dtype == DType::kBFloat16 ? 4e-3 : 5e-4;
}

// ||got - want|| / ||want||; infinite if anything is NaN on one side only, or
// an infinity is not the same one.
inline double RelativeError(std::span<const float> got,
                            std::span<const float> want) {
  double error = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i]) && got[i] == want[i]) continue;
    if (!std::isfinite(got[i]) || !std::isfinite(want[i])) return INFINITY;
    error += std::pow(double{got[i]} - double{want[i]}, 2);
    norm += std::pow(double{want[i]}, 2);
  }
  if (error == 0.0) return 0.0;
  return std::sqrt(error / norm);
}

// Expects each value near what the CPU has: within 1e-4 of its size, or 2e-6 of
// the largest, whose rounding a small difference of large terms keeps.
inline void ExpectEachNear(std::span<const float> got,
                           std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0.0;
  for (const float value : want) {
    if (std::isfinite(value)) {
      largest = std::max(largest, std::abs(double{value}));
    }
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i]) && got[i] == want[i]) continue;
    ASSERT_NEAR(got[i], want[i],
                1e-4 * std::abs(double{want[i]}) + 2e-6 * largest)
        << "value " << i;
  }
}

}  // namespace blockmgr

#endif  // TESTS_KERNELS_CUDA_HOST_DEVICE_CASES_H_
