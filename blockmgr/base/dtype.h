// Storage types of K and V, and bfloat16 conversion.
#ifndef BLOCKMGR_BASE_DTYPE_H_
#define BLOCKMGR_BASE_DTYPE_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace blockmgr {

enum class DType : uint8_t { kFloat32, kBFloat16 };

constexpr int32_t DTypeBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// Round to nearest even; NaN stays NaN (quiet).
inline uint16_t ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float FromBFloat16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_DTYPE_H_
