// KeyLogDeterminant: a measure of how far apart the kept keys of a head point,
// by which KeyDiff (2504.15364) shows that its keys are diverse.
#ifndef BENCH_EVICT_KEY_VOLUME_H_
#define BENCH_EVICT_KEY_VOLUME_H_

#include <cstdint>
#include <span>

#include "bench/evict/tensors.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// Returns ln det(I + U U^T), U the keys, each divided by its length: 0 for
// none, n ln 2 for n keys at right angles, ln(1 + n) for n equal ones. The
// identity keeps it finite where there are more keys than dimensions. A key of
// length 0 counts as none. `keys` is [length, head_dim]; `kept` are positions.
// Cost: O(kept * head_dim^2 + head_dim^3), in double.
double KeyLogDeterminant(std::span<const float> keys, int32_t head_dim,
                         std::span<const int32_t> kept);

// Returns the mean over all layers and KV heads. REQUIRES: `keep` is of these
// tensors, with positions as ranks; every layer has keys.
double MeanKeyLogDeterminant(const KeepSets& keep, const Tensors& tensors);

}  // namespace blockmgr

#endif  // BENCH_EVICT_KEY_VOLUME_H_
