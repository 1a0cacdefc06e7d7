// Products by cuBLAS, where there is a GPU and the library.
#include "kernels/cuda/host/cublas_products.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <gtest/gtest.h>

#include "kernels/cuda/host/device_runtime.h"
#include "kernels/cuda/simt_types.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class CublasProductsTest : public DeviceTest {};

// A product of small whole numbers is exact in every order.
TEST_F(CublasProductsTest, AreThoseOfTheMatrices) {
  constexpr int32_t kRows = 19;
  constexpr int32_t kIn = 48;
  constexpr int32_t kOut = 96;
  const std::unique_ptr<DeviceRuntime> runtime = MakeTestRuntime(1);
  const absl::StatusOr<std::string> library = runtime->UseProductLibrary();
  if (!library.ok()) {
    // As on the interpreter of compiled kernels. Its own kernel goes on.
    EXPECT_NE(library.status().message(), "");
    EXPECT_TRUE(runtime->status().ok());
    return;
  }
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int32_t> number(-8, 8);
  SharedVector<int32_t> weights(kOut * kIn);
  SharedVector<int32_t> input(kRows * kIn);
  // Small whole numbers in bf16 have the upper bits of those in fp32.
  SharedVector<uint16_t> weight_bits;
  SharedVector<uint16_t> input_bits;
  for (int32_t& x : weights) {
    x = number(random);
    weight_bits.push_back(simt::BFloat16Bits(static_cast<float>(x)));
  }
  for (int32_t& x : input) {
    x = number(random);
    input_bits.push_back(simt::BFloat16Bits(static_cast<float>(x)));
  }
  SharedVector<float> output(kRows * kOut, NAN);
  runtime->Multiply({.num_rows = kRows,
                     .in = kIn,
                     .out = kOut,
                     .weights = weight_bits.data(),
                     .input = input_bits.data(),
                     .output = output.data()},
                    ElementType::kBFloat16);
  // Waits.
  const auto memory = runtime->Allocate(1);
  ASSERT_TRUE(memory.ok());
  runtime->Free(*memory);
  ASSERT_TRUE(runtime->status().ok()) << runtime->status();
  for (int32_t row = 0; row < kRows; ++row) {
    for (int32_t o = 0; o < kOut; ++o) {
      int32_t sum = 0;
      for (int32_t i = 0; i < kIn; ++i) {
        sum += weights[o * kIn + i] * input[row * kIn + i];
      }
      EXPECT_EQ(output[row * kOut + o], static_cast<float>(sum));
    }
  }
}

}  // namespace
}  // namespace blockmgr
