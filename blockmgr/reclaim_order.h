// ReclaimOrder: in which order entries of the prefix cache go when memory is
// short.
//
// Lowest priority first, then the one listed longest. Entries are small
// numbers; those that may go are listed. Retention is a wish, not a pin: an
// entry of high priority goes after the others, but it goes, and its wish ends
// with its duration, whereupon it is the last of the default priority.
//
// Cost: O(1) (intrusive lists, a bitmap of levels), O(log n) for an entry with
// a duration. Threads: core thread.
#ifndef BLOCKMGR_RECLAIM_ORDER_H_
#define BLOCKMGR_RECLAIM_ORDER_H_

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

// How long the prefix cache should keep something.
inline constexpr uint8_t kMaxPriority = 100;
inline constexpr uint8_t kDefaultPriority = 35;
// Of what something else in the cache stands for.
inline constexpr uint8_t kSupersededPriority = kDefaultPriority - 1;
struct Retention {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  uint8_t priority = kDefaultPriority;  // the lower goes first
  int64_t expires_ms = kNever;          // then the priority is the default
  friend bool operator==(const Retention&, const Retention&) = default;
};

class ReclaimOrder {
 public:
  // Entries are below `limit`, which may grow.
  explicit ReclaimOrder(int32_t limit) : nodes_(limit) {}
  void Grow(int32_t limit) { nodes_.resize(limit); }

  bool IsListed(int32_t entry) const { return nodes_[entry].listed; }
  // As the last of its priority. REQUIRES: not listed.
  void List(int32_t entry);
  // REQUIRES: listed.
  void Unlist(int32_t entry);
  // The entry to go first. REQUIRES: one is listed.
  int32_t next() const;

  // Replaces the wish for an entry, listed or not.
  void SetRetention(int32_t entry, Retention retention);
  // Something else stands for the entry: unless there is a wish for it, it goes
  // before those of the default priority, until it turns out to be of use.
  void SetSuperseded(int32_t entry, bool superseded);
  // Drops its wish. REQUIRES: not listed.
  void Forget(int32_t entry);
  // Ends the wishes that expire until now; time never goes back.
  void SetTime(int64_t now_ms);

  // Bytes of memory of its own: a part for entries, one for expiring wishes.
  int64_t metadata_bytes() const {
    return HeapBytes(nodes_) + HeapBytes(expiry_of_) + HeapBytes(expiries_);
  }
  // O(entries), for tests.
  uint64_t StateHash() const;
  void CheckInvariants() const;

 private:
  static constexpr int32_t kNone = -1;
  static constexpr size_t kNumLevels = kMaxPriority + 1;
  struct Node {
    int32_t previous = kNone;  // in the list of its priority
    int32_t next = kNone;
    uint8_t priority = kDefaultPriority;
    bool listed = false;
    bool superseded = false;
    bool expires = false;  // then expiry_of_ tells when
  };
  struct Level {
    int32_t head = kNone;  // goes first
    int32_t tail = kNone;
  };
  using Expiry = std::pair<int64_t, uint64_t>;  // ms, number of the wish
  void Link(int32_t entry);
  void Unlink(int32_t entry);
  void SetPriority(int32_t entry, uint8_t priority);
  void DropExpiry(int32_t entry);

  std::vector<Node> nodes_;  // by entry
  std::array<Level, kNumLevels> levels_;
  std::array<uint64_t, (kNumLevels + 63) / 64> occupied_{};  // bit per level
  absl::flat_hash_map<int32_t, Expiry> expiry_of_;
  std::map<Expiry, int32_t> expiries_;  // entries
  uint64_t next_wish_ = 1;
  int64_t now_ms_ = std::numeric_limits<int64_t>::min();
};

}  // namespace blockmgr

#endif  // BLOCKMGR_RECLAIM_ORDER_H_
