// Turns floats into integers of the same order, for radix searches.
#ifndef KERNELS_CUDA_ORDER_KEY_CUH_
#define KERNELS_CUDA_ORDER_KEY_CUH_

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

inline constexpr uint32_t kNanKey = 0xFFFFFFFFu;

// Returns all ones if the sign bit is set, otherwise 0.
SIMT_DEVICE uint32_t SignMask(uint32_t bits) {
  return static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
}

// ScoreKey of eviction/score_order.h, on the device.
SIMT_DEVICE uint32_t OrderKey(float score) {
  constexpr uint32_t kSign = 0x80000000u;
  score += 0.0f;  // -0 is +0
  const uint32_t bits = simt::FloatBits(score);
  if ((bits & ~kSign) > 0x7F800000u) return kNanKey;
  // All bits of a negative number change, and the sign of others.
  return bits ^ (SignMask(bits) | kSign);
}

// Returns the number that has this key. REQUIRES: key != kNanKey.
SIMT_DEVICE float NumberOfKey(uint32_t key) {
  constexpr uint32_t kSign = 0x80000000u;
  return simt::BitsToFloat(key ^ (~SignMask(key) | kSign));
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_ORDER_KEY_CUH_
