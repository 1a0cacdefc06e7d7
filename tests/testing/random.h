// Random numbers that follow from the seed alone, on every platform: those of
// the standard library's distributions do not.
#ifndef TESTS_TESTING_RANDOM_H_
#define TESTS_TESTING_RANDOM_H_

#include <cstdint>
#include <random>
#include <utility>

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

}  // namespace blockmgr

#endif  // TESTS_TESTING_RANDOM_H_
