// CoolingEntries: entries of the prefix cache that nobody else holds any more,
// but that a step in flight may still touch.
//
// They come in the order in which they were released, hence of their fences,
// and leave in it, but for those that are used or dropped meanwhile. Every call
// is O(1), amortised; in a steady state nothing is allocated.
// Thread-compatible.
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

  // Room for entries [0, num_entries) from the start.
  explicit CoolingEntries(int32_t num_entries) : tickets_(num_entries, 0) {}

  bool Contains(int32_t entry) const {
    return entry < std::ssize(tickets_) && tickets_[entry] != 0;
  }
  // REQUIRES: !Contains(entry). num_blocks: that it has, as long as it is here.
  void Add(int32_t entry, int32_t num_blocks);
  // REQUIRES: Contains(entry).
  void Remove(int32_t entry, int32_t num_blocks);
  // The one that came first; kNone when there is none.
  int32_t Front();
  // Of all entries.
  int32_t num_blocks() const { return num_blocks_; }
  // Bytes of memory, without this object.
  int64_t metadata_bytes() const {
    return HeapBytes(queue_) + HeapBytes(tickets_);
  }

 private:
  // Stale, and ignored, when the entry has left since: its ticket is not the
  // entry's.
  struct Place {
    int32_t entry;
    uint64_t ticket;
  };

  std::vector<Place> queue_;  // from first_ on
  size_t first_ = 0;
  std::vector<uint64_t> tickets_;  // by entry; 0: not here
  uint64_t next_ticket_ = 1;
  int32_t num_blocks_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_COOLING_ENTRIES_H_
