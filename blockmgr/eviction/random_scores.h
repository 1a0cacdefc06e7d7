// Random scores, for comparison: every scorer should keep more of the output.
#ifndef BLOCKMGR_EVICTION_RANDOM_SCORES_H_
#define BLOCKMGR_EVICTION_RANDOM_SCORES_H_

#include <cstdint>
#include <span>

namespace blockmgr {

// Sets scores[i] to a uniform number in [0, 1). The number depends on (seed,
// layer, head, positions[i]) alone. It is the same on every machine, after
// every eviction, and for any part of the entries. REQUIRES: as many scores as
// positions. Thread-safe.
void RandomScores(int32_t seed, int32_t layer, int32_t head,
                  std::span<const int32_t> positions, std::span<float> scores);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_RANDOM_SCORES_H_
