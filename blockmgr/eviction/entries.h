// Reads an EntriesView head by head.
#ifndef BLOCKMGR_EVICTION_ENTRIES_H_
#define BLOCKMGR_EVICTION_ENTRIES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockmgr/eviction/select.h"

namespace blockmgr {

// Aborts unless the arrays fit each other and `shape`.
void CheckEntries(const HeadShape& shape, const EvictionRange& range,
                  const EntriesView& entries);

// Returns the positions of the candidates of one (layer, head).
std::span<const int32_t> HeadPositions(const EntriesView& entries,
                                       int64_t head_index);

// Appends the order keys (score_order.h) of entries [begin, begin + count):
// keys of their scores, or of their positions if the view has no scores.
void AppendKeys(const EntriesView& entries, int64_t begin, int64_t count,
                std::vector<uint32_t>* keys);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_ENTRIES_H_
