// Noise for scores: what every scorer must beat.
#ifndef BLOCKMGR_EVICTION_RANDOM_SCORES_H_
#define BLOCKMGR_EVICTION_RANDOM_SCORES_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// scores[i], in [0, 1) and uniform, is a function of (seed, layer, head,
// positions[i]) alone: the same on every machine, after every eviction, for any
// part of the entries. REQUIRES: as many scores as positions. Thread-safe.
void RandomScores(int32_t seed, int32_t layer, int32_t head,
                  std::span<const int32_t> positions, std::span<float> scores);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_RANDOM_SCORES_H_
