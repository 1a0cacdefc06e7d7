#include "scheduler/admission.h"

#include <algorithm>
#include <utility>

#include "scheduler/chunking.h"
#include "scheduler/forks.h"

namespace blockmgr {
namespace {

// The most waiting requests that a step examines without admitting them, and
// the most cached blocks that it compares for them. Together they take about
// 200 us.
constexpr int32_t kMaxLooks = 16;
constexpr int64_t kMaxLookedBlocks = 4096;
// Comparing this many compressions and media of a fork takes as long as
// comparing a block.
constexpr int64_t kForkItemsPerBlock = 4;
// The most examined requests that wait: forks whose parents are not as far yet,
// and requests that wait for the prefix of another request. Examining such a
// request is cheap.
constexpr int32_t kMaxAwaiting = 2048;

// Returns whether a request, which may come back from the host tier, has more
// than its last token left to compute.
bool IsPrefill(const RequestState& request, const PrefixMatch& match) {
  return match.swap == kNoSwap ||
         match.num_tokens + 1 < std::ssize(request.tokens);
}

}  // namespace

void Admission::Plan(BlockBudget* budget, int32_t* token_budget) {
  // An eviction in place may take blocks out of the prefix cache. A request
  // admitted in the same step must not match these blocks, so no request is
  // admitted.
  for (const StepDecision::Order& order : decision_.orders) {
    if (order.num_fresh < order.CountFresh(/*copies=*/true)) return;
  }
  const int32_t num_open = state_.manager.num_open_slots();
  if (state_.waiting.empty() || num_open == 0 || *token_budget <= 0) return;
  int32_t num_looks = 0;
  // The admissions that are left until a passed request has been passed too
  // often.
  int32_t passes_left = INT32_MAX;
  walk_.Restart();
  while (*token_budget > 0 && std::ssize(decision_.matches) < num_open &&
         num_looks < kMaxLooks && decision_.num_awaiting < kMaxAwaiting &&
         decision_.num_looked_blocks < kMaxLookedBlocks && passes_left > 0) {
    const RequestState* request = walk_.Next();
    if (request == nullptr) return;
    switch (TryAdmit(request, budget, token_budget)) {
      case Verdict::kAdmitted:
        --passes_left;
        if (state_.IsLong(*request) &&
            decision_.matches.back().source == kNoSequenceSlot &&
            IsPrefill(*request, decision_.matches.back())) {
          ++*decision_.num_long_prefills;
        }
        walk_.Serve(state_.ServiceOf(*request));
        break;
      case Verdict::kDoesNotFit:
        ++num_looks;
        decision_.passed.push_back(
            {request, static_cast<int32_t>(decision_.matches.size())});
        passes_left = std::min(
            passes_left, state_.options().max_bypasses - request->times_passed);
        break;
      case Verdict::kLetsOthersPass:
        ++num_looks;
        break;
      case Verdict::kIsTooLong:
        num_looks += LookOutsideLane(request, kLongPromptLane);
        walk_.Bar(kLongPromptLane);
        break;
      case Verdict::kLacksScorerState:
        num_looks += LookOutsideLane(request, kScorerStateLane);
        walk_.Bar(kScorerStateLane);
        break;
      case Verdict::kAwaits:
        break;
      case Verdict::kTenantIsFull:
        // The tenant is full because of requests that this step has admitted.
        // Otherwise it would be barred already.
        walk_.SkipTenant();
        break;
    }
  }
}

Admission::Verdict Admission::TryAdmit(const RequestState* request,
                                       BlockBudget* budget,
                                       int32_t* token_budget) {
  if (!state_.tenants.MayReserve(
          request->tenant,
          request->peak_blocks + decision_.CountReservedBy(request->tenant))) {
    return Verdict::kTenantIsFull;
  }
  if (request->fork_of != RequestId{0}) {
    decision_.num_looked_blocks +=
        (std::ssize(decision_.EvictionOf(*request).compressions) +
         request->chain.num_media()) /
        kForkItemsPerBlock;
  }
  ForkPoint fork = FindFork(state_, *request, &decision_);
  if (fork.waits) {
    decision_.Await(*request);
    return Verdict::kAwaits;
  }
  if (fork.match.num_tokens == 0 && waits_.StillWaits(*request)) {
    ++decision_.num_awaiting;
    decision_.prefix_waits.push_back({request, request->prefix_wait});
    return Verdict::kAwaits;
  }
  if (!HasScorerState(*request)) return Verdict::kLacksScorerState;
  // A fork computes little of its prompt, so a long prompt does not matter.
  if (fork.match.num_tokens > 0 &&
      PlanAdmission(request, &fork.match, budget, token_budget)) {
    return Verdict::kAdmitted;
  }
  const bool may_prefill = MayPrefill(*request);
  if (!may_prefill && request->swap == kNoSwap) return Verdict::kIsTooLong;
  PrefixMatch& match = finder_.Find(*request, decision_.EvictionOf(*request));
  decision_.num_looked_blocks += match.cost.num_looks;
  if (request->swap != kNoSwap) {
    finder_.AddSwapped(*request, decision_.EvictionOf(*request));
  }
  if (!may_prefill && IsPrefill(*request, match)) return Verdict::kIsTooLong;
  if (match.swap == kNoSwap) {
    const PrefixWait wait = waits_.Find(*request, match);
    if (wait.other != nullptr) {
      decision_.prefix_waits.push_back({request, wait});
      return Verdict::kLetsOthersPass;
    }
  }
  const bool matched = match.num_tokens > 0;
  if (match.cost.part_is_reclaimable) {
    // The source of a copy takes a block until the copy is made.
    if (PlanAdmission(request, &match, budget, token_budget)) {
      return Verdict::kAdmitted;
    }
    match.DropPart(state_.layout().page_size);
  }
  if (PlanAdmission(request, &match, budget, token_budget)) {
    return Verdict::kAdmitted;
  }
  // Alone in the pool, a request that cannot afford both its cached prefix
  // and a copy of its survivors starts from nothing.
  const bool alone = state_.running.empty() && decision_.runs.empty() &&
                     state_.in_flight.empty() && matched;
  if (alone) {
    match = PrefixMatch();
    if (PlanAdmission(request, &match, budget, token_budget)) {
      return Verdict::kAdmitted;
    }
  }
  return Verdict::kDoesNotFit;
}

bool Admission::PlanAdmission(const RequestState* request, PrefixMatch* taken,
                              BlockBudget* budget, int32_t* token_budget) {
  const PrefixMatch& match = *taken;
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_cached = match.num_tokens;
  const EvictionPlan& eviction = decision_.EvictionOf(*request);
  const int32_t next = NextCompression(*request, eviction, match);
  const int32_t num_tokens =
      CountTokensToRun(*request, eviction,
                       {.num_computed = num_cached, .next_compression = next},
                       *token_budget, decision_.chunk_share);
  if (num_tokens == 0) return false;
  // A part of a block belongs to another holder and is copied into a new block.
  // A part that comes back from the host tier needs no copy.
  const int32_t num_new =
      state_.layout().num_groups() *
      (CeilDiv(num_cached + num_tokens, page_size) -
       (match.swap == kNoSwap ? num_cached / page_size
                              : CeilDiv(num_cached, page_size)));
  const int32_t num_held =
      match.CountBlocks() - match.cost.num_moving + num_new;
  const int32_t needed =
      num_new + match.CountTaken() + (match.cost.part_is_reclaimable ? 1 : 0);
  if (needed > budget->available || !IsAffordable(*request, match, *budget)) {
    return false;
  }
  StepDecision::Order order;
  const bool has_order =
      orders_.MayOrder(*request, next, num_cached + num_tokens) &&
      orders_.Plan(*request, num_cached + num_tokens, &match, &order);
  int32_t num_fresh = 0;
  if (has_order) {
    num_fresh =
        orders_.CountFresh(order, orders_.Headroom(budget->available - needed));
  }
  if (needed + num_fresh > budget->available) return false;
  StepDecision::Run run;
  run.request = request;
  run.num_tokens = num_tokens;
  run.num_blocks = num_new;
  if (has_order) {
    order.num_fresh = num_fresh;
    run.order = static_cast<int32_t>(decision_.orders.size());
    decision_.orders.push_back(std::move(order));
  }
  run.match = static_cast<int32_t>(decision_.matches.size());
  decision_.num_spared += request->is_spared() ? 1 : 0;
  decision_.Add(run);
  const auto num_pages = static_cast<size_t>(num_cached / page_size);
  if (match.record() == nullptr && num_pages < request->chain.keys().size()) {
    decision_.computing.try_emplace(request->chain.keys()[num_pages], request);
  }
  for (const Promise kind : {Promise::kKnown, Promise::kCompletion}) {
    if (!decision_.promised[kind].has_value()) continue;
    *decision_.promised[kind] +=
        std::max(0, promises_.NeededOn(*request, match, kind) - num_held);
  }
  budget->available -= needed + num_fresh;
  budget->coming -= match.cost.num_cooling;
  decision_.matches.push_back(std::move(*taken));
  *token_budget -= num_tokens;
  return true;
}

bool Admission::IsAffordable(const RequestState& request,
                             const PrefixMatch& match,
                             const BlockBudget& budget) {
  const int64_t room = int64_t{budget.available} + budget.coming;
  // Once the request runs, the unused cached blocks of its match are no longer
  // available to others, so only blocks in use are deducted.
  const int32_t num_in_use = BlockPromises::CountInUse(match);
  if (state_.options().admission == AdmissionPolicy::kWatermark) {
    // The peak of all known tokens counts evictions to come (a resumed request
    // repeats them), because the request may fit only with them.
    const int32_t needed =
        promises_.NeededOn(request, match, Promise::kKnown) - num_in_use;
    const bool alone = state_.running.empty() && decision_.runs.empty();
    if (needed + (alone ? 0 : state_.watermark_blocks) >
        room - promises_.All(Promise::kKnown)) {
      return false;
    }
  }
  // A spared request is admitted only if it can be completed. While one runs,
  // others are admitted only if all running requests can be completed, too.
  if (state_.options().admission != AdmissionPolicy::kGuaranteed &&
      !request.is_spared() && state_.num_spared + decision_.num_spared == 0) {
    return true;
  }
  return promises_.NeededOn(request, match, Promise::kCompletion) -
             num_in_use <=
         room - promises_.All(Promise::kCompletion);
}

int32_t Admission::LookOutsideLane(const RequestState* request, uint8_t lane) {
  if ((request->lane & lane) != 0) return 0;
  // A request belongs to the lane now if it has lost its swap or its parent.
  // Other requests outside the lane have long prompts, but little to compute.
  if ((state_.LaneOf(*request) & lane) != 0) {
    decision_.misplaced.push_back(request);
  }
  return 1;
}

bool Admission::HasScorerState(const RequestState& request) const {
  const auto needs = [this](const RequestState* other) {
    return decision_.EvictionOf(*other).scorer_state != ScorerState::kNone;
  };
  if (!needs(&request)) return true;
  const auto num_running = std::ranges::count_if(state_.running, needs);
  const auto num_admitted =
      std::ranges::count_if(decision_.runs, [&](const StepDecision::Run& run) {
        return run.match >= 0 && needs(run.request);
      });
  return num_running + num_admitted < state_.options().engine.num_scorer_states;
}

bool Admission::MayPrefill(const RequestState& request) {
  if (!state_.IsLong(request)) return true;
  if (!decision_.num_long_prefills.has_value()) {
    const auto is_prefill = [this](const RequestState* other) {
      return other->num_computed + 1 < std::ssize(other->tokens) &&
             state_.IsLong(*other);
    };
    decision_.num_long_prefills =
        static_cast<int32_t>(std::ranges::count_if(state_.running, is_prefill));
  }
  return *decision_.num_long_prefills < state_.options().max_long_prefills;
}

}  // namespace blockmgr
