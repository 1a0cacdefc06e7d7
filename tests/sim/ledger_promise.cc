// What plans may count on: blocks that were promised, states of scorers.

#include <algorithm>

#include "tests/sim/ledger.h"

namespace blockmgr::sim {
namespace {

// Whether its scores are sums over queries from the first token on.
bool NeedsState(const ScorerSpec& scorer) {
  return (scorer.kind == ScorerKind::kH2o && scorer.obs_window == 0) ||
         (scorer.kind == ScorerKind::kExpectedAttention &&
          scorer.stats.empty());
}

// Who was preempted that often comes back for good, whatever is admitted.
constexpr int32_t kLastPreemption = 2;

}  // namespace

void Ledger::CheckPromise(const Served& victim) const {
  const bool is_guaranteed = options_.admission == AdmissionPolicy::kGuaranteed;
  if (!is_guaranteed && victim.num_preemptions <= kLastPreemption) return;
  const bool takes_more =
      !commands_.empty() || std::ranges::any_of(tables_, [](const auto& slot) {
        return slot.second.takes_more;
      });
  const RunCounts& counts = report_->counts();
  const bool are_many = is_guaranteed && !was_commanded_ && !was_refused_ &&
                        counts.preemptions > counts.cut_requests;
  if (!takes_more || are_many) {
    report_->Fail("'", victim.request.id, "', promised its blocks, is ",
                  "preempted for the ", victim.num_preemptions, ". time; ",
                  counts.preemptions, " preemptions, ", counts.cut_requests,
                  " requests have lost blocks");
  }
}

void Ledger::CheckScorerStates(const StepPlan& plan) {
  for (const EvictionOrder& order : plan.evictions) {
    if (!NeedsState(order.policy.scorer)) continue;
    ++report_->counts().scored_evictions;
    const auto& [slot, table] = *tables_.find(order.slot);
    if (!table.has_scores) {
      report_->Fail("slot ", Index(slot), " evicts without a scorer state");
    }
  }
  const auto num_states = std::ranges::count_if(
      tables_, [](const auto& table) { return table.second.has_scores; });
  if (num_states > options_.engine.num_scorer_states) {
    report_->Fail(num_states, " sequences have a scorer state, of ",
                  options_.engine.num_scorer_states);
  }
  const bool is_full =
      num_states > 0 && num_states == options_.engine.num_scorer_states;
  report_->counts().full_states += is_full ? 1 : 0;
}

}  // namespace blockmgr::sim
