// Starting with what a running request has computed (Request::fork_of).

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "scheduler/compression_points.h"
#include "scheduler/footprint.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

// Whether a fork with a prompt of so many tokens has the point of its parent,
// too. What was ordered of the parent behind that is not about the fork.
bool IsInherited(const CompressionPoint& point, int32_t num_prompt) {
  return !point.is_recorded || point.length <= num_prompt;
}

// The number of those that it has, when it has all as they are by now.
std::optional<size_t> NumInherited(
    const std::vector<CompressionPoint>& of_parent, const RequestState& fork) {
  const std::vector<CompressionPoint>& mine = fork.compressions;
  size_t num = 0;
  for (const CompressionPoint& point : of_parent) {
    if (!IsInherited(point, fork.num_prompt)) continue;
    if (num == mine.size() || point.length != mine[num].length ||
        point.cut != mine[num].cut || point.is_shared != mine[num].is_shared) {
      return std::nullopt;
    }
    ++num;
  }
  return num;
}

}  // namespace

absl::Status SchedulerImpl::ValidateFork(const Request& request) const {
  if (request.fork_of.empty()) return absl::OkStatus();
  const auto parent = names_.find(request.fork_of);
  // Which requests others have is not told.
  if (parent == names_.end() ||
      BlockChain(request.scope).root() !=
          requests_.at(parent->second)->chain.root()) {
    return absl::NotFoundError(absl::StrCat(
        "fork_of: expected a live request of the same tenant, lora and "
        "cache_salt, got '",
        request.fork_of, "'"));
  }
  if (request.eviction.mode != EvictionMode::kNone) {
    return absl::InvalidArgumentError(
        "eviction: expected none with fork_of: a fork is compressed as the "
        "request that it goes on from");
  }
  return absl::OkStatus();
}

PlannedEviction SchedulerImpl::InheritedEviction(const RequestState& parent,
                                                 int32_t num_prompt,
                                                 int32_t last_length) const {
  const auto copy = [](const auto& value) {
    using Value = typename std::decay_t<decltype(value)>::element_type;
    return value == nullptr ? nullptr : std::make_unique<Value>(*value);
  };
  PlannedEviction inherited;
  std::ranges::copy_if(parent.compressions,
                       std::back_inserter(inherited.compressions),
                       [num_prompt](const CompressionPoint& point) {
                         return IsInherited(point, num_prompt);
                       });
  if (parent.decode != nullptr) {
    inherited.decode = WithEnd(*parent.decode, last_length, layout());
  }
  inherited.squeeze = copy(parent.squeeze);
  inherited.sharing = copy(parent.sharing);
  // Of compressions after its parent's end, too: that may need none itself.
  inherited.scorer_state = parent.decode == nullptr
                               ? parent.scorer_state
                               : parent.decode->point.policy.scorer_state();
  inherited.state_begin = parent.state_begin;
  return inherited;
}

bool SchedulerImpl::InheritAgain(const RequestState& parent,
                                 RequestState* request) const {
  const std::optional<size_t> num = NumInherited(parent.compressions, *request);
  if (num.has_value()) {
    // One more than the parent's, which may have listed another one since.
    if (*num == request->compressions.size()) ListNextPoint(request);
    return true;
  }
  PlannedEviction inherited =
      InheritedEviction(parent, request->num_prompt, request->last_length());
  // A parent that began with another's compressions may have fewer.
  const int32_t peak = PeakBlocks(
      request->last_length(), MaxChunk(*request, request->last_length()),
      inherited.compressions, layout(), Holding{}, inherited.decode.get(),
      inherited.squeeze.get());
  if (peak > request->peak_blocks) return false;
  // Nor may its steps be as large as its parent's.
  const bool fits_steps = std::ranges::all_of(
      inherited.compressions, [request](const CompressionPoint& point) {
        return point.policy.query_window() <= request->max_chunk;
      });
  if (!fits_steps) return false;
  TakeEviction(std::move(inherited), request);
  return true;
}

void SchedulerImpl::CompareTokens(const RequestState& parent,
                                  RequestState* request) {
  const auto begin = parent.tokens.begin() + request->num_common;
  const auto differs = std::mismatch(
      begin, parent.tokens.end(), request->tokens.begin() + request->num_common,
      request->tokens.end());
  request->num_common += static_cast<int32_t>(differs.first - begin);
}

int32_t SchedulerImpl::ForkLength(const RequestState& parent,
                                  RequestState* request) const {
  const int32_t num_done = parent.next_compression;
  const int32_t compressed =
      num_done == 0 ? 0 : parent.compressions[num_done - 1].length;
  CompareTokens(parent, request);
  const int32_t length =
      std::min(MaxCachedTokens(*request, compressed), request->num_common);
  // What comes before a compression cannot be computed after it.
  if (length < compressed) return 0;
  return parent.chain.HasMediaOf(request->chain, length) ? length : 0;
}

SchedulerImpl::ForkPoint SchedulerImpl::FindFork(RequestState* request) const {
  if (request->fork_of == RequestId{0}) return {};
  const auto found = requests_.find(request->fork_of);
  if (found == requests_.end()) return {};
  const RequestState& parent = *found->second;
  if (!parent.running) {
    return {.waits = parent.planned.decision == decision_.number};
  }
  if (!InheritAgain(parent, request)) return {};
  const int32_t length = ForkLength(parent, request);
  if (length == 0) return {};
  const int32_t num_done = parent.next_compression;
  const SequenceCache& sequence = manager_.sequence(parent.slot);
  const StepDecision::Run* run = decision_.RunOf(parent);
  // What it is about to know of itself, or to lose.
  const bool is_moving = sequence.pending.has_value() ||
                         sequence.shares_last_block || parent.restarts ||
                         manager_.IsComingBack(parent.slot) ||
                         (run != nullptr && run->order >= 0);
  // A few tokens are computed sooner than waited for. Before a compression that
  // comes behind them it is now or never: when the parent has settled them, it
  // has ordered that already.
  const bool is_lost_soon = num_done < std::ssize(parent.compressions) &&
                            parent.compressions[num_done].length > length;
  const int32_t chunk = options_.long_prefill_token_threshold > 0
                            ? options_.long_prefill_token_threshold
                            : options_.max_num_batched_tokens;
  const int32_t few = is_lost_soon ? chunk * (options_.max_steps_in_flight + 1)
                                   : layout().page_size;
  if (is_moving || length - sequence.num_settled > few) return {.waits = true};
  const int32_t shared = std::min(length, sequence.num_settled);
  const int32_t compressed =
      num_done == 0 ? 0 : parent.compressions[num_done - 1].length;
  if (shared < std::max(compressed, 1)) return {};
  // Windows may have moved on: what the prefix cache has is next best.
  if (!manager_.CanGoBack(parent.slot, shared)) return {};
  ForkPoint point = {.waits = false,
                     .match = manager_.MatchFork(parent.slot, shared)};
  point.match.source_length = compressed;
  return point;
}

}  // namespace blockmgr
