// Small integer arithmetic.
#ifndef BLOCKMGR_BASE_BITS_H_
#define BLOCKMGR_BASE_BITS_H_

#include <concepts>
#include <cstdint>

namespace blockmgr {

// Returns ceil(a / b), also where a + b - 1 is not representable. REQUIRES:
// a >= 0, b > 0.
template <std::integral T>
constexpr T CeilDiv(T a, T b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

// Returns SplitMix64 of x (Steele, Lea, Flood 2014), the finaliser of a
// counter. It serves as a stateless, portable pseudo-random function and mixes
// state hashes.
constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_BITS_H_
