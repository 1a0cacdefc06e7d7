// Speculative decoding: proposing drafts, and verifying those of a run.

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

absl::Status CanaryEngine::TakeDrafts(const StepPlan& plan, size_t run) {
  CanaryTable& table = tables_[Index(plan.slots[run])];
  const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[run];
  if (num_drafts > 0) {
    const bool is_evicted = std::ranges::count(plan.evictions, plan.slots[run],
                                               &EvictionOrder::slot) > 0;
    if (num_drafts > std::ssize(table.drafts) || plan.samples[run] == 0 ||
        plan.num_tokens[run] != 1 + num_drafts || is_evicted) {
      return Wrong("slot ", Index(plan.slots[run]), ": ", num_drafts, " of ",
                   table.drafts.size(), " drafts in a run of ",
                   plan.num_tokens[run], " tokens, samples ",
                   int{plan.samples[run]}, ", evicted: ", is_evicted);
    }
    for (int32_t i = 0; i < num_drafts; ++i) {
      table.tokens.push_back(table.drafts[i]);
      table.chain.push_back(Extend(table.chain.back(), table.drafts[i]));
    }
  }
  table.drafts.clear();
  return absl::OkStatus();
}

void CanaryEngine::Verify(const StepPlan& plan, size_t run,
                          StepResult* result) {
  CanaryTable& table = tables_[Index(plan.slots[run])];
  const int32_t num_drafts = plan.num_drafts[run];
  const auto num_known = static_cast<int32_t>(table.tokens.size()) - num_drafts;
  const uint64_t damage = IsDamaged(table) ? 1 : 0;
  int32_t num_accepted = 0;
  while (num_accepted < num_drafts) {
    const int32_t next = num_known + num_accepted;
    if (SampleAfter(table.chain[next - 1] ^ damage) != table.tokens[next]) {
      break;
    }
    result->accepted.push_back(table.tokens[next]);
    ++num_accepted;
  }
  result->num_accepted[run] = num_accepted;
  const int32_t length = num_known + num_accepted;
  table.tokens.resize(length);
  table.chain.resize(length);
  table.content.resize(length);
  table.steps.resize(length);
  // Written all the same.
  Touch(table, plan.id);
  CutTables(length, &table);
}

void CanaryEngine::ProposeDrafts(CanaryTable* table) const {
  uint64_t chain = table->chain.back();
  uint64_t draw = SplitMix64(chain ^ ~options_.seed);
  const auto num_drafts = draw % (options_.max_drafts + 1);
  for (uint64_t i = 0; i < num_drafts; ++i) {
    draw = SplitMix64(draw);
    const bool is_random = draw % options_.wrong_draft_one_in == 0;
    table->drafts.push_back(
        is_random
            ? static_cast<int32_t>(SplitMix64(~draw) % options_.vocabulary)
            : SampleAfter(chain));
    chain = Extend(chain, table->drafts.back());
  }
}

}  // namespace blockmgr
