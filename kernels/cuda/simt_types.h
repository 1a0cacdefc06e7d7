// Plain types and integer code that device kernels, the emulator and launchers
// share. C++17, no CUDA header.
#ifndef KERNELS_CUDA_SIMT_TYPES_H_
#define KERNELS_CUDA_SIMT_TYPES_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define SIMT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SIMT_HOST_DEVICE inline
#endif

namespace blockmgr::simt {

inline constexpr uint32_t kWarpThreads = 32;

// The bits of a 16-bit float, as they are in memory.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

// The most that one thread loads or stores at once.
struct alignas(16) Vector16 {
  uint32_t words[4];
};

SIMT_HOST_DEVICE uint32_t FloatBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

SIMT_HOST_DEVICE float BitsToFloat(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounds to nearest even. NaN stays a quiet NaN with its upper payload, as in
// base/dtype.h. The code uses integers, because the device's own conversion
// drops payloads, and stored rows must be equal bit for bit.
SIMT_HOST_DEVICE uint16_t BFloat16Bits(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace blockmgr::simt

#endif  // KERNELS_CUDA_SIMT_TYPES_H_
