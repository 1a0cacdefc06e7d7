// How many blocks a request needs at its peak, eviction taken into account.
#ifndef SCHEDULER_FOOTPRINT_H_
#define SCHEDULER_FOOTPRINT_H_

#include <cstdint>
#include <span>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_manager_types.h"
#include "blockmgr/sequence_cache.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"

namespace blockmgr {

// Where a sequence computes on from: its region, then whole blocks from its cut
// on.
struct Holding {
  int32_t region_blocks = 0;
  int32_t cut = 0;
  // Of its regions in groups with a window.
  int32_t window_region_blocks = 0;
};

// Blocks at the peak of a sequence that computes on from `now`, alone in the
// pool, until `length` positions are computed, at most `chunk` of them in a
// step: groups with a window hold what is in it, and that, and their regions,
// if there are to be any. Compressions to come
// (ascending; those above `length` do not matter) replace what is below their
// cut by their region, as far as that frees blocks; `decode`, if any, goes on
// after the last of them; a `squeeze` may come at any time. An upper bound
// where that has a table, exact without. REQUIRES: a table is known until
// `length`. Cost: O(compressions).
int32_t PeakBlocks(int32_t length, int32_t chunk,
                   std::span<const CompressionPoint> compressions,
                   const ModelLayout& layout, Holding now = {},
                   const DecodeCompression* decode = nullptr,
                   const EvictionCommand* squeeze = nullptr);

// Blocks that a running request will still take until it has computed `length`
// positions, at most `chunk` in a step, in the worst of the steps until then:
// what its orders in flight and those to come give back is counted, when they
// free blocks at all. in_windows: what groups with a window hold when the steps
// in flight are settled, but for what others use: that does not come back when
// it falls out (BlockManager::NumOwnInWindows). Not counted: destinations of
// copies, which orders do without when blocks are short.
int32_t RemainingBlocks(const RequestState& request,
                        const SequenceCache& sequence,
                        const OwnInWindows& in_windows, int32_t length,
                        int32_t chunk, const ModelLayout& layout);

// Blocks that groups with a window take for the next num_tokens of a sequence
// with so many positions reserved, at most `chunk` of them in a step.
int32_t WindowGrowth(int32_t num_reserved, int32_t num_tokens, int32_t chunk,
                     const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_FOOTPRINT_H_
