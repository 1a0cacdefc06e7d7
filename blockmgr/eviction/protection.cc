#include "blockmgr/eviction/protection.h"

#include <algorithm>

namespace blockmgr {

ProtectedPositions::ProtectedPositions(const EvictionPolicy& policy,
                                       const EvictionRange& range)
    : cut_(range.cut),
      sinks_end_(std::min(policy.protected_sinks(), range.cut)),
      recent_begin_(std::clamp(range.length - policy.protected_recent(),
                               sinks_end_, range.cut)) {}

HeadSplit ProtectedPositions::Split(std::span<const int32_t> positions) const {
  const auto sinks =
      std::lower_bound(positions.begin(), positions.end(), sinks_end_);
  const auto recent = std::lower_bound(sinks, positions.end(), recent_begin_);
  HeadSplit split;
  split.num_sinks = static_cast<int32_t>(sinks - positions.begin());
  split.num_past = static_cast<int32_t>(recent - sinks);
  split.num_recent = static_cast<int32_t>(positions.end() - recent);
  return split;
}

}  // namespace blockmgr
