#include "engine/gguf/tensor_type.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/testing/case_count.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

using Row = std::vector<std::byte>;

struct Block {
  int64_t num_elements;
  int64_t num_bytes;
  std::vector<size_t> halves;  // where it has numbers in fp16
};

Block BlockOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {1, 4, {}};
    case TensorType::kF16:
      return {1, 2, {0}};
    case TensorType::kBF16:
      return {1, 2, {}};
    case TensorType::kQ8_0:
      return {32, 34, {0}};
    case TensorType::kQ4_1:
      return {32, 20, {0, 2}};
    case TensorType::kQ5_0:
      return {32, 22, {0}};
    case TensorType::kQ4_K:
      return {256, 144, {0, 2}};
    case TensorType::kQ6_K:
      return {256, 210, {208}};
  }
  return {};
}

// One element of a block from the format's definition, in double: bit by bit.
class SlowBlock {
 public:
  SlowBlock(TensorType type, const std::byte* bytes)
      : type_(type), bytes_(bytes) {}

  double Element(int i) const {
    switch (type_) {
      case TensorType::kF32:
        return Float(Field(0, 32), 8, 23);
      case TensorType::kF16:
        return Half(0);
      case TensorType::kBF16:
        return Float(Field(0, 16), 8, 7);
      case TensorType::kQ8_0:
        return Half(0) * Int8(2 + i);
      case TensorType::kQ4_1:
        return Half(0) * Nibble(4, 16, i) + Half(2);
      case TensorType::kQ5_0:
        return Half(0) * (Nibble(6, 16, i) + 16 * Field(16 + i, 1) - 16.0);
      case TensorType::kQ4_K:
        return ElementOfQ4K(i);
      case TensorType::kQ6_K:
        return ElementOfQ6K(i);
    }
    return 0;
  }

 private:
  // Bits of the block, counted from the lowest of its first byte.
  int64_t Field(int begin, int num_bits) const {
    int64_t field = 0;
    for (int bit = 0; bit < num_bits; ++bit) {
      const int at = begin + bit;
      const int byte = std::to_integer<int>(bytes_[at / 8]);
      field += int64_t{byte >> at % 8 & 1} << bit;
    }
    return field;
  }
  static double Float(int64_t bits, int exponent_bits, int fraction_bits) {
    const int64_t fraction = bits % (int64_t{1} << fraction_bits);
    const int64_t exponent =
        (bits >> fraction_bits) % (int64_t{1} << exponent_bits);
    const bool negative = bits >> (exponent_bits + fraction_bits) != 0;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double scale =
        std::ldexp(1, static_cast<int>(std::max(exponent, int64_t{1})) - bias -
                          fraction_bits);
    const int64_t hidden = exponent == 0 ? 0 : int64_t{1} << fraction_bits;
    return static_cast<double>(fraction + hidden) * scale * (negative ? -1 : 1);
  }
  double Half(int byte) const { return Float(Field(8 * byte, 16), 5, 10); }
  double Int8(int byte) const {
    const int64_t value = Field(8 * byte, 8);
    return static_cast<double>(value < 128 ? value : value - 256);
  }
  // Four bits of element i: `period` bytes hold the elements of the lower
  // halves and then those of the upper.
  double Nibble(int byte, int period, int i) const {
    return static_cast<double>(
        Field(8 * (byte + i % period) + (i / period == 0 ? 0 : 4), 4));
  }
  double ElementOfQ4K(int i) const {
    // Scales and minimums, 12 bytes from byte 4 on: bytes 0 to 3 have the
    // first four scales in six bits, bytes 4 to 7 the first four minimums.
    // Bytes 8 to 11 have four bits of a scale and four of a minimum; the other
    // two are the bits that the first eight bytes had left.
    const int part = i / 32;
    const int base = 8 * 4;
    int64_t scale = 0;
    int64_t minimum = 0;
    if (part < 4) {
      scale = Field(base + 8 * part, 6);
      minimum = Field(base + 8 * (part + 4), 6);
    } else {
      scale = Field(base + 8 * (part + 4), 4) +
              16 * Field(base + 8 * (part - 4) + 6, 2);
      minimum = Field(base + 8 * (part + 4) + 4, 4) +
                16 * Field(base + 8 * part + 6, 2);
    }
    const double quant = Nibble(16 + 32 * (part / 2), 32, i % 64);
    return Half(0) * static_cast<double>(scale) * quant -
           Half(2) * static_cast<double>(minimum);
  }
  double ElementOfQ6K(int i) const {
    const int half = i / 128;
    const int in_half = i % 128;
    const double lower = Nibble(64 * half, 64, in_half);
    const int64_t upper =
        Field(8 * (128 + 32 * half + in_half % 32) + 2 * (in_half / 32), 2);
    const double scale = Int8(192 + i / 16);
    return Half(208) * scale * (lower + 16.0 * static_cast<double>(upper) - 32);
  }

  TensorType type_;
  const std::byte* bytes_;
};

// Random bytes, with finite numbers where they are floating-point.
Row RandomRow(TensorType type, int num_blocks, Rng& rng) {
  const Block block = BlockOf(type);
  Row row(static_cast<size_t>(num_blocks * block.num_bytes));
  for (std::byte& byte : row) byte = static_cast<std::byte>(rng() & 0xFF);
  const auto is_last_byte = [&](size_t i, size_t bytes) {
    return i % bytes == bytes - 1;
  };
  for (size_t i = 0; i < row.size(); ++i) {
    const size_t in_block = i % static_cast<size_t>(block.num_bytes);
    const bool of_half = std::ranges::any_of(
        block.halves, [&](size_t at) { return at + 1 == in_block; });
    // The greatest exponent would be infinity or not a number.
    if (of_half || (type == TensorType::kBF16 && is_last_byte(i, 2)) ||
        (type == TensorType::kF32 && is_last_byte(i, 4))) {
      row[i] &= std::byte{0xBF};
    }
  }
  return row;
}

std::vector<float> Dequantized(TensorType type, const Row& row) {
  const Block block = BlockOf(type);
  std::vector<float> elements(row.size() /
                              static_cast<size_t>(block.num_bytes) *
                              static_cast<size_t>(block.num_elements));
  DequantizeRow(type, row, elements);
  return elements;
}

class TensorTypeTest : public testing::TestWithParam<TensorType> {};

INSTANTIATE_TEST_SUITE_P(All, TensorTypeTest, testing::ValuesIn(kTensorTypes),
                         [](const auto& instance) {
                           return std::string(TensorTypeName(instance.param));
                         });

TEST_P(TensorTypeTest, SizesAreTheFormats) {
  const Block block = BlockOf(GetParam());
  EXPECT_TRUE(IsKnown(static_cast<uint32_t>(GetParam())));
  EXPECT_EQ(BlockElements(GetParam()), block.num_elements);
  EXPECT_EQ(BlockBytes(GetParam()), block.num_bytes);
  EXPECT_EQ(RowBytes(GetParam(), 0), 0);
  EXPECT_EQ(RowBytes(GetParam(), 3 * block.num_elements), 3 * block.num_bytes);
}

TEST_P(TensorTypeTest, ElementsAreTheExactOnesRoundedOnce) {
  const Block block = BlockOf(GetParam());
  for (uint64_t seed = 0; seed < SlowCases(40); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const int num_blocks = RandomInt(rng, 1, 5);
    const Row row = RandomRow(GetParam(), num_blocks, rng);
    const std::vector<float> elements = Dequantized(GetParam(), row);
    for (size_t i = 0; i < elements.size(); ++i) {
      const auto in_block = static_cast<int64_t>(i) % block.num_elements;
      const auto at = static_cast<int64_t>(i) / block.num_elements;
      const SlowBlock slow(GetParam(), row.data() + at * block.num_bytes);
      ASSERT_EQ(elements[i],
                static_cast<float>(slow.Element(static_cast<int>(in_block))))
          << "element " << i;
    }
  }
}

TEST_P(TensorTypeTest, QuantizedValuesComeBackNearly) {
  Rng rng(7);
  std::vector<float> values(512);
  for (float& value : values) {
    value = static_cast<float>(RandomFraction(rng) * 2 - 1);
  }
  const std::vector<float> elements =
      Dequantized(GetParam(), QuantizeRow(GetParam(), values));
  ASSERT_EQ(elements.size(), values.size());
  // The range of 2 is cut into 16, 32, 64 or 256 steps.
  const TensorType type = GetParam();
  const bool of_16_steps =
      type == TensorType::kQ4_1 || type == TensorType::kQ4_K;
  const bool of_32_steps = type == TensorType::kQ5_0;
  const bool of_64_steps = type == TensorType::kQ6_K;
  const float bound = of_16_steps   ? 0.08f
                      : of_32_steps ? 0.07f
                      : of_64_steps ? 0.035f
                                    : 0.005f;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(elements[i], values[i], bound) << "element " << i;
  }
}

TEST_P(TensorTypeTest, ZerosStayZeros) {
  const std::vector<float> zeros(256);
  EXPECT_EQ(Dequantized(GetParam(), QuantizeRow(GetParam(), zeros)), zeros);
}

TEST(TensorTypesTest, TypesOfTheFormatThatAreNotOursAreUnknown) {
  // Q4_0, Q5_1, Q8_1, Q2_K, Q3_K, Q5_K, Q8_K, IQ2_XXS, I32, F64, MXFP4.
  for (const uint32_t type : {2u, 7u, 9u, 10u, 11u, 13u, 15u, 16u, 26u, 28u,
                              39u, 31u, 255u, 0x80000000u, 0xFFFFFFFFu}) {
    EXPECT_FALSE(IsKnown(type)) << type;
  }
}

TEST(TensorTypesTest, RowsNeedNoAlignment) {
  for (const TensorType type : kTensorTypes) {
    Rng rng(3);
    Row row = RandomRow(type, 2, rng);
    const std::vector<float> elements = Dequantized(type, row);
    row.insert(row.begin(), std::byte{0});
    std::vector<float> moved(elements.size());
    DequantizeRow(type, std::span(row).subspan(1), moved);
    EXPECT_EQ(moved, elements) << TensorTypeName(type);
  }
}

TEST(TensorTypesTest, InfinitiesOfScalesReachTheElements) {
  std::vector<std::byte> row(34, std::byte{1});
  row[0] = std::byte{0};
  row[1] = std::byte{0x7C};
  for (const float element : Dequantized(TensorType::kQ8_0, row)) {
    EXPECT_EQ(element, std::numeric_limits<float>::infinity());
  }
}

// Elements that another implementation (the Python package gguf 0.19, function
// quants.dequantize) gives for the bytes 7 i^2 + 37 i + 11 and these scales.
struct Golden {
  TensorType type;
  std::vector<std::pair<size_t, uint16_t>> halves;
  std::vector<std::pair<size_t, float>> elements;
};

const std::vector<Golden>& Goldens() {
  static const auto& goldens = *new std::vector<Golden>{
      {.type = TensorType::kQ8_0,
       .halves = {{0, 0x3555}},
       .elements = {{0, 0x1.2d428p+5f},
                    {1, -0x1.7a93p+4f},
                    {15, 0x1.12998p+5f},
                    {16, -0x1.52958p+5f},
                    {17, -0x1.cfe3p+4f},
                    {31, -0x1.17ee8p+5f}}},
      {.type = TensorType::kQ4_1,
       .halves = {{0, 0x2E66}, {2, 0xBC00}},
       .elements = {{0, 0x1.ffap-2f},
                    {1, -0x1.667p-1f},
                    {15, -0x1.9a8p-4f},
                    {16, -0x1p+0f},
                    {17, -0x1.336p-2f},
                    {31, -0x1p-12f}}},
      {.type = TensorType::kQ5_0,
       .halves = {{0, 0xB0CC}},
       .elements = {{0, -0x1.7fcp-1f},
                    {1, 0x1.a62p+0f},
                    {15, -0x1.cc8p-2f},
                    {16, -0x1.0cap+1f},
                    {17, -0x1.cc8p-1f},
                    {31, 0x1.0cap+1f}}},
      {.type = TensorType::kQ4_K,
       .halves = {{0, 0x1234}, {2, 0x2345}},
       .elements = {{0, -0x1.32c6cp-1f},
                    {1, -0x1.4a09cp-1f},
                    {17, -0x1.4a09cp-1f},
                    {33, 0x1.32fp-6f},
                    {64, -0x1.00924p-1f},
                    {95, -0x1.c7c38p-2f},
                    {100, -0x1.ff968p-2f},
                    {127, -0x1.55dccp-1f},
                    {128, -0x1.8f0ccp-1f},
                    {143, -0x1.899f4p-1f},
                    {160, -0x1.89248p-2f},
                    {200, 0x1.b54cp-5f},
                    {224, -0x1.5f8e4p-1f},
                    {255, -0x1.de3f8p-2f}}},
      {.type = TensorType::kQ6_K,
       .halves = {{208, 0x9345}},
       .elements = {{0, 0x1.451598p+0f},
                    {1, 0x1.14ec78p+0f},
                    {17, -0x1.36e2d4p+1f},
                    {33, 0x1.90bbap-2f},
                    {64, -0x1.6435p+0f},
                    {95, -0x1.5dd8ap+0f},
                    {100, 0x1.9d746p-1f},
                    {127, -0x1.f0254p-2f},
                    {128, 0x1.d84ad8p+0f},
                    {143, -0x1.a3d0cp-3f},
                    {160, 0x1.17e08p-4f},
                    {200, 0x1.5f6fb8p+0f},
                    {224, 0x1.70052p-1f},
                    {255, -0x1.245f18p+1f}}},
  };
  return goldens;
}

TEST(TensorTypesTest, ElementsAreThoseOfAnotherImplementation) {
  for (const Golden& golden : Goldens()) {
    Row row(static_cast<size_t>(BlockBytes(golden.type)));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<std::byte>((7 * i * i + 37 * i + 11) & 0xFF);
    }
    for (const auto& [at, bits] : golden.halves) {
      row[at] = static_cast<std::byte>(bits & 0xFF);
      row[at + 1] = static_cast<std::byte>(bits >> 8);
    }
    const std::vector<float> elements = Dequantized(golden.type, row);
    for (const auto& [i, element] : golden.elements) {
      EXPECT_EQ(elements[i], element)
          << TensorTypeName(golden.type) << " element " << i;
    }
  }
}

}  // namespace
}  // namespace blockmgr
