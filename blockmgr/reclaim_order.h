// ReclaimOrder: the order in which entries of the prefix cache are reclaimed
// (vLLM: evicted) when memory is short.
//
// An entry is a small number. Entries that may be reclaimed are listed. The
// entry with the lowest priority goes first. Of equal priorities, the entry
// that has been listed longest goes first.
//
// A retention wish sets the priority of an entry. It is no pin: an entry with a
// high priority goes after the others, but it does go. When the duration of a
// wish is over, the entry becomes the last one of the default priority.
//
// Cost: O(1) (lists, a bitmap of priorities), O(log n) for an entry with a
// duration (a heap). Only Grow and the first duration allocate, for all
// entries. Threads: core thread.
#ifndef BLOCKMGR_RECLAIM_ORDER_H_
#define BLOCKMGR_RECLAIM_ORDER_H_

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "blockmgr/base/check.h"
#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

// Priorities of entries, 0 to kMaxPriority. The lowest is reclaimed first.
inline constexpr uint8_t kMaxPriority = 100;
inline constexpr uint8_t kDefaultPriority = 35;
// The priority of an entry that another entry of the cache can stand in for.
inline constexpr uint8_t kSupersededPriority = kDefaultPriority - 1;

// A wish for how long the prefix cache should keep an entry.
struct Retention {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  uint8_t priority = kDefaultPriority;  // the lowest goes first
  // From this time on, the priority is the default.
  int64_t expires_ms = kNever;
  friend bool operator==(const Retention&, const Retention&) = default;
};

class ReclaimOrder {
 public:
  // Entries are numbers below `limit`. Grow raises the limit.
  explicit ReclaimOrder(int32_t limit) : nodes_(limit) {}
  void Grow(int32_t limit);

  bool IsListed(int32_t entry) const { return nodes_[entry].listed; }
  // Lists an entry as the last one of its priority. REQUIRES: the entry is not
  // listed.
  void List(int32_t entry) {
    BM_CHECK(!nodes_[entry].listed);
    nodes_[entry].listed = true;
    Link(entry);
  }
  // REQUIRES: the entry is listed.
  void Unlist(int32_t entry) {
    BM_CHECK(nodes_[entry].listed);
    Unlink(entry);
    nodes_[entry].listed = false;
  }
  // Returns the entry that goes first. REQUIRES: an entry is listed.
  int32_t next() const;

  // Replaces the wish for an entry, which may be listed or not.
  void SetRetention(int32_t entry, Retention retention);
  // Sets whether another entry stands in for this entry. A superseded entry
  // goes before the entries of the default priority, unless there is a wish for
  // it.
  void SetSuperseded(int32_t entry, bool superseded);
  // Forgets the wish for an entry. REQUIRES: the entry is not listed.
  void Forget(int32_t entry);
  // Ends the wishes that expire at now_ms or before. A time before the latest
  // one is ignored.
  void SetTime(int64_t now_ms);

  // Returns the bytes of memory. They grow with the first duration.
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
    int32_t previous = kNone;  // neighbours among the entries of its priority
    int32_t next = kNone;
    uint8_t priority = kDefaultPriority;
    bool listed = false;
    bool superseded = false;
    bool expires = false;  // expiries_ has an item for it
  };
  struct Level {
    int32_t head = kNone;  // goes first
    int32_t tail = kNone;
  };
  struct Expiry {
    int64_t ms = 0;
    uint64_t wish = 0;  // number; of equal times, the lowest number ends first
    int32_t entry = kNone;
    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
    friend auto operator<=>(const Expiry&, const Expiry&) = default;
  };
  // Inline, because an eviction lists thousands of blocks at once.
  void Link(int32_t entry) {
    Node& node = nodes_[entry];
    Level& level = levels_[node.priority];
    node.previous = level.tail;
    node.next = kNone;
    (level.tail == kNone ? level.head : nodes_[level.tail].next) = entry;
    level.tail = entry;
    occupied_[node.priority / 64] |= uint64_t{1} << (node.priority % 64);
  }
  void Unlink(int32_t entry) {
    Node& node = nodes_[entry];
    Level& level = levels_[node.priority];
    (node.previous == kNone ? level.head : nodes_[node.previous].next) =
        node.next;
    (node.next == kNone ? level.tail : nodes_[node.next].previous) =
        node.previous;
    node.previous = node.next = kNone;
    if (level.head == kNone) {
      occupied_[node.priority / 64] &= ~(uint64_t{1} << (node.priority % 64));
    }
  }
  void SetPriority(int32_t entry, uint8_t priority);
  void AddExpiry(int32_t entry, int64_t ms);
  void DropExpiry(int32_t entry);
  // Allocates room for an expiry of every entry.
  void ReserveExpiries();
  // Stores an expiry in the heap. The place `hole` is free before the call.
  void SettleExpiry(size_t hole, const Expiry& expiry);

  std::vector<Node> nodes_;  // indexed by entry
  std::array<Level, kNumLevels> levels_;
  std::array<uint64_t, (kNumLevels + 63) / 64> occupied_{};  // bit per level
  std::vector<Expiry> expiries_;    // a heap, the earliest on top
  std::vector<int32_t> expiry_of_;  // by entry, place in expiries_; or empty
  uint64_t next_wish_ = 1;
  int64_t now_ms_ = std::numeric_limits<int64_t>::min();
};

}  // namespace blockmgr

#endif  // BLOCKMGR_RECLAIM_ORDER_H_
