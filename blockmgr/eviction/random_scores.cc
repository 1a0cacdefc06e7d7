#include "blockmgr/eviction/random_scores.h"

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Mixes a value into a key. Different values always give different keys.
uint64_t Mix(uint64_t key, int32_t value) {
  return SplitMix64(key ^ static_cast<uint32_t>(value));
}

}  // namespace

void RandomScores(int32_t seed, int32_t layer, int32_t head,
                  std::span<const int32_t> positions, std::span<float> scores) {
  BM_CHECK(positions.size() == scores.size());
  const uint64_t key = Mix(Mix(Mix(0, seed), layer), head);
  for (size_t i = 0; i < positions.size(); ++i) {
    // A score has 24 bits. So each value is exact, and none rounds to 1.
    scores[i] = static_cast<float>(Mix(key, positions[i]) >> 40) * 0x1p-24f;
  }
}

}  // namespace blockmgr
