#include "scheduler/chunking.h"

#include <algorithm>

namespace blockmgr {

int32_t EqualShare(int32_t budget, int32_t unit, std::vector<int32_t>* gaps) {
  std::ranges::sort(*gaps);
  int32_t left = std::max(budget, 0);
  auto num_left = static_cast<int32_t>(gaps->size());
  for (const int32_t gap : *gaps) {
    const int32_t share = left / num_left;
    if (gap > share) return std::max(unit, share / unit * unit);
    left -= gap;
    --num_left;
  }
  // All fit.
  return gaps->empty() ? unit : std::max(unit, gaps->back());
}

int32_t TokensToRun(const RequestState& request, const EvictionPlan& eviction,
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
