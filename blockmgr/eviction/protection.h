// The candidates of an eviction that are protected. The protected positions
// follow from policy and range alone. A head may hold only a part of them.
#ifndef BLOCKMGR_EVICTION_PROTECTION_H_
#define BLOCKMGR_EVICTION_PROTECTION_H_

#include <cstdint>
#include <span>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// The candidates of one head, ascending by position, form three runs of ranks:
// protected sinks, the unprotected past, protected recent entries.
struct HeadSplit {
  int32_t num_sinks = 0;
  int32_t num_past = 0;
  int32_t num_recent = 0;
  int32_t num_protected() const { return num_sinks + num_recent; }
  int32_t num_entries() const { return num_sinks + num_past + num_recent; }
};

// The protected positions below the cut: [0, sinks_end) and [recent_begin,
// cut), with sinks_end <= recent_begin. A plain value.
class ProtectedPositions {
 public:
  ProtectedPositions(const EvictionPolicy& policy, const EvictionRange& range);

  // Returns the number of protected positions, whether or not a head holds
  // them.
  int32_t count() const { return sinks_end_ + cut_ - recent_begin_; }
  // REQUIRES: `positions` ascending and below the cut. O(log n).
  HeadSplit Split(std::span<const int32_t> positions) const;

 private:
  int32_t cut_;
  int32_t sinks_end_;
  int32_t recent_begin_;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_PROTECTION_H_
