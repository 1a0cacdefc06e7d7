#include "blockmgr/step_plan.h"

#include <numeric>

namespace blockmgr {

void StepPlan::Clear() {
  id = StepId{0};
  dropped_swaps.clear();
  swap_outs.clear();
  transfers_out.clear();
  released.clear();
  starts.clear();
  transfers_in.clear();
  start_tokens.clear();
  dropped_regions.clear();
  copies.clear();
  slots.clear();
  positions.clear();
  num_tokens.clear();
  samples.clear();
  num_drafts.clear();
  block_offsets.clear();
  blocks.clear();
  evictions.clear();
  destinations.clear();
}

int64_t StepPlan::total_tokens() const {
  return std::accumulate(num_tokens.begin(), num_tokens.end(), int64_t{0});
}

}  // namespace blockmgr
