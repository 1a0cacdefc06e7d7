// Starting with what a running request has computed (Request::fork_of).

#include <algorithm>
#include <memory>
#include <type_traits>

#include <absl/strings/str_cat.h>

#include "scheduler/scheduler_impl.h"

namespace blockmgr {

absl::Status SchedulerImpl::ValidateFork(const Request& request) const {
  if (request.fork_of.empty()) return absl::OkStatus();
  const auto parent = names_.find(request.fork_of);
  if (parent == names_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "fork_of: expected a live request, got '", request.fork_of, "'"));
  }
  if (BlockChain(request.scope).root() !=
      requests_.at(parent->second)->chain.root()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fork_of: expected a request of the same tenant, lora and cache_salt, "
        "got '",
        request.fork_of, "'"));
  }
  if (request.eviction.mode != EvictionMode::kNone) {
    return absl::InvalidArgumentError(
        "eviction: expected none with fork_of: a fork is compressed as the "
        "request that it goes on from");
  }
  return absl::OkStatus();
}

PlannedEviction SchedulerImpl::InheritedEviction(const RequestState& parent) {
  const auto copy = [](const auto& value) {
    using Value = typename std::decay_t<decltype(value)>::element_type;
    return value == nullptr ? nullptr : std::make_unique<Value>(*value);
  };
  PlannedEviction inherited;
  inherited.compressions = parent.compressions;
  inherited.decode = copy(parent.decode);
  inherited.squeeze = copy(parent.squeeze);
  inherited.sharing = copy(parent.sharing);
  inherited.scorer_state = parent.scorer_state;
  return inherited;
}

int32_t SchedulerImpl::ForkLength(const RequestState& parent,
                                  const RequestState& request) const {
  const int32_t num_done = parent.next_compression;
  const auto is_same = [](const CompressionPoint& a,
                          const CompressionPoint& b) {
    return a.length == b.length && a.cut == b.cut;
  };
  if (num_done > std::ssize(request.compressions) ||
      !std::equal(parent.compressions.begin(),
                  parent.compressions.begin() + num_done,
                  request.compressions.begin(), is_same)) {
    return 0;  // the parent has been compressed by others since
  }
  const int32_t compressed =
      num_done == 0 ? 0 : parent.compressions[num_done - 1].length;
  const size_t limit = MaxCachedTokens(request, compressed);
  const size_t num_common =
      std::ranges::mismatch(parent.tokens, request.tokens).in1 -
      parent.tokens.begin();
  const auto length = static_cast<int32_t>(std::min(limit, num_common));
  // What comes before a compression cannot be computed after it.
  if (length < compressed) return 0;
  const bool has_same_media =
      parent.chain.Media(0, length) == request.chain.Media(0, length);
  return has_same_media ? length : 0;
}

SchedulerImpl::ForkPoint SchedulerImpl::FindFork(
    const RequestState& request) const {
  if (request.fork_of == RequestId{0}) return {};
  const auto found = requests_.find(request.fork_of);
  if (found == requests_.end()) return {};
  const RequestState& parent = *found->second;
  const auto run = std::ranges::find(decision_.runs, found->second,
                                     &StepDecision::Run::request);
  const bool is_in_step = run != decision_.runs.end();
  // The parent of a request that both wait is served first, or not at all.
  if (!parent.running) return {.waits = is_in_step};
  const int32_t length = ForkLength(parent, request);
  if (length == 0) return {};
  const int32_t num_done = parent.next_compression;
  const SequenceCache& sequence = manager_.sequence(parent.slot);
  // What it is about to know of itself, or to lose.
  const bool is_moving = sequence.pending.has_value() ||
                         sequence.shares_last_block || parent.restarts ||
                         (is_in_step && run->order >= 0);
  // A few tokens are computed sooner than waited for.
  if (is_moving || length - sequence.num_settled > layout().page_size) {
    return {.waits = true};
  }
  const int32_t shared = std::min(length, sequence.num_settled);
  const int32_t compressed =
      num_done == 0 ? 0 : parent.compressions[num_done - 1].length;
  if (shared < std::max(compressed, 1)) return {};
  ForkPoint point = {.waits = false,
                     .match = manager_.MatchFork(parent.slot, shared)};
  point.match.source_length = compressed;
  return point;
}

}  // namespace blockmgr
