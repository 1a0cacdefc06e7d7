// How many tokens of a request a step computes.
#ifndef SCHEDULER_CHUNKING_H_
#define SCHEDULER_CHUNKING_H_

#include <cstdint>
#include <vector>

#include "scheduler/request_state.h"

namespace blockmgr {

// The most that each prompt may take so that all get equal shares of `budget`
// tokens, where one that needs less leaves its rest to the others. Whole units
// (pages), and at least one. `gaps`: the tokens each lacks; sorted in place.
// O(n log n).
int32_t EqualShare(int32_t budget, int32_t unit, std::vector<int32_t>* gaps);

// Where a request computes on from.
struct ChunkStart {
  int32_t num_computed = 0;
  // Into EvictionPlan::compressions: the first one that is still to be made.
  int32_t next_compression = 0;
};

// Returns how many tokens of the request a step computes, out of token_budget
// that it has left and at most `share` (a share of the step, or INT32_MAX).
// A step ends at the next compression point, and the step that ends there
// computes the whole observation window of the point's policy. Returns 0 if
// nothing is left to compute, or if the point has to wait for an order in
// flight.
int32_t TokensToRun(const RequestState& request, const EvictionPlan& eviction,
                    const ChunkStart& start, int32_t token_budget,
                    int32_t share);

}  // namespace blockmgr

#endif  // SCHEDULER_CHUNKING_H_
