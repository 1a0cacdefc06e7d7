// PrefixHints: finds the waiting requests whose cached prefix may have become
// longer since the last lookup.
//
// A waiting request is on the list of the first block that its last lookup did
// not find. When a block with this key is published, the whole list becomes
// stale at once. The scheduler then looks up the requests of stale lists again,
// a few at a time. PrefixHints does not notice when the cache reclaims blocks,
// so a remembered prefix may be too long.
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

// PrefixHintKey orders the lists: first lists that are not stale, by missing
// block, then stale lists, the one that became stale last at the end.
struct PrefixHintKey {
  uint64_t published = 0;  // number of the publication, 0 if not stale
  BlockKey block;
  friend bool operator<(const PrefixHintKey& a, const PrefixHintKey& b) {
    return std::tie(a.published, a.block.low, a.block.high) <
           std::tie(b.published, b.block.low, b.block.high);
  }
};

// PrefixHintList links the requests that miss the same block.
struct PrefixHintList {
  PrefixHintKey key;
  RequestState* first = nullptr;  // the others follow in PrefixHintLinks::next_
};

class PrefixHints {
 public:
  // Allocates memory for so many requests. No other call allocates while at
  // most so many are listed. O(requests added since the last call).
  void Reserve(int32_t num_requests);
  // Remembers that the first num_blocks blocks of the request are cached. A hit
  // can have at most max_blocks; if the cached prefix is that long, the request
  // is not listed. REQUIRES: the request is not listed.
  void Add(RequestState* request, int32_t num_blocks, int32_t max_blocks);
  // Takes the request off its list, if it is on one.
  void Remove(RequestState* request);
  // Makes the list of this block, if any, stale.
  void OnPublished(const BlockKey& key);
  // Takes one request off a stale list and returns it. The caller looks up its
  // prefix and calls Add again. Returns null if no list is stale.
  RequestState* PopStale();

  // Returns the number of requests on lists.
  int32_t size() const { return num_requests_; }
  void CheckInvariants() const;

 private:
  // A tree and not a hash table, because a table as large as the queue would
  // sometimes rehash within one step. The node of a list that became empty is
  // reused for the next list.
  using Lists = std::map<PrefixHintKey, PrefixHintList>;
  // Returns the list of requests that miss a block. Adds it if there is none.
  PrefixHintList* ListOf(const BlockKey& block);

  Lists lists_;                          // no list is empty
  std::vector<Lists::node_type> spare_;  // nodes to reuse
  uint64_t num_published_ = 0;
  int32_t num_requests_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_PREFIX_HINTS_H_
