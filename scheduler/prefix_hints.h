// PrefixHints: which waiting requests have a longer cached prefix than when
// they were last looked at.
//
// A waiting request is listed under the key of the first block that it did not
// find; when a block with that key is published, the whole list becomes stale
// at once, and is looked at again a few at a time. What is reclaimed is not
// followed: a hint is only where to look first.
//
// Cost: O(log requests) for each call. Thread-compatible.
#ifndef SCHEDULER_PREFIX_HINTS_H_
#define SCHEDULER_PREFIX_HINTS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <absl/container/btree_map.h>

#include "scheduler/request_state.h"

namespace blockmgr {

// Requests that miss the same block next.
struct PrefixHintList {
  BlockKey key;
  std::vector<RequestState*> requests;
  bool stale = false;  // the block has been published since
};

class PrefixHints {
 public:
  // Remembers that `num_blocks` are cached; `max_blocks` is as far as a hit may
  // go. REQUIRES: not remembered.
  void Add(RequestState* request, int32_t num_blocks, int32_t max_blocks);
  // Forgets it, if it is remembered.
  void Remove(RequestState* request);
  void OnPublished(const BlockKey& key);
  // Forgets a request that is to be looked at again, and then to be added;
  // null: none.
  RequestState* PopStale();

  // Requests remembered.
  int32_t size() const { return num_requests_; }
  void CheckInvariants() const;

 private:
  // In a tree: a hash table as large as the queue would now and then be built
  // anew within one step.
  using Key = std::pair<uint64_t, uint64_t>;
  static Key KeyOf(const BlockKey& key) { return {key.low, key.high}; }

  absl::btree_map<Key, std::unique_ptr<PrefixHintList>> lists_;
  std::vector<std::unique_ptr<PrefixHintList>> stale_;
  int32_t num_requests_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_PREFIX_HINTS_H_
