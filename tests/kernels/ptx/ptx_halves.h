// 16-bit floats as the device has them: rounded to the nearest, ties to even,
// and one value for all that is not a number.
#ifndef TESTS_KERNELS_PTX_PTX_HALVES_H_
#define TESTS_KERNELS_PTX_PTX_HALVES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace blockmgr::ptx {

inline float FloatOfBFloat(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline uint16_t BFloatOfFloat(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const auto bits = std::bit_cast<uint32_t>(value);
  // What is cut off is compared with half a unit; infinity carries over.
  const uint32_t rest = bits & 0xFFFFu;
  uint32_t upper = bits >> 16;
  if (rest > 0x8000u || (rest == 0x8000u && (upper & 1u) != 0)) ++upper;
  return static_cast<uint16_t>(upper);
}

inline float FloatOfHalf(uint16_t bits) {
  const uint32_t sign = bits >> 15;
  const uint32_t exponent = bits >> 10 & 31u;
  const uint32_t fraction = bits & 1023u;
  if (exponent == 31) {
    return std::bit_cast<float>(sign << 31 | 0xFFu << 23 | fraction << 13);
  }
  const float size =
      exponent == 0
          ? std::ldexp(static_cast<float>(fraction), -24)
          : std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
  return sign != 0 ? -size : size;
}

inline uint16_t HalfOfFloat(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000u : 0);
  const float size = std::fabs(value);
  if (size == 0.0f) return sign;                // which has no exponent
  if (size >= 65520.0f) return sign | 0x7C00u;  // rounds to infinity
  int exponent = 0;
  std::frexp(size, &exponent);
  // Of 11 bits, fewer where the least exponent is reached. nearbyint ties to
  // even.
  const int unit = std::max(exponent - 11, -24);
  const auto count =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(size, -unit)));
  if (unit == -24) return static_cast<uint16_t>(sign | count);
  return static_cast<uint16_t>(sign + (static_cast<uint32_t>(unit + 24) << 10) +
                               count);
}

}  // namespace blockmgr::ptx

#endif  // TESTS_KERNELS_PTX_PTX_HALVES_H_
