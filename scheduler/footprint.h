// How many blocks a request needs at its peak, eviction taken into account.
#ifndef SCHEDULER_FOOTPRINT_H_
#define SCHEDULER_FOOTPRINT_H_

#include <cstdint>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/select.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"

namespace blockmgr {

HeadShape ShapeOf(const ModelLayout& layout);

// The largest cut of an eviction when `length` tokens are computed: whole pages,
// the last token stays in the tail.
int32_t LargestCut(int32_t length, int32_t page_size);

// Pages of the region that a compression point makes.
int64_t PagesOf(const CompressionPoint& point, const ModelLayout& layout);

// Whole blocks to hold those pages.
int32_t RegionBlocks(const CompressionPoint& point, const ModelLayout& layout);

// Blocks at the peak of a request that computes `last_length` positions, alone
// in the pool: without eviction all of them; with after_prefill the prompt, or
// the region and everything after its cut.
int32_t PeakBlocks(int32_t num_prompt, int32_t last_length,
                   const CompressionPoint* after_prefill,
                   const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_FOOTPRINT_H_
