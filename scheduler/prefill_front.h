// PrefillFront: the block that each running prefill will publish next, by key.
// Another request that needs this block can wait for it instead of computing
// it (PrefixWaits).
//
// If two requests compute the same block, only the first is registered. Cost:
// O(1). Thread-compatible.
#ifndef SCHEDULER_PREFILL_FRONT_H_
#define SCHEDULER_PREFILL_FRONT_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include <absl/container/flat_hash_map.h>

#include "scheduler/request_state.h"

namespace blockmgr {

class PrefillFront {
 public:
  // Registers that the request computes the block with this key next.
  void Set(RequestState* request, const BlockKey& key) {
    if (request->hint.computing == key) return;
    Clear(request);
    if (by_key_.try_emplace(key, request).second) {
      request->hint.computing = key;
    }
  }
  // Removes the request's entry, if it has one.
  void Clear(RequestState* request) {
    if (!request->hint.computing.has_value()) return;
    by_key_.erase(*request->hint.computing);
    request->hint.computing.reset();
  }
  // Returns the request that computes this block next, or null if none does.
  const RequestState* Find(const BlockKey& key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  }
  size_t size() const { return by_key_.size(); }

 private:
  absl::flat_hash_map<BlockKey, RequestState*> by_key_;
};

// Returns the number of blocks from `begin` on that have equal keys in both
// sequences. A key covers all blocks before its own, so equal keys at a block
// mean equal keys before it, and a binary search finds the end. O(log blocks).
inline int32_t CountCommonBlocks(std::span<const BlockKey> a,
                                 std::span<const BlockKey> b, int32_t begin) {
  auto low = static_cast<size_t>(begin);
  size_t high = std::min(a.size(), b.size());
  if (low >= high) return 0;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (a[middle] == b[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<int32_t>(low) - begin;
}

}  // namespace blockmgr

#endif  // SCHEDULER_PREFILL_FRONT_H_
