// Functions that count the blocks a request needs, with its evictions taken
// into account.
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

// Holding is what a sequence holds before it computes on: in group 0 a region
// that stands for [0, cut), then whole blocks from the cut on.
struct Holding {
  int32_t region_blocks = 0;
  int32_t cut = 0;
  // Blocks of the regions in window groups.
  int32_t window_region_blocks = 0;
};

// Returns the most blocks that a sequence holds, in all groups, while it
// computes on from `now` until `length` positions are computed, at most `chunk`
// in a step. The sequence is alone in the pool.
//
// `compressions` are those to come, ascending; those above `length` do not
// matter. A compression replaces all blocks below its cut by its region, if
// that frees blocks. `decode` may be null; its compressions follow the last of
// `compressions`. `squeeze` may be null; it may come at any time. A window
// group holds the pages of its window and of one chunk, and its region if
// there will be one.
//
// The count is exact for group 0, except that `decode` with a budget table
// gives an upper bound. REQUIRES: such a table is known until `length`
// (DecodeCompression::end). O(compressions).
int32_t PeakBlocks(int32_t length, int32_t chunk,
                   std::span<const CompressionPoint> compressions,
                   const ModelLayout& layout, Holding now = {},
                   const DecodeCompression* decode = nullptr,
                   const EvictionCommand* squeeze = nullptr);

// Returns the most blocks that a running request will hold beyond its present
// ones until it has computed `length` positions, at most `chunk` in a step.
//
// Blocks that its evictions in flight and to come give back are deducted. Fresh
// destinations are not counted, because orders do without copies when blocks
// are short. `in_windows` (BlockManager::CountOwnInWindows) has the blocks that
// are in windows once the steps in flight are settled. Blocks that other
// sequences use are left out, because they do not come back when they leave the
// window.
int32_t CountRemainingBlocks(const RequestState& request,
                             const SequenceCache& sequence,
                             const OwnInWindows& in_windows, int32_t length,
                             int32_t chunk, const ModelLayout& layout);

// Returns the blocks that window groups take for the next num_tokens tokens of
// a sequence that has num_reserved positions reserved. A step computes at most
// `chunk` of the tokens.
int32_t WindowGrowth(int32_t num_reserved, int32_t num_tokens, int32_t chunk,
                     const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_FOOTPRINT_H_
