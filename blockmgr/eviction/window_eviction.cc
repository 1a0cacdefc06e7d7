#include "blockmgr/eviction/window_eviction.h"

#include "blockmgr/base/check.h"

namespace blockmgr {

WindowEviction WindowEviction::Of(const EvictionPolicy& policy, int32_t window,
                                  int32_t cut, int32_t length) {
  BM_CHECK(IsCovered(window, cut, length));
  WindowEviction eviction;
  eviction.first = FirstOf(window, length);
  eviction.range = {.cut = cut - eviction.first,
                    .length = length - eviction.first};
  eviction.policy = policy;
  if (eviction.first > 0) {
    eviction.policy.protect.sinks = 0;
    if (policy.scorer.kind == ScorerKind::kStreaming) {
      eviction.policy.scorer.sinks = 0;
    }
  }
  return eviction;
}

}  // namespace blockmgr
