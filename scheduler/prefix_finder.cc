#include "scheduler/prefix_finder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/compression_points.h"

namespace blockmgr {

PrefixMatch& PrefixFinder::Find(const RequestState& request,
                                const EvictionPlan& eviction) {
  memory_.Give(std::move(match_));
  match_ = {};
  if (!manager_.prefix_caching()) return match_;
  const int64_t num_tokens = request.num_cacheable();
  const int32_t max_tokens = eviction.MaxCachedTokens(num_tokens, 0);
  if (eviction.sharing == nullptr) {
    match_ = manager_.Match(request.chain, request.tokens, max_tokens, nullptr,
                            &memory_);
    MatchPart(request, max_tokens);
    return match_;
  }
  // A request that has run, or a fork, takes only a region that was made by the
  // same compressions as its own.
  const std::vector<CompressionPoint>& points = eviction.compressions;
  const auto end =
      std::ranges::find(points, false, &CompressionPoint::is_shared);
  history_.clear();
  AppendHistory({points.begin(), end}, &history_);
  // MaxCachedTokens by the number of compressions that are not to come.
  std::vector<int32_t>& limits = limits_;
  limits.resize(points.size() + 1);
  limits.back() = eviction.MaxCachedTokens(num_tokens, INT32_MAX);
  for (size_t i = points.size(); i-- > 0;) {
    limits[i] =
        std::min(limits[i + 1],
                 std::max(0, points[i].length -
                                 std::max(1, points[i].policy.query_window())));
  }
  const auto limit = [&](int32_t length) {
    return limits[eviction.NextAfter(length)];
  };
  const RegionQuery query = {
      .plan = eviction.sharing->plan,
      .history = history_,
      .any_history = !request.was_admitted && request.fork_of == RequestId{0},
      .max_tokens_over = limit};
  match_ = manager_.Match(request.chain, request.tokens, max_tokens, &query,
                          &memory_);
  MatchPart(request,
            match_.cached == nullptr ? max_tokens : limit(match_.length()));
  return match_;
}

void PrefixFinder::MatchPart(const RequestState& request, int32_t max_tokens) {
  if (!options_.reuse_partial_blocks) return;
  manager_.MatchPart(request.chain, request.tokens, max_tokens, &match_);
}

void PrefixFinder::AddSwapped(const RequestState& request,
                              const EvictionPlan& eviction) {
  const SwappedSequence& swapped = manager_.host().at(request.swap);
  const int32_t length = eviction.LengthOf(request.num_swapped_compressions);
  // Observation windows are computed as a whole, as after a prefix hit. Tokens
  // before a compression cannot be computed after it.
  const int32_t num_tokens =
      std::min(swapped.num_tokens,
               eviction.MaxCachedTokens(request.num_cacheable(), length));
  if (num_tokens < std::max({length, swapped.regions.front().cut(), 1})) return;
  manager_.MatchSwapped(request.swap, num_tokens, length, &match_);
}

}  // namespace blockmgr
