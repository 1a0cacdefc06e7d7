// PrefixCacheLog: the latest changes of a prefix cache, by number.
#ifndef BLOCKMGR_PREFIX_CACHE_LOG_H_
#define BLOCKMGR_PREFIX_CACHE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

// Names an entry or a root of a prefix cache. Never reused.
using EntrySerial = uint64_t;
inline constexpr EntrySerial kNoSerial = 0;

struct PrefixCacheChange {
  EntrySerial serial = kNoSerial;
  int32_t entry = 0;  // below 0 if `serial` names a root
  bool removed = false;
};

// A ring. A new change overwrites the oldest one. The log stores no content:
// who reads it looks up added entries in the cache, if they are still there.
// Allocates at creation only. Thread-compatible.
class PrefixCacheLog {
 public:
  // REQUIRES: capacity > 0.
  explicit PrefixCacheLog(int32_t capacity)
      : changes_(static_cast<size_t>(capacity)) {}

  // The log has the changes [begin(), end()).
  uint64_t begin() const {
    return end_ < changes_.size() ? 0 : end_ - changes_.size();
  }
  uint64_t end() const { return end_; }
  // REQUIRES: begin() <= change < end().
  const PrefixCacheChange& operator[](uint64_t change) const {
    return changes_[change % changes_.size()];
  }
  void Append(const PrefixCacheChange& change) {
    changes_[end_++ % changes_.size()] = change;
  }

  int64_t metadata_bytes() const { return HeapBytes(changes_); }

 private:
  std::vector<PrefixCacheChange> changes_;
  uint64_t end_ = 0;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_PREFIX_CACHE_LOG_H_
