// Random numbers that follow from the seed alone, on every platform: those of
// the standard library's distributions do not.
#ifndef TESTS_TESTING_RANDOM_H_
#define TESTS_TESTING_RANDOM_H_

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "blockmgr/base/bits.h"

namespace blockmgr {

using Rng = std::mt19937_64;

// Uniform in [low, high].
inline int32_t RandomInt(Rng& rng, int32_t low, int32_t high) {
  return low + static_cast<int32_t>(rng() % (int64_t{high} - low + 1));
}

// Uniform in [0, 1).
inline double RandomFraction(Rng& rng) {
  return static_cast<double>(rng() >> 11) * 0x1p-53;
}

inline bool RandomChance(Rng& rng, double probability) {
  return RandomFraction(rng) < probability;
}

template <typename Values>
void Shuffle(Values* values, Rng& rng) {
  for (int32_t i = static_cast<int32_t>(values->size()) - 1; i > 0; --i) {
    std::swap((*values)[i], (*values)[RandomInt(rng, 0, i)]);
  }
}

// A stream of numbers from a seed, for tests that keep theirs over the years.
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(SplitMix64(seed)) {}
  // In [low, high].
  int32_t Between(int32_t low, int32_t high) {
    state_ = SplitMix64(state_);
    return low +
           static_cast<int32_t>(state_ % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int32_t n) { return Between(1, n) == 1; }
  template <typename T>
  T Pick(const std::vector<T>& values) {
    return values[Between(0, static_cast<int32_t>(values.size()) - 1)];
  }
  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (auto i = static_cast<int32_t>(values->size()) - 1; i > 0; --i) {
      std::swap((*values)[i], (*values)[Between(0, i)]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace blockmgr

#endif  // TESTS_TESTING_RANDOM_H_
