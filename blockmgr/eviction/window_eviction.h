// An eviction from a layer group with a sliding window, by policy. Tokens that
// leave a window go without one: see BlockManager::ReleaseOutOfSpan.
#ifndef BLOCKMGR_EVICTION_WINDOW_EVICTION_H_
#define BLOCKMGR_EVICTION_WINDOW_EVICTION_H_

#include <cstdint>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// An eviction from a window covers the positions [first, cut) of a sequence of
// `length` tokens: the positions below the cut that the token at position
// `length` attends to. Positions before `first` have left the window and are
// dropped. A plain value. The manager and the engine must agree on it, so both
// use this type.
struct WindowEviction {
  int32_t first = 0;
  // The arguments for PageTotal and SelectEntries, with positions counted from
  // `first`. If first > 0, the policy protects no sinks: they have left the
  // window.
  EvictionRange range;
  EvictionPolicy policy;

  // REQUIRES: IsCovered(window, cut, length).
  static WindowEviction Of(const EvictionPolicy& policy, int32_t window,
                           int32_t cut, int32_t length);
  // A window of 0 means all tokens, as in ModelLayout::window_of.
  static int32_t FirstOf(int32_t window, int32_t length) {
    return window == 0 || length + 1 <= window ? 0 : length + 1 - window;
  }
  // Returns whether the window has a position below the cut.
  static bool IsCovered(int32_t window, int32_t cut, int32_t length) {
    return FirstOf(window, length) < cut;
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_WINDOW_EVICTION_H_
