// Deciding who is admitted: what those that run may still take, and whether
// that leaves room for one more.

#include <algorithm>
#include <span>
#include <utility>

#include "scheduler/compression_points.h"
#include "scheduler/footprint.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

// Waiting requests that a step looks at without admitting them, at most, and
// cached blocks that it compares for them: about 200 us.
constexpr int32_t kMaxLooks = 16;
constexpr int64_t kMaxLookedBlocks = 4096;
// Compressions and media that a look at a fork compares in the time of a block.
constexpr int64_t kForkItemsPerBlock = 4;
// Forks whose parents are not as far yet, and requests that were found to wait
// for another one's prefix: a look at each is cheap.
constexpr int32_t kMaxAwaiting = 2048;

}  // namespace

void SchedulerImpl::PlanWaiting(BlockBudget* budget, int32_t* token_budget) {
  // Blocks that an eviction takes in place may leave the prefix cache: nobody
  // is admitted on them in the same step.
  for (const StepDecision::Order& order : decision_.orders) {
    if (!order.futile && order.num_fresh < order.num_copied()) return;
  }
  const int32_t num_open = manager_.num_open_slots();
  if (waiting_.empty() || num_open == 0 || *token_budget <= 0) return;
  int32_t num_looks = 0;
  // Admissions before one of those passed has been passed too often.
  int32_t passes_left = INT32_MAX;
  walk_.Restart();
  while (*token_budget > 0 && std::ssize(decision_.matches) < num_open &&
         num_looks < kMaxLooks && decision_.num_awaiting < kMaxAwaiting &&
         decision_.num_looked_blocks < kMaxLookedBlocks && passes_left > 0) {
    RequestState* request = walk_.Next();
    if (request == nullptr) return;
    switch (TryAdmit(request, budget, token_budget)) {
      case Verdict::kAdmitted:
        --passes_left;
        if (IsLong(*request) &&
            decision_.matches.back().source == kNoSequenceSlot &&
            IsPrefill(*request, decision_.matches.back())) {
          ++*decision_.num_long_prefills;
        }
        walk_.Serve(ServiceOf(*request));
        break;
      case Verdict::kDoesNotFit:
        ++num_looks;
        decision_.passed.push_back(
            {request, static_cast<int32_t>(decision_.matches.size())});
        passes_left = std::min(passes_left,
                               options_.max_bypasses - request->times_passed);
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
        // By what this step has admitted: else it would be barred.
        walk_.SkipTenant();
        break;
    }
  }
}

SchedulerImpl::Verdict SchedulerImpl::TryAdmit(RequestState* request,
                                               BlockBudget* budget,
                                               int32_t* token_budget) {
  if (!tenants_.MayReserve(
          request->tenant,
          request->peak_blocks + decision_.ReservedBy(request->tenant))) {
    return Verdict::kTenantIsFull;
  }
  if (request->fork_of != RequestId{0}) {
    decision_.num_looked_blocks +=
        (std::ssize(decision_.EvictionOf(*request).compressions) +
         request->chain.num_media()) /
        kForkItemsPerBlock;
  }
  ForkPoint fork = FindFork(*request);
  if (fork.waits) {
    decision_.Await(*request);
    return Verdict::kAwaits;
  }
  if (fork.match.num_tokens == 0 && StillWaits(*request)) {
    ++decision_.num_awaiting;
    decision_.prefix_waits.push_back({request, request->prefix_wait});
    return Verdict::kAwaits;
  }
  if (!HasScorerState(*request)) return Verdict::kLacksScorerState;
  // Nearly all of a fork's prompt is computed, however long.
  if (fork.match.num_tokens > 0 &&
      PlanAdmission(request, &fork.match, budget, token_budget)) {
    return Verdict::kAdmitted;
  }
  const bool may_prefill = MayPrefill(*request);
  if (!may_prefill && request->swap == kNoSwap) return Verdict::kIsTooLong;
  match_ =
      FindPrefix(*request, decision_.EvictionOf(*request), std::move(match_));
  PrefixMatch& match = match_;
  decision_.num_looked_blocks += match.num_looks;
  if (request->swap != kNoSwap) MatchSwapped(*request, &match);
  if (!may_prefill && IsPrefill(*request, match)) return Verdict::kIsTooLong;
  if (match.swap == kNoSwap) {
    const PrefixWait wait = FindPrefixWait(*request, match);
    if (wait.other != nullptr) {
      decision_.prefix_waits.push_back({request, wait});
      return Verdict::kLetsOthersPass;
    }
  }
  const bool matched = match.num_tokens > 0;
  if (match.part_is_reclaimable) {
    // The source of a copy takes a block until the copy is made.
    if (PlanAdmission(request, &match, budget, token_budget)) {
      return Verdict::kAdmitted;
    }
    match.DropPart(layout().page_size);
  }
  if (PlanAdmission(request, &match, budget, token_budget)) {
    return Verdict::kAdmitted;
  }
  // Alone in the pool, a request that cannot afford both its cached prefix
  // and a copy of its survivors starts from nothing.
  const bool alone = running_.empty() && decision_.runs.empty() &&
                     in_flight_.empty() && matched;
  if (alone) {
    match = PrefixMatch::InMemoryOf(std::move(match));
    if (PlanAdmission(request, &match, budget, token_budget)) {
      return Verdict::kAdmitted;
    }
  }
  return Verdict::kDoesNotFit;
}

bool SchedulerImpl::PlanAdmission(RequestState* request, PrefixMatch* taken,
                                  BlockBudget* budget, int32_t* token_budget) {
  const PrefixMatch& match = *taken;
  const int32_t page_size = layout().page_size;
  const int32_t num_cached = match.num_tokens;
  const int32_t next =
      NextCompression(*request, decision_.EvictionOf(*request), match);
  const int32_t num_tokens =
      TokensToRun(*request, next, num_cached, *token_budget);
  if (num_tokens == 0) return false;
  // A part of a block is another's, and copied, unless it comes back.
  const int32_t num_new =
      layout().num_groups() *
      (CeilDiv(num_cached + num_tokens, page_size) -
       (match.swap == kNoSwap ? num_cached / page_size
                              : CeilDiv(num_cached, page_size)));
  const int32_t num_held = match.num_blocks() - match.num_moving + num_new;
  const int32_t needed =
      num_new + match.num_taken() + (match.part_is_reclaimable ? 1 : 0);
  if (needed > budget->available || !IsAffordable(*request, match, *budget)) {
    return false;
  }
  StepDecision::Order order;
  const bool has_order =
      MayOrder(*request, next, num_cached + num_tokens) &&
      PlanOrder(*request, num_cached + num_tokens, &match, &order);
  int32_t num_fresh = 0;
  if (has_order) {
    num_fresh = FreshForOrder(order, Headroom(budget->available - needed));
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
        std::max(0, NeededOn(*request, match, kind) - num_held);
  }
  budget->available -= needed + num_fresh;
  budget->coming -= match.num_cooling;
  decision_.matches.push_back(std::move(*taken));
  *token_budget -= num_tokens;
  return true;
}

bool SchedulerImpl::IsAffordable(const RequestState& request,
                                 const PrefixMatch& match,
                                 const BlockBudget& budget) {
  const int64_t room = int64_t{budget.available} + budget.coming;
  // What it finds unused in the cache is not there for anybody else once it
  // runs, what is coming of that, too.
  const int32_t num_in_use = NumInUse(match);
  if (options_.admission == AdmissionPolicy::kWatermark) {
    // Everything known, at its peak: evictions on the way (a resumed request
    // replays them) may be what makes it fit.
    const int32_t needed =
        NeededOn(request, match, Promise::kKnown) - num_in_use;
    const bool alone = running_.empty() && decision_.runs.empty();
    if (needed + (alone ? 0 : watermark_blocks_) >
        room - Promised(Promise::kKnown)) {
      return false;
    }
  }
  // Who has been preempted a few times comes back for good: nobody is admitted
  // beside it either who may take what it, or another one, needs.
  if (options_.admission != AdmissionPolicy::kGuaranteed &&
      !request.is_spared() && num_spared_ + decision_.num_spared == 0) {
    return true;
  }
  return NeededOn(request, match, Promise::kCompletion) - num_in_use <=
         room - Promised(Promise::kCompletion);
}

PrefixMatch SchedulerImpl::FindPrefix(const RequestState& request,
                                      const EvictionPlan& eviction,
                                      PrefixMatch used) {
  if (!manager_.prefix_caching()) return {};
  const int64_t num_tokens = std::ssize(request.tokens);
  const int32_t max_tokens = eviction.MaxCachedTokens(num_tokens, 0);
  if (eviction.sharing == nullptr) {
    PrefixMatch match = manager_.Match(request.chain, request.tokens,
                                       max_tokens, nullptr, std::move(used));
    MatchPart(request, max_tokens, &match);
    return match;
  }
  // Who has run goes on from what it ran on, and nothing else; so does a fork.
  const std::vector<CompressionPoint>& points = eviction.compressions;
  const auto end =
      std::ranges::find(points, false, &CompressionPoint::is_shared);
  prefix_history_.clear();
  AppendHistory({points.begin(), end}, &prefix_history_);
  // MaxCachedTokens by the number of compressions that are not to come.
  std::vector<int32_t>& limits = prefix_limits_;
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
      .history = prefix_history_,
      .any_history = !request.was_admitted && request.fork_of == RequestId{0},
      .max_tokens_over = limit};
  PrefixMatch match = manager_.Match(request.chain, request.tokens, max_tokens,
                                     &query, std::move(used));
  MatchPart(request,
            match.cached == nullptr ? max_tokens : limit(match.length()),
            &match);
  return match;
}

void SchedulerImpl::MatchPart(const RequestState& request, int32_t max_tokens,
                              PrefixMatch* match) const {
  if (!options_.reuse_partial_blocks) return;
  manager_.MatchPart(request.chain, request.tokens, max_tokens, match);
}

int32_t SchedulerImpl::NextCompression(const RequestState& request,
                                       const EvictionPlan& eviction,
                                       const PrefixMatch& match) {
  return match.swap != kNoSwap ? request.num_swapped_compressions
                               : eviction.NextAfter(match.length());
}

int32_t SchedulerImpl::MaxChunk() const {
  return options_.long_prefill_token_threshold > 0
             ? std::min(options_.long_prefill_token_threshold,
                        options_.max_num_batched_tokens)
             : options_.max_num_batched_tokens;
}

int32_t SchedulerImpl::MaxChunk(const RequestState& request,
                                int64_t num_left) const {
  const int32_t drafts = std::min(options_.max_num_batched_tokens,
                                  1 + options_.num_speculative_tokens);
  return std::max(drafts, static_cast<int32_t>(
                              std::min<int64_t>(num_left, request.max_chunk)));
}

SchedulerImpl::Fit SchedulerImpl::FitPool(
    int32_t length, std::span<const CompressionPoint> compressions,
    const DecodeCompression* decode, const EvictionCommand* squeeze) const {
  int32_t least = std::max(std::min(layout().page_size, MaxChunk()),
                           std::min(options_.max_num_batched_tokens,
                                    1 + options_.num_speculative_tokens));
  for (const CompressionPoint& point : compressions) {
    least = std::max(least, point.policy.query_window());
  }
  if (decode != nullptr) {
    least = std::max(least, decode->point.policy.query_window());
  }
  Fit fit{.max_chunk = MaxChunk()};
  while (true) {
    fit.peak_blocks =
        PeakBlocks(length, std::max(fit.max_chunk, least), compressions,
                   layout(), Holding{}, decode, squeeze);
    // Windows hold what a step computes, too: it is less where that is much.
    if (!layout().has_windows() || fit.max_chunk <= least ||
        fit.peak_blocks <= manager_.num_usable()) {
      return fit;
    }
    fit.max_chunk = std::max(fit.max_chunk / 2, least);
  }
}

int32_t SchedulerImpl::LengthOf(const RequestState& request, Promise promise) {
  return promise == Promise::kKnown
             ? static_cast<int32_t>(request.tokens.size())
             : request.last_length();
}

bool SchedulerImpl::IsCopied(const RequestState& request,
                             const PrefixMatch& match) const {
  const EvictionPlan& eviction = decision_.EvictionOf(request);
  if (NextCompression(request, eviction, match) <
      std::ssize(eviction.compressions)) {
    return true;
  }
  const auto copies = [&](const RequestState* other) {
    const SequenceCache& sequence = manager_.sequence(other->slot);
    if (!sequence.pending.has_value() &&
        other->next_compression == std::ssize(other->eviction.compressions)) {
      return false;
    }
    return ShareBlocks({match.record(), match.cut(), match.full_blocks()},
                       {sequence.region.get(), sequence.cut(), sequence.tail},
                       layout().page_size);
  };
  return NumInUse(match) > 0 && std::ranges::any_of(running_, copies);
}

int32_t SchedulerImpl::NeededOn(const RequestState& request,
                                const PrefixMatch& match,
                                Promise promise) const {
  const EvictionPlan& eviction = decision_.EvictionOf(request);
  const auto to_come = std::span<const CompressionPoint>(eviction.compressions)
                           .subspan(NextCompression(request, eviction, match));
  const int32_t peak = PeakBlocks(
      LengthOf(request, promise),
      MaxChunk(request, std::ssize(request.tokens) - match.num_tokens), to_come,
      layout(),
      {.region_blocks = match.num_region_blocks(),
       .cut = match.cut(),
       .window_region_blocks = match.num_window_region_blocks},
      eviction.decode.get(), eviction.squeeze.get());
  const bool is_copied =
      promise == Promise::kCompletion && IsCopied(request, match);
  return peak + (is_copied ? NumInUse(match) : 0);
}

int32_t SchedulerImpl::Remaining(const RequestState& request,
                                 int32_t length) const {
  return RemainingBlocks(
      request, manager_.sequence(request.slot),
      layout().has_windows() ? manager_.NumOwnInWindows(request.slot)
                             : OwnInWindows(),
      length,
      MaxChunk(request, std::ssize(request.tokens) - request.num_computed),
      layout());
}

int64_t SchedulerImpl::BlocksPromised(Promise promise) const {
  int64_t promised = 0;
  for (const RequestState* request : running_) {
    // What this step takes of it is already gone from the available blocks.
    const StepDecision::Run* run = decision_.RunOf(*request);
    const int32_t taken = run == nullptr ? 0 : run->num_blocks;
    const int32_t length = LengthOf(*request, promise);
    if (request->num_computed >= length) continue;
    int32_t remaining = Remaining(*request, length);
    if (promise == Promise::kCompletion) remaining += SharedBelow(*request);
    promised += std::max(0, remaining - taken);
  }
  for (const StepDecision::Run& run : decision_.runs) {
    if (run.match < 0) continue;
    const PrefixMatch& match = decision_.matches[run.match];
    promised +=
        std::max(0, NeededOn(*run.request, match, promise) + match.num_moving -
                        match.num_blocks() - run.num_blocks);
  }
  return promised;
}

int32_t SchedulerImpl::ToReserve(const RequestState& request) const {
  // How much of windows a request will hold alone depends on who leaves them
  // first: its peak stays reserved.
  if (layout().has_windows()) return request.peak_blocks;
  return manager_.sequence(request.slot).num_blocks() +
         Remaining(request, request.last_length());
}

void SchedulerImpl::RefreshReservation(RequestState* request) {
  const int32_t needed = ToReserve(*request);
  if (needed == request->reserved_blocks) return;
  tenants_.Reserve(request->tenant, needed - request->reserved_blocks);
  request->reserved_blocks = needed;
  RefreshBar(request->tenant);
}

int32_t SchedulerImpl::SharedBelow(const RequestState& request) const {
  if (request.next_compression == std::ssize(request.eviction.compressions))
    return 0;
  const int32_t cut =
      request.eviction.compressions[request.next_compression].cut;
  const SequenceCache& sequence = manager_.sequence(request.slot);
  if (cut <= sequence.cut()) return 0;
  return sequence.BlocksBelow(cut, layout().page_size) -
         manager_.NumOwnBlocks(request.slot, cut);
}

int64_t SchedulerImpl::Promised(Promise promise) {
  std::optional<int64_t>& promised = decision_.promised[promise];
  if (!promised.has_value()) promised = BlocksPromised(promise);
  return *promised;
}

bool SchedulerImpl::HasScorerState(const RequestState& request) const {
  const auto needs = [this](const RequestState* other) {
    return decision_.EvictionOf(*other).scorer_state != ScorerState::kNone;
  };
  if (!needs(&request)) return true;
  const auto num_running = std::ranges::count_if(running_, needs);
  const auto num_admitted =
      std::ranges::count_if(decision_.runs, [&](const StepDecision::Run& run) {
        return run.match >= 0 && needs(run.request);
      });
  return num_running + num_admitted < options_.num_scorer_states;
}

bool SchedulerImpl::IsLong(const RequestState& request) const {
  return options_.max_long_prefills > 0 &&
         std::ssize(request.tokens) > options_.long_prefill_token_threshold;
}

bool SchedulerImpl::MayPrefill(const RequestState& request) {
  if (!IsLong(request)) return true;
  if (!decision_.num_long_prefills.has_value()) {
    const auto is_prefill = [this](const RequestState* other) {
      return other->num_computed + 1 < std::ssize(other->tokens) &&
             IsLong(*other);
    };
    decision_.num_long_prefills =
        static_cast<int32_t>(std::ranges::count_if(running_, is_prefill));
  }
  return *decision_.num_long_prefills < options_.max_long_prefills;
}

bool SchedulerImpl::IsPrefill(const RequestState& request,
                              const PrefixMatch& match) {
  return match.swap == kNoSwap ||
         match.num_tokens + 1 < std::ssize(request.tokens);
}

}  // namespace blockmgr
