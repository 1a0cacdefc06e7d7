// The simulator's own random numbers: distributions of the standard library
// differ between implementations, and a seed must mean the same run everywhere.
#ifndef TESTS_SIM_RANDOM_H_
#define TESTS_SIM_RANDOM_H_

#include <cstdint>
#include <vector>

#include "blockmgr/base/bits.h"

namespace blockmgr::sim {

// A stream of numbers from one seed. Draw once per statement: the order in
// which a compiler evaluates the arguments of a call is its own affair.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(SplitMix64(seed)) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15ull;
    return SplitMix64(state_);
  }
  // In [low, high]. REQUIRES: low <= high.
  int32_t Between(int32_t low, int32_t high) {
    const auto width = static_cast<uint64_t>(int64_t{high} - low + 1);
    return static_cast<int32_t>(low + static_cast<int64_t>(Next() % width));
  }
  // True once in n times; never when n is 0.
  bool OneIn(int32_t n) { return n > 0 && Between(1, n) == 1; }
  template <typename T>
  T Pick(const std::vector<T>& values) {
    return values[Next() % values.size()];
  }

 private:
  uint64_t state_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_RANDOM_H_
