#include "blockmgr/base/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

struct Format {
  int fraction_bits;
  int min_exponent;
  int max_exponent;
};
constexpr Format kBFloat16Format = {7, -126, 127};
constexpr Format kFloat16Format = {10, -14, 15};

// The nearest such number of a finite value, ties to even, by arithmetic alone:
// count units in the last place in double, where all of it is exact.
double Nearest(const Format& format, float value) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - format.fraction_bits);
  const double units = value / ulp;
  double rounded = std::floor(units);
  const double fraction = units - rounded;
  if (fraction > 0.5 || (fraction == 0.5 && std::fmod(rounded, 2.0) != 0)) {
    rounded += 1;
  }
  const double result = rounded * ulp;
  if (std::abs(result) < std::ldexp(1.0, format.max_exponent + 1)) {
    return std::copysign(result, value);
  }
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

void ExpectNearest(const Format& format, float value, double actual) {
  if (!std::isfinite(value)) return;
  EXPECT_EQ(actual, Nearest(format, value)) << std::hexfloat << value;
  EXPECT_EQ(std::signbit(actual), std::signbit(value))
      << std::hexfloat << value;
}

void ExpectNearestBFloat16(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  ExpectNearest(kBFloat16Format, value, FromBFloat16(ToBFloat16(value)));
}

void ExpectNearestFloat16(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  ExpectNearest(kFloat16Format, value, FromFloat16(ToFloat16(value)));
}

TEST(DTypeTest, BytesAreThoseOfTheStorage) {
  EXPECT_EQ(DTypeBytes(DType::kFloat32), 4);
  EXPECT_EQ(DTypeBytes(DType::kBFloat16), 2);
  EXPECT_EQ(DTypeBytes(DType::kFloat16), 2);
}

TEST(DTypeTest, NamesAreThoseOfTheValues) {
  EXPECT_EQ(DTypeName(DType::kFloat32), "float32");
  EXPECT_EQ(DTypeName(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(DTypeName(DType::kFloat16), "float16");
  for (const auto name : kDTypeNames) {
    EXPECT_EQ(DTypeName(DTypeNamed(name)), name);
  }
}

TEST(DTypeTest, ElementsAreLoadedAtAnyAddress) {
  const std::array<float, 3> values = {1.5f, -2.0f, 3.25f};
  std::array<std::byte, 13> row;
  for (const std::size_t shift : {0, 1}) {
    std::memcpy(&row[shift], values.data(), sizeof(values));
    EXPECT_EQ(LoadElement(DType::kFloat32, &row[shift], 2), 3.25f);
    const std::array<uint16_t, 3> bfloats = {0x3FC0, 0xC000, 0x4050};
    std::memcpy(&row[shift], bfloats.data(), sizeof(bfloats));
    EXPECT_EQ(LoadElement(DType::kBFloat16, &row[shift], 2), 3.25f);
    const std::array<uint16_t, 3> halves = {0x3E00, 0xC000, 0x4280};
    std::memcpy(&row[shift], halves.data(), sizeof(halves));
    EXPECT_EQ(LoadElement(DType::kFloat16, &row[shift], 2), 3.25f);
  }
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
      ExpectNearestBFloat16(high << 16 | low);
      if (testing::Test::HasFailure()) return;
    }
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

// What the bits mean: sign, 5 bits of exponent, 10 of fraction.
TEST(Float16Test, EveryFloat16HasItsValueAndSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = FromFloat16(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::signbit(value), bits >> 15 != 0) << std::hex << bits;
    const auto exponent = static_cast<int>(bits >> 10 & 31u);
    const double fraction = bits & 0x3FFu;
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      ASSERT_EQ(ToFloat16(value), bits | 0x200u) << std::hex << bits;
      continue;
    }
    const double magnitude =
        exponent == 31  ? std::numeric_limits<double>::infinity()
        : exponent == 0 ? std::ldexp(fraction, -24)
                        : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(std::abs(double{value}), magnitude) << std::hex << bits;
    ASSERT_EQ(ToFloat16(value), bits) << std::hex << bits;
  }
}

// Of every finite float16 the float itself, those next to it, and the same of
// the ties that lie half a unit above and a quarter below: below a power of two
// the unit is half as large.
TEST(Float16Test, RoundsToNearestEvenAroundEveryValue) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    if ((bits & 0x7C00u) == 0x7C00u) continue;
    const double value = FromFloat16(static_cast<uint16_t>(bits));
    const int exponent = std::max(value == 0 ? -14 : std::ilogb(value), -14);
    const double unit = std::copysign(std::ldexp(1.0, exponent - 10), value);
    for (const double units : {0.0, 0.5, -0.25, -0.5}) {
      const auto at = static_cast<float>(value + units * unit);
      const uint32_t middle = std::bit_cast<uint32_t>(at);
      for (const uint32_t near : {middle - 1, middle, middle + 1}) {
        ExpectNearestFloat16(near);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(Float16Test, ThereIsNothingAbove65504ButInfinity) {
  EXPECT_EQ(ToFloat16(65504.0f), 0x7BFF);
  EXPECT_EQ(ToFloat16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(ToFloat16(65520.0f), 0x7C00);
  EXPECT_EQ(ToFloat16(-std::numeric_limits<float>::max()), 0xFC00);
  EXPECT_EQ(ToFloat16(-std::numeric_limits<float>::infinity()), 0xFC00);
}

TEST(Float16Test, EveryKindOfNanStaysAQuietNanOfItsSign) {
  for (const uint32_t bits : {0x7F800001u, 0x7F801FFFu, 0x7FFFFFFFu,
                              0x7FC02000u, 0xFF800001u, 0xFFFFFFFFu}) {
    const uint16_t result = ToFloat16(std::bit_cast<float>(bits));
    EXPECT_EQ(result, (bits >> 16 & 0x8000u) | 0x7E00u | (bits >> 13 & 0x3FFu))
        << std::hex << bits;
  }
}

}  // namespace
}  // namespace blockmgr
