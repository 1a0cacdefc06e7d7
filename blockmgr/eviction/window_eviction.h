// An eviction from a layer group with a sliding window.
#ifndef BLOCKMGR_EVICTION_WINDOW_EVICTION_H_
#define BLOCKMGR_EVICTION_WINDOW_EVICTION_H_

#include <cstdint>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// What it covers: positions [first, cut) of a sequence of `length` tokens, all
// that the token at position `length` attends to and that is below the cut.
// What has fallen out just goes. A plain value; manager and engine must agree
// on it, and both get it from here.
struct WindowEviction {
  int32_t first = 0;
  // For PageTotal and SelectEntries, with positions counted from `first`: the
  // range, and the policy, which protects no sinks where they have fallen out.
  EvictionRange range;
  EvictionPolicy policy;

  // REQUIRES: IsCovered(window, cut, length).
  static WindowEviction Of(const EvictionPolicy& policy, int32_t window,
                           int32_t cut, int32_t length);
  static int32_t FirstOf(int32_t window, int32_t length) {
    return length + 1 <= window ? 0 : length + 1 - window;
  }
  // Whether there is anything below the cut.
  static bool IsCovered(int32_t window, int32_t cut, int32_t length) {
    return FirstOf(window, length) < cut;
  }
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_WINDOW_EVICTION_H_
