#include "scheduler/victims.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <absl/container/flat_hash_map.h>

namespace blockmgr {
namespace {

// The region, or without one the first block, of a sequence. Sequences that
// share blocks usually have the same FirstHeld. An exception is a sequence that
// found blocks which another one computed behind its region. A step may be lost
// then on waiting for blocks that do not become free.
using FirstHeld = std::pair<const RegionRecord*, BlockId>;

FirstHeld FirstOf(const SequenceCache& sequence) {
  const GroupCache& first = sequence.first();
  if (first.region != nullptr) return {first.region.get(), kNullBlock};
  return {nullptr, first.tail.empty() ? kNullBlock : first.tail.front()};
}

}  // namespace

bool Victims::MakeRoom(size_t index, int32_t needed, BlockBudget* budget) {
  const RequestState* request = state_.running[index];
  // With steps in flight, released blocks are free only after their answers.
  const bool is_fenced = !state_.in_flight.empty();
  const bool can_wait =
      is_fenced ||
      !std::ranges::all_of(decision_.orders, &StepDecision::Order::is_futile);
  // A request that needs no new block always runs, even while free blocks are
  // being saved for an older request.
  while (needed > 0 && needed > budget->available) {
    if (!can_wait && decision_.num_kept == 1) {
      // All other requests are preempted, so all blocks but the request's own
      // can be taken. Submit has checked that the request fits into the pool.
      budget->available = state_.manager.num_usable() -
                          state_.manager.CountBlocks(request->slot);
      return true;
    }
    const size_t victim = FindVictim(index);
    if (can_wait &&
        (victim == index ||
         needed <= budget->available + CountBlocksOnTheWay(*budget))) {
      // The request waits for blocks on their way. The blocks that are
      // available are kept for it.
      budget->available -= needed;
      return false;
    }
    decision_.preempted.push_back(state_.running[victim]);
    decision_.fates[victim] = StepDecision::Fate::kPreempted;
    --decision_.num_kept;
    if (victim == index) return false;
    const SequenceSlot slot = state_.running[victim]->slot;
    if (is_fenced) {
      // Blocks that leave its windows are counted in `coming` already.
      budget->coming += state_.manager.CountReleasable(slot) -
                        (state_.layout().has_windows()
                             ? state_.manager.CountFalling(slot).num_own
                             : 0);
    } else {
      budget->available += state_.manager.CountReleasable(slot);
    }
  }
  return true;
}

size_t Victims::FindVictim(size_t index) {
  while (true) {
    const size_t victim = CheapestVictim(index);
    if (victim == index) break;
    if (state_.manager.CountReleasable(state_.running[victim]->slot) > 0) {
      return victim;
    }
    decision_.fates[victim] = StepDecision::Fate::kGivesNothing;
  }
  // Only requests that share all their blocks with one another are left.
  for (size_t i = state_.running.size(); --i > index;) {
    if (decision_.fates[i] != StepDecision::Fate::kPreempted) return i;
  }
  return index;
}

size_t Victims::CheapestVictim(size_t index) const {
  // The least cost is chosen: a lower priority, then not spared, then cheap to
  // compute again. Among equal costs the most recent request is chosen.
  using Cost = std::tuple<int64_t, bool, int32_t>;
  const bool by_recency =
      state_.options().admission == AdmissionPolicy::kMaxUtilization;
  const bool by_priority =
      state_.options().policy == SchedulingPolicy::kPriority;
  size_t victim = index;
  Cost least;
  for (size_t i = state_.running.size(); --i > index;) {
    if (decision_.fates[i] != StepDecision::Fate::kKept) continue;
    if (by_recency) return i;
    const RequestState& request = *state_.running[i];
    const Cost cost(by_priority ? -int64_t{request.priority} : 0,
                    request.is_spared(), RecomputeCost(request));
    if (victim != index && cost >= least) continue;
    victim = i;
    least = cost;
  }
  return victim;
}

int32_t Victims::RecomputeCost(const RequestState& request) const {
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  // A compressed past that cannot be found is computed again from its first
  // token on.
  const bool is_compressed = sequence.first().region != nullptr;
  if (sequence.first().pending != nullptr ||
      (is_compressed && sequence.chain_serial == kNoSerial)) {
    return sequence.num_settled;
  }
  const int32_t last = request.next_compression - 1;
  const int32_t num_cached = std::min(
      sequence.num_published * state_.layout().page_size,
      request.eviction.MaxCachedTokens(
          request.num_cacheable(),
          is_compressed ? request.eviction.compressions[last].length : 0));
  return std::max(0, sequence.num_settled - num_cached);
}

int32_t Victims::CountBlocksOnTheWay(const BlockBudget& budget) const {
  int32_t num_blocks = budget.coming + budget.perhaps;
  for (const StepDecision::Order& order : decision_.orders) {
    if (!order.is_futile()) num_blocks += order.num_released();
  }
  return num_blocks + CountLeftTogether();
}

int32_t Victims::CountLeftTogether() const {
  struct Group {
    // The most blocks that the leaving sequences share.
    int32_t num_shared = 0;
    bool some_stay = false;
  };
  absl::flat_hash_map<FirstHeld, Group> groups;
  for (size_t i = 0; i < state_.running.size(); ++i) {
    if (decision_.fates[i] == StepDecision::Fate::kPreempted) continue;
    const RequestState& request = *state_.running[i];
    const SequenceCache& sequence = state_.manager.sequence(request.slot);
    Group& group = groups[FirstOf(sequence)];
    const int32_t cut = CutToCome(request);
    if (cut == 0) {
      group.some_stay = true;
      continue;
    }
    const CoveredBlocks covered =
        state_.manager.CountCovered(request.slot, 0, cut, cut);
    group.num_shared =
        std::max(group.num_shared, covered.num_blocks - covered.num_own);
  }
  int32_t num_blocks = 0;
  for (const auto& [first, group] : groups) {
    if (!group.some_stay) num_blocks += group.num_shared;
  }
  return num_blocks;
}

int32_t Victims::CutToCome(const RequestState& request) const {
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  if (sequence.first().pending != nullptr) {
    return sequence.first().pending->cut;
  }
  const StepDecision::Run* run = decision_.RunOf(request);
  if (run == nullptr || run->order < 0) return 0;
  const StepDecision::Order& order = decision_.orders[run->order];
  return order.is_futile() ? 0 : order.point.cut;
}

bool Victims::IsLeftBySharer(const RequestState& request) const {
  const SequenceCache& sequence = state_.manager.sequence(request.slot);
  return std::ranges::any_of(state_.running, [&](const RequestState* other) {
    if (other == &request || CutToCome(*other) == 0) return false;
    const SequenceCache& its = state_.manager.sequence(other->slot);
    const int32_t page_size = state_.layout().page_size;
    return ShareBlocks(sequence.first().held(page_size),
                       its.first().held(page_size), page_size);
  });
}

}  // namespace blockmgr
