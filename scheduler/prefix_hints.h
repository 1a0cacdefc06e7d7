// PrefixHints: which waiting requests have a longer cached prefix than when
// they were last looked at.
//
// A waiting request is listed under the key of the first block that it did not
// find; when a block with that key is published, the whole list becomes stale
// at once, and is looked at again a few at a time. What is reclaimed is not
// followed: a hint is only where to look first.
//
// Cost: O(log requests) for each call but Reserve. Thread-compatible.
#ifndef SCHEDULER_PREFIX_HINTS_H_
#define SCHEDULER_PREFIX_HINTS_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "scheduler/request_state.h"

namespace blockmgr {

// Where a list is: those that are not stale by the block that they miss, then
// the stale ones by when the block was published.
struct PrefixHintKey {
  uint64_t published = 0;  // a number; 0: not since
  BlockKey block;
  friend bool operator<(const PrefixHintKey& a, const PrefixHintKey& b) {
    return std::tie(a.published, a.block.low, a.block.high) <
           std::tie(b.published, b.block.low, b.block.high);
  }
};

// Requests that miss the same block next.
struct PrefixHintList {
  PrefixHintKey key;
  RequestState* first = nullptr;  // the others follow in PrefixHint::next
};

class PrefixHints {
 public:
  // Takes memory for so many requests: as long as there are no more of them,
  // nothing else does. O(those it had none for).
  void Reserve(int32_t num_requests);
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
  // anew within one step. One whose nodes can be taken out: list and place stay
  // in one piece of memory, which is kept for the next list.
  using Lists = std::map<PrefixHintKey, PrefixHintList>;
  // The list of those that miss a block, made if there is none.
  PrefixHintList* ListOf(const BlockKey& block);

  Lists lists_;                          // none is empty
  std::vector<Lists::node_type> spare_;  // with room for all
  uint64_t num_published_ = 0;
  int32_t num_requests_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_PREFIX_HINTS_H_
