#include "blockmgr/base/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

// The nearest bfloat16 of a finite value, ties to even, by arithmetic alone:
// count units in the last place in double, where all of it is exact.
double NearestBFloat16(float value) {
  if (value == 0) return value;
  constexpr int kFractionBits = 7;
  constexpr int kMinExponent = -126;
  const int exponent = std::max(std::ilogb(value), kMinExponent);
  const double ulp = std::ldexp(1.0, exponent - kFractionBits);
  const double units = value / ulp;
  double rounded = std::floor(units);
  const double fraction = units - rounded;
  if (fraction > 0.5 || (fraction == 0.5 && std::fmod(rounded, 2.0) != 0)) {
    rounded += 1;
  }
  const double result = rounded * ulp;
  if (std::abs(result) < std::ldexp(1.0, 128)) {
    return std::copysign(result, value);
  }
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

void ExpectNearest(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  if (!std::isfinite(value)) return;
  const double expected = NearestBFloat16(value);
  const double actual = FromBFloat16(ToBFloat16(value));
  EXPECT_EQ(actual, expected) << std::hexfloat << value;
  EXPECT_EQ(std::signbit(actual), std::signbit(value))
      << std::hexfloat << value;
}

TEST(DTypeTest, BytesAreThoseOfTheStorage) {
  EXPECT_EQ(DTypeBytes(DType::kFloat32), 4);
  EXPECT_EQ(DTypeBytes(DType::kBFloat16), 2);
}

TEST(BFloat16Test, EveryBFloat16SurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = FromBFloat16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(ToBFloat16(value), bits);
  }
}

// Around every bfloat16 of either sign, infinity and the subnormals included.
TEST(BFloat16Test, RoundsToNearestEvenAroundEveryValue) {
  for (uint32_t high = 0; high <= 0xFFFF; ++high) {
    for (const uint32_t low : {0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      ExpectNearest(high << 16 | low);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(BFloat16Test, RoundsToNearestEvenOnRandomValues) {
  constexpr uint32_t kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int i = 0; i < 200'000 && !testing::Test::HasFailure(); ++i) {
    ExpectNearest(random());
  }
}

TEST(BFloat16Test, LargestFloatRoundsToInfinity) {
  EXPECT_EQ(FromBFloat16(ToBFloat16(std::numeric_limits<float>::max())),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(FromBFloat16(ToBFloat16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

// A signalling NaN whose payload lies in the dropped bits would become infinity
// by truncation, and wrap around to -0 by rounding.
TEST(BFloat16Test, EveryKindOfNanStaysAQuietNanOfItsSign) {
  for (const uint32_t bits : {0x7F800001u, 0x7F80FFFFu, 0x7FFFFFFFu,
                              0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu}) {
    const uint16_t result = ToBFloat16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(FromBFloat16(result))) << std::hex << bits;
    EXPECT_EQ(result & 0x40u, 0x40u) << std::hex << bits;
    EXPECT_EQ(result >> 15, bits >> 31) << std::hex << bits;
  }
}

}  // namespace
}  // namespace blockmgr
