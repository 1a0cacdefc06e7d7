// Who is preempted, and who had better wait.

#include <algorithm>
#include <tuple>
#include <utility>

#include <absl/container/flat_hash_map.h>

#include "scheduler/scheduler_impl.h"

namespace blockmgr {
namespace {

// Whoever shares blocks shares the region, or else, as a rule, the first of
// them. (Not who has found what another one with a region computed behind it: a
// step may be lost on waiting for those.)
using FirstHeld = std::pair<const RegionRecord*, BlockId>;

FirstHeld FirstOf(const SequenceCache& sequence) {
  if (sequence.region != nullptr) return {sequence.region.get(), kNullBlock};
  return {nullptr, sequence.tail.empty() ? kNullBlock : sequence.tail.front()};
}

}  // namespace

bool SchedulerImpl::MakeRoom(size_t index, int32_t needed,
                             BlockBudget* budget) {
  const RequestState* request = running_[index];
  // What leaves is free when the steps in flight are over.
  const bool is_fenced = !in_flight_.empty();
  const bool can_wait =
      is_fenced ||
      !std::ranges::all_of(decision_.orders, &StepDecision::Order::futile);
  // Who needs nothing runs, even when blocks are kept for somebody older.
  while (needed > 0 && needed > budget->available) {
    if (!can_wait && decision_.num_kept == 1) {
      // Nobody else is left: all but its own blocks can be taken, those too
      // that the others shared among themselves. In the whole pool it fits
      // (Submit).
      budget->available =
          manager_.num_usable() - manager_.NumBlocks(request->slot);
      return true;
    }
    const size_t victim = FindVictim(index);
    if (can_wait && (victim == index ||
                     needed <= budget->available + BlocksOnTheWay(*budget))) {
      // Blocks are on their way: keep what there is for this request.
      budget->available -= needed;
      return false;
    }
    decision_.preempted.push_back(running_[victim]);
    decision_.fates[victim] = StepDecision::Fate::kPreempted;
    --decision_.num_kept;
    if (victim == index) return false;
    const SequenceSlot slot = running_[victim]->slot;
    if (is_fenced) {
      // What falls out of its windows is coming already.
      budget->coming +=
          manager_.NumReleasable(slot) -
          (layout().has_windows() ? manager_.NumFalling(slot) : 0);
    } else {
      budget->available += manager_.NumReleasable(slot);
    }
  }
  return true;
}

size_t SchedulerImpl::FindVictim(size_t index) {
  while (true) {
    const size_t victim = CheapestVictim(index);
    if (victim == index) break;
    if (manager_.NumReleasable(running_[victim]->slot) > 0) return victim;
    decision_.fates[victim] = StepDecision::Fate::kGivesNothing;
  }
  // Those who share all their blocks with one another are left.
  for (size_t i = running_.size(); --i > index;) {
    if (decision_.fates[i] != StepDecision::Fate::kPreempted) return i;
  }
  return index;
}

size_t SchedulerImpl::CheapestVictim(size_t index) const {
  // Least first: later in priority, not spared yet, cheap to compute again,
  // and of equal ones the most recent.
  using Cost = std::tuple<int64_t, bool, int32_t>;
  const bool by_recency =
      options_.admission == AdmissionPolicy::kMaxUtilization;
  const bool by_priority = options_.policy == SchedulingPolicy::kPriority;
  size_t victim = index;
  Cost least;
  for (size_t i = running_.size(); --i > index;) {
    if (decision_.fates[i] != StepDecision::Fate::kKept) continue;
    if (by_recency) return i;
    const RequestState& request = *running_[i];
    const Cost cost(by_priority ? -int64_t{request.priority} : 0,
                    request.is_spared(), RecomputeCost(request));
    if (victim != index && cost >= least) continue;
    victim = i;
    least = cost;
  }
  return victim;
}

int32_t SchedulerImpl::RecomputeCost(const RequestState& request) const {
  const SequenceCache& sequence = manager_.sequence(request.slot);
  // A compressed past that cannot be found is computed again from its first
  // token on.
  const bool is_compressed = sequence.region != nullptr;
  if (sequence.pending.has_value() ||
      (is_compressed && sequence.chain_serial == kNoSerial)) {
    return sequence.num_settled;
  }
  const int32_t last = request.next_compression - 1;
  const int32_t num_cached = std::min(
      sequence.num_published * layout().page_size,
      request.eviction.MaxCachedTokens(
          std::ssize(request.tokens),
          is_compressed ? request.eviction.compressions[last].length : 0));
  return std::max(0, sequence.num_settled - num_cached);
}

int32_t SchedulerImpl::BlocksOnTheWay(const BlockBudget& budget) const {
  int32_t num_blocks = budget.coming + budget.perhaps;
  for (const StepDecision::Order& order : decision_.orders) {
    if (!order.futile) num_blocks += order.num_released();
  }
  return num_blocks + LeftTogether();
}

int32_t SchedulerImpl::LeftTogether() const {
  struct Group {
    int32_t num_shared = 0;  // at most, of those who leave
    bool some_stay = false;
  };
  absl::flat_hash_map<FirstHeld, Group> groups;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (decision_.fates[i] == StepDecision::Fate::kPreempted) continue;
    const RequestState& request = *running_[i];
    const SequenceCache& sequence = manager_.sequence(request.slot);
    Group& group = groups[FirstOf(sequence)];
    const int32_t cut = CutToCome(request);
    if (cut == 0) {
      group.some_stay = true;
      continue;
    }
    group.num_shared = std::max(group.num_shared,
                                sequence.BlocksBelow(cut, layout().page_size) -
                                    manager_.NumOwnBlocks(request.slot, cut));
  }
  int32_t num_blocks = 0;
  for (const auto& [first, group] : groups) {
    if (!group.some_stay) num_blocks += group.num_shared;
  }
  return num_blocks;
}

int32_t SchedulerImpl::CutToCome(const RequestState& request) const {
  const SequenceCache& sequence = manager_.sequence(request.slot);
  if (sequence.pending.has_value()) return sequence.pending->cut;
  const StepDecision::Run* run = decision_.RunOf(request);
  if (run == nullptr || run->order < 0) return 0;
  const StepDecision::Order& order = decision_.orders[run->order];
  return order.futile ? 0 : order.point.cut;
}

bool SchedulerImpl::IsLeftBySharer(const RequestState& request) const {
  const SequenceCache& sequence = manager_.sequence(request.slot);
  return std::ranges::any_of(running_, [&](const RequestState* other) {
    if (other == &request || CutToCome(*other) == 0) return false;
    const SequenceCache& its = manager_.sequence(other->slot);
    return ShareBlocks({sequence.region.get(), sequence.cut(), sequence.tail},
                       {its.region.get(), its.cut(), its.tail},
                       layout().page_size);
  });
}

}  // namespace blockmgr
