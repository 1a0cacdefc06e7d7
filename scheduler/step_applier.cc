#include "scheduler/step_applier.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "blockmgr/base/check.h"
#include "scheduler/block_promises.h"
#include "scheduler/compression_points.h"

namespace blockmgr {
namespace {

// A running request has memory for this many outputs from the start: for
// tokens, names of blocks and tables. Beyond them, the memory grows like that
// of any vector.
constexpr int64_t kReservedOutputs = 4096;

}  // namespace

void StepApplier::Apply(StepDecision* decision, StepPlan* plan) {
  decision_ = decision;
  plan->Clear();
  ApplyInherited();
  ApplyPreemptions(plan);
  ApplyWaits();
  ApplyRestarts(plan);
  const size_t first_start = plan->starts.size();
  // Matched prefixes are held before any block is taken, because taking a block
  // may reclaim a prefix.
  for (const StepDecision::Run& run : decision_->runs) {
    if (run.match < 0) continue;
    RequestState* request = state_.requests.Own(run.request);
    Admit(request, decision_->matches[run.match]);
    lifecycle_.UpdateFront(request);
    WriteStart(request, decision_->matches[run.match].source, plan);
  }
  ApplySwapIns(first_start, plan);
  for (const StepDecision::Run& run : decision_->runs) {
    // A request that starts on a compressed prefix needs fewer blocks than one
    // that starts from its first token.
    if (run.match >= 0) {
      lifecycle_.RefreshReservation(state_.requests.Own(run.request));
    }
  }
  demands_.clear();
  for (const StepDecision::Run& run : decision_->runs) {
    demands_.push_back({run.request->slot, run.num_tokens});
  }
  new_blocks_.clear();
  new_offsets_.assign(1, 0);
  BM_CHECK(state_.manager.Reserve(demands_, &new_offsets_, &new_blocks_,
                                  &plan->copies));

  StepInFlight record;
  if (!state_.spare_steps.empty()) {
    record = std::move(state_.spare_steps.back());
    state_.spare_steps.pop_back();
  }
  record.id = plan->id = StepId{state_.next_step++};
  plan->released.swap(state_.released);
  plan->block_offsets.push_back(0);
  for (size_t i = 0; i < decision_->runs.size(); ++i) {
    const StepDecision::Run& run = decision_->runs[i];
    const auto blocks =
        std::span<const BlockId>(new_blocks_)
            .subspan(new_offsets_[i], new_offsets_[i + 1] - new_offsets_[i]);
    WriteRun(run, blocks, plan, &record);
    if (run.order >= 0) WriteOrder(run, plan, &record);
  }
  // The list is taken last, because making room for this step may have dropped
  // swaps.
  plan->dropped_swaps.swap(state_.dropped_swaps);
  plan->dropped_regions = state_.dropped_regions;
  state_.dropped_regions.clear();
  state_.manager.TakeDroppedRegions(&plan->dropped_regions);
  state_.manager.Dispatch(plan->id);
  state_.in_flight.push_back(std::move(record));
}

void StepApplier::ApplyInherited() {
  for (StepDecision::Inherited& inherited : decision_->inherited) {
    state_.requests.Own(inherited.fork)->eviction =
        std::move(inherited.eviction);
  }
}

void StepApplier::ApplyPreemptions(StepPlan* plan) {
  if (decision_->preempted.empty()) return;
  for (const RequestState* preempted : decision_->preempted) {
    RequestState* request = state_.requests.Own(preempted);
    WriteSwapOut(request, plan);
    lifecycle_.WaitAgain(request);
    ++request->num_preemptions;
    ++state_.totals.num_preemptions;
  }
  lifecycle_.ForgetLeft();
}

void StepApplier::ApplyWaits() {
  const auto num_admitted = static_cast<int32_t>(decision_->matches.size());
  for (const StepDecision::Passed& passed : decision_->passed) {
    const int32_t times = num_admitted - passed.num_admitted;
    state_.requests.Own(passed.request)->times_passed += times;
    state_.totals.num_passes += times;
  }
  for (const StepDecision::Wait& wait : decision_->prefix_waits) {
    RequestState* request = state_.requests.Own(wait.request);
    ++request->prefix_waits;
    request->prefix_wait = wait.found;
  }
  state_.totals.num_prefix_waits += decision_->prefix_waits.size();
  for (const RequestState* misplaced : decision_->misplaced) {
    RequestState* request = state_.requests.Own(misplaced);
    state_.waiting.Erase(request);
    request->lane = state_.LaneOf(*request);
    state_.waiting.Insert(request);
  }
}

void StepApplier::ApplyRestarts(StepPlan* plan) {
  if (!state_.has_restarts) return;
  for (RequestState* request : state_.running.all()) {
    if (!request->restarts) continue;
    WriteStart(request, request->slot, plan);
    request->restarts = false;
  }
  state_.has_restarts = false;
}

void StepApplier::Admit(RequestState* request, const PrefixMatch& match) {
  lifecycle_.LeaveQueue(request);
  state_.tenants.Admit(request->tenant, request->demand(),
                       !request->was_admitted);
  request->reserved_blocks = request->peak_blocks;
  lifecycle_.RefreshBar(request->tenant);
  if (const int64_t service = state_.ServiceOf(*request); service > 0) {
    state_.tenants.Serve(request->tenant,
                         request->num_prompt * kPromptTokenService);
    state_.waiting.SetService(request->tenant,
                              state_.tenants.service(request->tenant));
  }
  // A request that was passed, or preempted, is back before younger ones.
  std::vector<RequestState*>& running = state_.running.all();
  running.insert(std::ranges::upper_bound(running, request,
                                          [this](const auto* a, const auto* b) {
                                            return state_.RunsBefore(*a, *b);
                                          }),
                 request);
  request->times_passed = 0;
  request->prefix_waits = 0;
  request->prefix_wait = {};
  const auto known = static_cast<int64_t>(request->tokens.size());
  const auto num_expected = static_cast<int32_t>(
      std::min(known + kReservedOutputs,
               int64_t{request->num_prompt} + request->max_tokens));
  request->tokens.reserve(static_cast<size_t>(num_expected));
  if (state_.manager.prefix_caching()) {
    request->chain.Reserve(num_expected / state_.layout().page_size);
  }
  request->running = true;
  request->slot = state_.manager.Open(request->chain, match, num_expected);
  request->num_in_cache = match.num_tokens;
  request->num_computed = request->num_in_cache;
  if (request->eviction.squeeze != nullptr) ++state_.num_squeezable;
  if (request->is_spared()) ++state_.num_spared;
  request->fork_of = RequestId{0};
  if (match.cached != nullptr) AdoptCompressions(request, match);
  if (match.source != kNoSequenceSlot) {
    ++state_.totals.num_forks;
    request->next_compression =
        NextCompression(*request, request->eviction, match);
  }
  if (match.swap != kNoSwap) {
    request->next_compression = request->num_swapped_compressions;
  } else {
    lifecycle_.DropSwap(request);
  }
  if (request->was_admitted) return;
  request->was_admitted = true;
  request->num_cached_tokens = request->num_in_cache;
  state_.totals.num_prompt_tokens += request->num_prompt;
  state_.totals.num_cached_tokens += request->num_in_cache;
  state_.totals.num_cached_region_tokens += match.cut();
}

void StepApplier::AdoptCompressions(RequestState* request,
                                    const PrefixMatch& match) {
  const std::vector<int32_t> lengths =
      DecodeHistory(match.cached->content->WholeHistory());
  request->next_compression = static_cast<int32_t>(lengths.size());
  // The own compressions of an admitted request contain these.
  if (request->was_admitted) return;
  std::vector<CompressionPoint>& own = request->eviction.compressions;
  const auto to_come =
      own.begin() + NextCompression(*request, request->eviction, match);
  std::vector<CompressionPoint> points;
  points.reserve(lengths.size() + (own.end() - to_come));
  for (const int32_t length : lengths) {
    // Most points are among the request's own points. These are reused, so that
    // the table is not asked again.
    const auto same = std::ranges::lower_bound(own.begin(), to_come, length, {},
                                               &CompressionPoint::length);
    points.push_back(same != to_come && same->length == length
                         ? std::move(*same)
                         : SharedPointAt(*request->eviction.sharing, length,
                                         state_.layout()));
  }
  points.insert(points.end(), std::make_move_iterator(to_come),
                std::make_move_iterator(own.end()));
  own = std::move(points);
}

void StepApplier::WriteStart(RequestState* request, SequenceSlot source,
                             StepPlan* plan) {
  SequenceStart start;
  start.slot = request->slot;
  start.request = request->id;
  start.token_begin = std::ssize(plan->start_tokens);
  start.num_tokens = static_cast<int32_t>(request->tokens.size());
  start.num_cached_tokens = request->num_in_cache;
  const SequenceCache& sequence = state_.manager.sequence(request->slot);
  start.source = source;
  const RegionRecord* region = sequence.first().region.get();
  if (source == kNoSequenceSlot && region != nullptr) start.region = region->id;
  request->num_queries_kept =
      request->eviction.CountQueriesKept(state_.options().query_window);
  start.query_window = request->num_queries_kept;
  start.scorer_state = request->eviction.scorer_state;
  if (start.scorer_state == ScorerState::kQueryStatistics) {
    start.state_begin = request->eviction.state_begin;
  }
  start.info = request->info;
  plan->start_tokens.insert(plan->start_tokens.end(), request->tokens.begin(),
                            request->tokens.end());
  plan->starts.push_back(std::move(start));
}

void StepApplier::WriteBlocks(const StepDecision::Run& run,
                              std::span<const BlockId> blocks,
                              StepPlan* plan) const {
  const RequestState& request = *run.request;
  const bool starts =
      run.match >= 0 && decision_->matches[run.match].source == kNoSequenceSlot;
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_groups = state_.layout().num_groups();
  // Every group gets the same number.
  const size_t num_new =
      num_groups == 1 ? blocks.size() : blocks.size() / num_groups;
  for (int32_t group = 0; group < num_groups; ++group) {
    if (starts) {
      // Cached blocks, a copy in the place of its source, and blocks that come
      // back: the pages of the cached tokens behind the group's region.
      const GroupCache& cache = sequence.groups[group];
      const int32_t end = CeilDiv(request.num_in_cache, page_size);
      for (int32_t i = cache.cut() / page_size; i < end; ++i) {
        plan->blocks.push_back(cache.block(i));
      }
    }
    const auto added = blocks.subspan(group * num_new, num_new);
    plan->blocks.insert(plan->blocks.end(), added.begin(), added.end());
    plan->block_offsets.push_back(std::ssize(plan->blocks));
  }
}

void StepApplier::WriteRun(const StepDecision::Run& run,
                           std::span<const BlockId> blocks, StepPlan* plan,
                           StepInFlight* record) {
  RequestState& request = *state_.requests.Own(run.request);
  const int32_t end = request.num_computed + run.num_tokens;
  const bool samples =
      end - run.num_drafts == request.num_tokens() &&
      request.num_outputs() + request.num_placeholders < request.max_tokens;
  plan->slots.push_back(request.slot);
  plan->positions.push_back(request.num_computed);
  plan->num_tokens.push_back(run.num_tokens);
  plan->samples.push_back(samples ? 1 : 0);
  if (decision_->has_drafts) plan->num_drafts.push_back(run.num_drafts);
  WriteBlocks(run, blocks, plan);
  record->runs.push_back({.request = &request,
                          .id = request.id,
                          .incarnation = request.incarnation,
                          .num_tokens = run.num_tokens,
                          .num_drafts = run.num_drafts,
                          .samples = samples});
  request.num_computed = end;
  request.num_placeholders += samples ? 1 + run.num_drafts : 0;
  request.num_unverified = run.num_drafts;
}

void StepApplier::WriteOrder(const StepDecision::Run& run, StepPlan* plan,
                             StepInFlight* record) {
  RequestState& request = *state_.requests.Own(run.request);
  StepDecision::Order& order = decision_->orders[run.order];
  StepInFlight::Order in_flight;
  in_flight.run = record->runs.size() - 1;
  in_flight.num_released = order.num_released();
  if (order.point.is_planned) {
    ++request.next_compression;
    if (request.next_compression == std::ssize(request.eviction.compressions)) {
      ListNextPoint(request.last_length(), state_.layout(), &request.eviction);
    }
  } else if (order.point.is_squeeze()) {
    ++state_.totals.num_squeezes;
  } else {
    request.command.reset();
  }
  request.order_in_flight = true;
  const bool copies = order.num_fresh == order.CountFresh(/*copies=*/true);
  for (const StepDecision::GroupOrder& group : order.groups) {
    EvictionOrder out = OrderOf(request, order.point, group);
    TakeDestinations(group.CountFresh(copies), &out, plan);
    // The name of group 0's region stands for the regions of all groups.
    if (group.group == 0 && order.point.is_shared &&
        state_.manager.prefix_caching()) {
      out.region =
          state_.manager.sequence(request.slot).first().pending->region;
      in_flight.region = out.region;
    }
    plan->evictions.push_back(std::move(out));
    in_flight.groups.push_back(group.group);
  }
  in_flight.point = std::move(order.point);
  record->orders.push_back(std::move(in_flight));
}

EvictionOrder StepApplier::OrderOf(
    const RequestState& request, const CompressionPoint& point,
    const StepDecision::GroupOrder& group) const {
  const ModelLayout& layout = state_.layout();
  EvictionOrder order;
  order.slot = request.slot;
  order.group = group.group;
  order.cut = point.cut;
  order.length = point.length;
  order.policy = point.policy;
  order.page_total = group.page_total;
  if (layout.kind_of(group.group) == GroupKind::kWindow) {
    order.target = point.target.InWindow();
    return order;
  }
  order.target = point.target;
  order.shard_page_totals = ShardPagesOf(point, layout);
  order.scores = point.scores;
  order.budgets = point.budgets;
  return order;
}

void StepApplier::TakeDestinations(int32_t num_fresh, EvictionOrder* order,
                                   StepPlan* plan) {
  order->destination_begin = std::ssize(plan->destinations);
  BM_CHECK(state_.manager.ReserveEviction(
      order->slot,
      {.group = order->group,
       .cut = order->cut,
       .page_total = order->page_total,
       .num_fresh = num_fresh,
       .shard_page_totals = order->shard_page_totals},
      &plan->destinations));
  order->num_destinations = static_cast<int32_t>(
      std::ssize(plan->destinations) - order->destination_begin);
}

}  // namespace blockmgr
