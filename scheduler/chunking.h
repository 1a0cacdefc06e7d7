// Functions that decide how many tokens of a request a step computes.
#ifndef SCHEDULER_CHUNKING_H_
#define SCHEDULER_CHUNKING_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "scheduler/request_state.h"

namespace blockmgr {

// Returns the most tokens that each prompt may take, so that all prompts get
// equal shares of `budget` tokens. A prompt that needs less leaves the rest of
// its share to the others. The result is a multiple of `unit` (a page), at
// least one unit. `gaps` are the tokens that each prompt lacks; they are sorted
// in place. O(n log n).
int32_t EqualShare(int32_t budget, int32_t unit, std::vector<int32_t>* gaps);

// ChunkStart is the point from which a request computes on.
struct ChunkStart {
  int32_t num_computed = 0;
  // Index of the first of EvictionPlan::compressions that is still to be made.
  int32_t next_compression = 0;
};

// Returns how many tokens of the request a step computes. The step has
// token_budget tokens left, and the request may take at most `share` of them
// (INT32_MAX if there are no shares). A step ends at the next compression
// point, and the step that ends there computes the whole observation window of
// the point's policy. Returns 0 if nothing is left to compute, or if the point
// has to wait for an order in flight.
inline int32_t CountTokensToRun(const RequestState& request,
                                const EvictionPlan& eviction,
                                const ChunkStart& start, int32_t token_budget,
                                int32_t share) {
  const std::vector<CompressionPoint>& points = eviction.compressions;
  const auto& [num_computed, next] = start;
  int32_t end = std::min(request.num_tokens(), request.last_length());
  const bool has_point = next < std::ssize(points);
  int32_t window = 0;
  if (has_point) {
    const CompressionPoint& point = points[next];
    if (end >= point.length) {
      end = point.length;
      window = std::min(point.policy.query_window(), end - num_computed);
    }
  }
  const int32_t gap = end - num_computed;
  if (gap <= 0) return 0;
  int32_t tokens = std::min({gap, token_budget, request.max_chunk});
  // A share does not cut an observation window that the step has room for.
  tokens = std::min(tokens, std::max(share, window));
  // The chunk that ends at a compression point holds the observation window:
  // shorten this one so that the last is not too short.
  if (tokens < gap && gap - tokens < window) tokens = gap - window;
  const bool reaches_point =
      has_point && tokens == gap && end == points[next].length;
  if (reaches_point && request.order_in_flight) return 0;
  return std::max(tokens, 0);
}

}  // namespace blockmgr

#endif  // SCHEDULER_CHUNKING_H_
