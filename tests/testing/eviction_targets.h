// Targets of evictions for tests.
#ifndef TESTS_TESTING_EVICTION_TARGETS_H_
#define TESTS_TESTING_EVICTION_TARGETS_H_

#include <cstdint>

#include "blockmgr/eviction/policy.h"

namespace blockmgr {

// Keeps so many entries per head.
inline EvictionTarget KeepTokens(int32_t tokens) {
  EvictionTarget target;
  target.kind = EvictionTarget::Kind::kTokens;
  target.tokens = tokens;
  return target;
}

// Keeps this part of the entries, a decimal in (0, 1].
inline EvictionTarget Keep(const char* ratio) {
  EvictionTarget target;
  target.ratio = *KeepRatio::Parse(ratio);
  return target;
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_EVICTION_TARGETS_H_
