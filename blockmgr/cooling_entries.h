// CoolingEntries: the entries of the prefix cache that no sequence holds any
// more, but that a step in flight may still touch. They are not reclaimable
// yet.
//
// A queue. Entries are added when they are released, hence in the order of
// their fences. They leave in this order, unless a sequence uses them again or
// they are dropped. Every call is O(1), amortised. A steady state allocates
// nothing. Thread-compatible.
#ifndef BLOCKMGR_COOLING_ENTRIES_H_
#define BLOCKMGR_COOLING_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

class CoolingEntries {
 public:
  static constexpr int32_t kNone = -1;

  // Allocates room for entries [0, num_entries).
  explicit CoolingEntries(int32_t num_entries) : tickets_(num_entries, 0) {}

  bool Contains(int32_t entry) const {
    return entry < std::ssize(tickets_) && tickets_[entry] != 0;
  }
  // Adds an entry of num_blocks blocks. The number must not change until
  // Remove. REQUIRES: !Contains(entry).
  void Add(int32_t entry, int32_t num_blocks);
  // REQUIRES: Contains(entry).
  void Remove(int32_t entry, int32_t num_blocks);
  // Returns the entry that was added first, or kNone.
  int32_t Front();
  // Returns the number of blocks of all entries.
  int32_t num_blocks() const { return num_blocks_; }
  // Returns the bytes of memory, without this object.
  int64_t metadata_bytes() const {
    return HeapBytes(queue_) + HeapBytes(tickets_);
  }

 private:
  // A place is stale if its ticket is no longer the entry's, because the entry
  // has been removed since. Front skips stale places.
  struct Place {
    int32_t entry;
    uint64_t ticket;
  };

  // Places before first_ are no longer part of the queue.
  std::vector<Place> queue_;
  size_t first_ = 0;
  // The ticket of each entry. 0 if the entry is not contained.
  std::vector<uint64_t> tickets_;
  uint64_t next_ticket_ = 1;
  int32_t num_blocks_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_COOLING_ENTRIES_H_
