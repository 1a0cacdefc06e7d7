// ReclaimOrder: in which order entries of the prefix cache go when memory is
// short.
//
// Lowest priority first, then the one listed longest. Entries are small
// numbers; those that may go are listed. Retention is a wish, not a pin: an
// entry of high priority goes after the others, but it goes, and its wish ends
// with its duration, whereupon it is the last of the default priority.
//
// Cost: O(1) (intrusive lists, a bitmap of levels), O(log n) for an entry with
// a duration (a heap). The first duration takes memory for all entries; nothing
// else does, but for Grow. Threads: core thread.
#ifndef BLOCKMGR_RECLAIM_ORDER_H_
#define BLOCKMGR_RECLAIM_ORDER_H_

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

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
  void Grow(int32_t limit);

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
  // Ends the wishes that expire until now. A clock that goes back stands still
  // until it is where it was.
  void SetTime(int64_t now_ms);

  // Bytes of memory of its own: more once a wish has had a duration.
  int64_t metadata_bytes() const {
    return HeapBytes(nodes_) + HeapBytes(expiries_) + HeapBytes(expiry_of_);
  }
  // O(entries log entries), for tests.
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
    bool expires = false;  // then it is in expiries_
  };
  struct Level {
    int32_t head = kNone;  // goes first
    int32_t tail = kNone;
  };
  struct Expiry {
    int64_t ms = 0;
    uint64_t wish = 0;  // its number: of two at one time the older goes first
    int32_t entry = kNone;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
    friend auto operator<=>(const Expiry&, const Expiry&) = default;
  };
  void Link(int32_t entry);
  void Unlink(int32_t entry);
  void SetPriority(int32_t entry, uint8_t priority);
  void AddExpiry(int32_t entry, int64_t ms);
  void DropExpiry(int32_t entry);
  // Room in the heap for an expiry of every entry.
  void ReserveExpiries();
  // Puts one into the heap, whose place `hole` is free.
  void SettleExpiry(size_t hole, const Expiry& expiry);

  std::vector<Node> nodes_;  // by entry
  std::array<Level, kNumLevels> levels_;
  std::array<uint64_t, (kNumLevels + 63) / 64> occupied_{};  // bit per level
  std::vector<Expiry> expiries_;    // a heap, the first to come on top
  std::vector<int32_t> expiry_of_;  // by entry, into expiries_; or empty
  uint64_t next_wish_ = 1;
  int64_t now_ms_ = std::numeric_limits<int64_t>::min();
};

}  // namespace blockmgr

#endif  // BLOCKMGR_RECLAIM_ORDER_H_
