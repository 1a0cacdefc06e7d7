#include "scheduler/block_promises.h"

#include <algorithm>
#include <optional>
#include <span>

#include "scheduler/footprint.h"

namespace blockmgr {
namespace {

// Returns how many tokens the request has when the promise is kept.
int32_t LengthOf(const RequestState& request, Promise promise) {
  return promise == Promise::kKnown
             ? static_cast<int32_t>(request.tokens.size())
             : request.last_length();
}

// Returns the blocks that a running request will still take until it has
// computed `length` positions: CountRemainingBlocks.
int32_t CountRemaining(const SchedulerState& state, const RequestState& request,
                       int32_t length) {
  return CountRemainingBlocks(
      request, state.manager.sequence(request.slot),
      state.layout().has_windows()
          ? state.manager.CountOwnInWindows(request.slot)
          : OwnInWindows(),
      length,
      MaxChunk(state.options(), request,
               std::ssize(request.tokens) - request.num_computed),
      state.layout());
}

}  // namespace

int32_t NextCompression(const RequestState& request,
                        const EvictionPlan& eviction,
                        const PrefixMatch& match) {
  return match.swap != kNoSwap ? request.num_swapped_compressions
                               : eviction.NextAfter(match.length());
}

int32_t MaxChunk(const SchedulerOptions& options) {
  return options.long_prefill_token_threshold > 0
             ? std::min(options.long_prefill_token_threshold,
                        options.max_num_batched_tokens)
             : options.max_num_batched_tokens;
}

int32_t MaxChunk(const SchedulerOptions& options, const RequestState& request,
                 int64_t num_left) {
  const int32_t drafts = std::min(options.max_num_batched_tokens,
                                  1 + options.num_speculative_tokens);
  return std::max(drafts, static_cast<int32_t>(
                              std::min<int64_t>(num_left, request.max_chunk)));
}

PoolFit FitPool(const ModelLayout& layout, const SchedulerOptions& options,
                int32_t length, std::span<const CompressionPoint> compressions,
                const DecodeCompression* decode,
                const EvictionCommand* squeeze) {
  int32_t least = std::max(std::min(layout.page_size, MaxChunk(options)),
                           std::min(options.max_num_batched_tokens,
                                    1 + options.num_speculative_tokens));
  for (const CompressionPoint& point : compressions) {
    least = std::max(least, point.policy.query_window());
  }
  if (decode != nullptr) {
    least = std::max(least, decode->point.policy.query_window());
  }
  const int32_t num_usable = layout.num_blocks - 1;  // all but the null block
  PoolFit fit{.max_chunk = MaxChunk(options)};
  while (true) {
    fit.peak_blocks =
        PeakBlocks(length, std::max(fit.max_chunk, least), compressions, layout,
                   Holding{}, decode, squeeze);
    // Windows hold the chunk of a step, too. So the request may fit with
    // smaller chunks.
    if (!layout.has_windows() || fit.max_chunk <= least ||
        fit.peak_blocks <= num_usable) {
      return fit;
    }
    fit.max_chunk = std::max(fit.max_chunk / 2, least);
  }
}

int32_t CountBlocksToReserve(const SchedulerState& state,
                             const RequestState& request) {
  // The blocks of windows that a request will hold alone depend on which of
  // their holders leaves the windows first. So the peak of the request stays
  // reserved.
  if (state.layout().has_windows()) return request.peak_blocks;
  return state.manager.CountBlocks(request.slot) +
         CountRemaining(state, request, request.last_length());
}

bool BlockPromises::IsCopied(const RequestState& request,
                             const PrefixMatch& match) const {
  const EvictionPlan& eviction = decision_.EvictionOf(request);
  if (NextCompression(request, eviction, match) <
      std::ssize(eviction.compressions)) {
    return true;
  }
  const auto copies = [&](const RequestState* other) {
    const SequenceCache& sequence = state_.manager.sequence(other->slot);
    if (sequence.first().pending == nullptr &&
        other->next_compression == std::ssize(other->eviction.compressions)) {
      return false;
    }
    const int32_t page_size = state_.layout().page_size;
    return ShareBlocks(match.held(page_size), sequence.first().held(page_size),
                       page_size);
  };
  return CountInUse(match) > 0 && std::ranges::any_of(state_.running, copies);
}

int32_t BlockPromises::NeededOn(const RequestState& request,
                                const PrefixMatch& match,
                                Promise promise) const {
  const EvictionPlan& eviction = decision_.EvictionOf(request);
  const auto to_come = std::span<const CompressionPoint>(eviction.compressions)
                           .subspan(NextCompression(request, eviction, match));
  const int32_t peak =
      PeakBlocks(LengthOf(request, promise),
                 MaxChunk(state_.options(), request,
                          std::ssize(request.tokens) - match.num_tokens),
                 to_come, state_.layout(),
                 {.region_blocks = match.num_region_blocks(),
                  .cut = match.cut(),
                  .window_region_blocks = match.cost.num_window_region_blocks},
                 eviction.decode.get(), eviction.squeeze.get());
  const bool is_copied =
      promise == Promise::kCompletion && IsCopied(request, match);
  return peak + (is_copied ? CountInUse(match) : 0);
}

int64_t BlockPromises::CountBlocksPromised(Promise promise) const {
  int64_t promised = 0;
  for (const RequestState* request : state_.running) {
    // Blocks that this step takes are deducted from the available ones already.
    const StepDecision::Run* run = decision_.RunOf(*request);
    const int32_t taken = run == nullptr ? 0 : run->num_blocks;
    const int32_t length = LengthOf(*request, promise);
    if (request->num_computed >= length) continue;
    int32_t remaining = CountRemaining(state_, *request, length);
    if (promise == Promise::kCompletion) {
      remaining += CountSharedBelow(*request);
    }
    promised += std::max(0, remaining - taken);
  }
  for (const StepDecision::Run& run : decision_.runs) {
    if (run.match < 0) continue;
    const PrefixMatch& match = decision_.matches[run.match];
    promised += std::max(0, NeededOn(*run.request, match, promise) +
                                match.cost.num_moving - match.CountBlocks() -
                                run.num_blocks);
  }
  return promised;
}

int32_t BlockPromises::CountSharedBelow(const RequestState& request) const {
  if (request.next_compression == std::ssize(request.eviction.compressions)) {
    return 0;
  }
  const int32_t cut =
      request.eviction.compressions[request.next_compression].cut;
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  if (cut <= sequence.cut()) return 0;
  const CoveredBlocks covered =
      state_.manager.CountCovered(request.slot, 0, cut, cut);
  return covered.num_blocks - covered.num_own;
}

int64_t BlockPromises::All(Promise promise) {
  std::optional<int64_t>& promised = decision_.promised[promise];
  if (!promised.has_value()) promised = CountBlocksPromised(promise);
  return *promised;
}

}  // namespace blockmgr
