#include "scheduler/forks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "scheduler/block_promises.h"
#include "scheduler/compression_points.h"
#include "scheduler/footprint.h"

namespace blockmgr {
namespace {

// Returns whether a fork with a prompt of num_prompt tokens, which computes
// last_length tokens in all, inherits a point of its parent. Commands and
// squeezes behind the fork's prompt are not inherited, nor any point that the
// fork does not reach.
bool IsInherited(const CompressionPoint& point, int32_t num_prompt,
                 int32_t last_length) {
  return point.length <= (point.is_recorded ? num_prompt : last_length);
}

// Returns how many points the fork has inherited, if these are all that it
// would inherit from its parent now. Otherwise returns nullopt.
std::optional<size_t> CountInherited(const EvictionPlan& of_parent,
                                     const RequestState& fork) {
  const std::vector<CompressionPoint>& mine = fork.eviction.compressions;
  size_t num = 0;
  for (const CompressionPoint& point : of_parent.compressions) {
    if (!IsInherited(point, fork.num_prompt, fork.last_length())) continue;
    if (num == mine.size() || point.length != mine[num].length ||
        point.cut != mine[num].cut || point.is_shared != mine[num].is_shared) {
      return std::nullopt;
    }
    ++num;
  }
  // The fork may have points that its parent has not: those of kDecode that the
  // parent does not list yet. The engine has refused any other to the parent.
  const DecodeCompression* decode = of_parent.decode.get();
  if (num < mine.size() &&
      (decode == nullptr ||
       mine[num].length <= std::max(decode->begin, decode->refused_until))) {
    return std::nullopt;
  }
  return num;
}

EvictionPlan CopyOf(const EvictionPlan& plan) {
  const auto copy = [](const auto& value) {
    using Value = typename std::decay_t<decltype(value)>::element_type;
    return value == nullptr ? nullptr : std::make_unique<Value>(*value);
  };
  return {.compressions = plan.compressions,
          .scorer_state = plan.scorer_state,
          .state_begin = plan.state_begin,
          .decode = copy(plan.decode),
          .squeeze = copy(plan.squeeze),
          .sharing = copy(plan.sharing)};
}

}  // namespace

absl::Status ValidateFork(const Request& request, const RequestState* parent) {
  if (request.fork_of.empty()) return absl::OkStatus();
  // The message does not reveal whether another tenant has such a request.
  if (parent == nullptr ||
      BlockChain(request.scope).root() != parent->chain.root()) {
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

EvictionPlan InheritedPlan(const RequestState& parent, int32_t num_prompt,
                           int32_t last_length, const ModelLayout& layout) {
  const EvictionPlan& of_parent = parent.eviction;
  EvictionPlan inherited = CopyOf(of_parent);
  std::erase_if(inherited.compressions,
                [num_prompt, last_length](const CompressionPoint& point) {
                  return !IsInherited(point, num_prompt, last_length);
                });
  if (of_parent.decode != nullptr) {
    inherited.decode = WithEnd(*of_parent.decode, last_length, layout);
    // The fork may be compressed after its parent's end, so it may need a
    // scorer state that the parent does not need.
    inherited.scorer_state = of_parent.decode->point.policy.scorer_state();
  }
  return inherited;
}

int32_t CountCommonTokens(const RequestState& parent,
                          const RequestState& fork) {
  const auto begin = parent.tokens.begin() + fork.num_common;
  const auto differs =
      std::mismatch(begin, parent.tokens.end(),
                    fork.tokens.begin() + fork.num_common, fork.tokens.end());
  return fork.num_common + static_cast<int32_t>(differs.first - begin);
}

namespace {

// If a fork has never run and its parent has other compressions by now, the
// decision carries these compressions. Returns false if the fork would not fit
// with them.
bool Inherit(const SchedulerState& state, const RequestState& parent,
             const RequestState& fork, StepDecision* decision) {
  const EvictionPlan& own = fork.eviction;
  const std::optional<size_t> num = CountInherited(parent.eviction, fork);
  if (num.has_value()) {
    // The fork lists one point more than its parent. The parent may have listed
    // another point since.
    if (*num == own.compressions.size() &&
        HasNextPoint(fork.last_length(), own)) {
      EvictionPlan longer = CopyOf(own);
      ListNextPoint(fork.last_length(), state.layout(), &longer);
      decision->Inherit(fork, std::move(longer));
    }
    return true;
  }
  EvictionPlan inherited = InheritedPlan(parent, fork.num_prompt,
                                         fork.last_length(), state.layout());
  // A parent that began with another's compressions may have fewer.
  const int32_t peak = PeakBlocks(
      fork.last_length(), MaxChunk(state.options(), fork, fork.last_length()),
      inherited.compressions, state.layout(), Holding{}, inherited.decode.get(),
      inherited.squeeze.get());
  if (peak > fork.peak_blocks) return false;
  // The fork's steps may be smaller than its parent's steps, and too small for
  // an observation window.
  const bool fits_steps = std::ranges::all_of(
      inherited.compressions, [&fork](const CompressionPoint& point) {
        return point.policy.query_window() <= fork.max_chunk;
      });
  if (!fits_steps) return false;
  ListFirstPoint(fork.last_length(), state.layout(), &inherited);
  decision->Inherit(fork, std::move(inherited));
  return true;
}

// Returns how many common tokens the fork may share after the parent has
// computed them.
int32_t ForkLength(const RequestState& parent, const RequestState& request,
                   int32_t page_size, StepDecision* decision) {
  const int32_t num_done = parent.next_compression;
  const int32_t compressed =
      num_done == 0 ? 0 : parent.eviction.compressions[num_done - 1].length;
  const int32_t num_common = CountCommonTokens(parent, request);
  decision->num_looked_blocks += (num_common - request.num_common) / page_size;
  const int32_t length = std::min(decision->EvictionOf(request).MaxCachedTokens(
                                      request.num_cacheable(), compressed),
                                  num_common);
  // Tokens before a compression cannot be computed after it.
  if (length < compressed) return 0;
  return parent.chain.HasMediaOf(request.chain, length) ? length : 0;
}

}  // namespace

ForkPoint FindFork(const SchedulerState& state, const RequestState& request,
                   StepDecision* decision) {
  if (request.fork_of == RequestId{0}) return {};
  const RequestState* found = state.requests.Find(request.fork_of);
  if (found == nullptr) return {};
  const RequestState& parent = *found;
  if (!parent.running) {
    return {.waits =
                decision->Awaits(parent) || decision->RunOf(parent) != nullptr};
  }
  if (!Inherit(state, parent, request, decision)) return {};
  const int32_t length =
      ForkLength(parent, request, state.layout().page_size, decision);
  if (length == 0) return {};
  const int32_t num_done = parent.next_compression;
  const SequenceCache& sequence = state.manager.sequence(parent.slot);
  const StepDecision::Run* run = decision->RunOf(parent);
  // The parent's table is about to change.
  const bool is_moving = sequence.first().pending != nullptr ||
                         sequence.shares_last_block || parent.restarts ||
                         state.manager.IsComingBack(parent.slot) ||
                         (run != nullptr && run->order >= 0);
  // The fork computes a few missing tokens itself, because waiting takes
  // longer. If the parent is compressed behind these tokens, more may be
  // missing. Once the parent has settled them, it has ordered the
  // compression already, and the fork cannot start before it.
  const bool is_lost_soon =
      num_done < std::ssize(parent.eviction.compressions) &&
      parent.eviction.compressions[num_done].length > length;
  const int32_t chunk = state.options().long_prefill_token_threshold > 0
                            ? state.options().long_prefill_token_threshold
                            : state.options().max_num_batched_tokens;
  const int32_t few = is_lost_soon
                          ? chunk * (state.options().max_steps_in_flight + 1)
                          : state.layout().page_size;
  if (is_moving || length - sequence.num_settled > few) return {.waits = true};
  const int32_t shared = std::min(length, sequence.num_settled);
  const int32_t compressed =
      num_done == 0 ? 0 : parent.eviction.compressions[num_done - 1].length;
  if (shared < std::max(compressed, 1)) return {};
  // If windows have moved on, the fork starts from the prefix cache.
  if (!state.manager.CanGoBack(parent.slot, shared)) return {};
  ForkPoint point = {.waits = false,
                     .match = state.manager.MatchFork(parent.slot, shared)};
  point.match.source_length = compressed;
  return point;
}

}  // namespace blockmgr
