// All values of 16 bits, and floats between them, against base/dtype.h.
#include "tests/kernels/ptx/ptx_halves.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

#include "blockmgr/base/dtype.h"

namespace blockmgr::ptx {
namespace {

TEST(PtxHalvesTest, EveryValueIsItsOwn) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float as_half = FloatOfHalf(half);
    if (std::isnan(as_half)) {
      EXPECT_EQ(HalfOfFloat(as_half), 0x7FFF);
      EXPECT_TRUE(std::isnan(FromFloat16(half)));
    } else {
      ASSERT_EQ(as_half, FromFloat16(half)) << bits;
      ASSERT_EQ(HalfOfFloat(as_half), half) << bits;
    }
    const float as_bfloat = FloatOfBFloat(half);
    ASSERT_EQ(BFloatOfFloat(as_bfloat), std::isnan(as_bfloat) ? 0x7FFF : half);
  }
}

TEST(PtxHalvesTest, WhatIsBetweenIsRoundedToTheNearest) {
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(HalfOfFloat(value), ToFloat16(value)) << value;
    ASSERT_EQ(BFloatOfFloat(value), ToBFloat16(value)) << value;
  }
}

}  // namespace
}  // namespace blockmgr::ptx
