// Storage types of K and V: their names and conversions.
#ifndef BLOCKMGR_BASE_DTYPE_H_
#define BLOCKMGR_BASE_DTYPE_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <absl/strings/string_view.h>

namespace blockmgr {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// The names in flags and messages, in the order of DType.
inline constexpr std::array<absl::string_view, 3> kDTypeNames = {
    "float32", "bfloat16", "float16"};

constexpr absl::string_view DTypeName(DType dtype) {
  return kDTypeNames[static_cast<std::size_t>(dtype)];
}

// REQUIRES: one of kDTypeNames.
constexpr DType DTypeNamed(absl::string_view name) {
  return static_cast<DType>(std::ranges::find(kDTypeNames, name) -
                            kDTypeNames.begin());
}

constexpr int32_t DTypeBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// Both conversions to 16 bits round to nearest even. NaN stays NaN, becomes
// quiet, and keeps its sign and upper payload, as the instructions of
// processors do it.
inline uint16_t ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float FromBFloat16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

inline uint16_t ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const float magnitude = std::abs(value);
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | 0x7E00u | (bits >> 13 & 0x3FFu));
  }
  // 65520 is half a unit above the largest finite value.
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00u);
  uint32_t rounded = std::bit_cast<uint32_t>(magnitude);
  if (magnitude < 0x1p-14f) {
    // A subnormal result has the unit 2^-24. A float in [0.5, 1) has the same
    // unit, so that the addition rounds.
    rounded = std::bit_cast<uint32_t>(magnitude + 0.5f) - 0x3F000000u;
  } else {
    // The biases of the two exponents differ by 112.
    rounded += 0xFFFu + (rounded >> 13 & 1u) - (112u << 23);
    rounded >>= 13;
  }
  return static_cast<uint16_t>(sign | rounded);
}

inline float FromFloat16(uint16_t value) {
  const uint32_t sign = (value & 0x8000u) << 16;
  const uint32_t magnitude = value & 0x7FFFu;
  const uint32_t shifted = magnitude << 13;
  // Infinity and NaN have the greatest exponent of both types.
  if (magnitude >= 0x7C00u) {
    return std::bit_cast<float>(sign | 0x7F800000u | shifted);
  }
  // 2^112 is the difference of the biases. Subnormals become normal.
  const float scaled = std::bit_cast<float>(shifted) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// Returns element `index` of a row of K or V.
inline float LoadElement(DType dtype, const std::byte* row, int64_t index) {
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, row + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, row + index * 2, 2);
  return dtype == DType::kBFloat16 ? FromBFloat16(bits) : FromFloat16(bits);
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_DTYPE_H_
