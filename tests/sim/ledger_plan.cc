#include "tests/sim/ledger_plan.h"

#include <algorithm>
#include <utility>

#include "tests/sim/ledger_admission.h"
#include "tests/sim/ledger_blocks.h"
#include "tests/sim/ledger_orders.h"
#include "tests/sim/ledger_starts.h"
#include "tests/sim/ledger_swaps.h"

namespace blockmgr::sim {
namespace {

// A request may be preempted this often. After that it stays in its slot until
// it ends, whatever the admission policy is.
constexpr int32_t kLastPreemption = 2;

// Returns whether the scores are sums over queries from the first token on.
bool NeedsState(const ScorerSpec& scorer) {
  return (scorer.kind == ScorerKind::kH2o && scorer.obs_window == 0) ||
         (scorer.kind == ScorerKind::kExpectedAttention &&
          scorer.stats.empty());
}

// Checks that a request that was promised all its blocks is preempted only
// where a running request takes more blocks than it was promised.
void CheckPromise(const LedgerRequest& victim, const LedgerBooks& books) {
  const bool is_guaranteed =
      books.options.admission == AdmissionPolicy::kGuaranteed;
  if (!is_guaranteed && victim.num_preemptions <= kLastPreemption) return;
  const bool takes_more =
      !books.commands.empty() ||
      std::ranges::any_of(books.tables, [](const auto& slot) {
        return slot.second.takes_more;
      });
  const RunCounts& counts = books.counts();
  const bool are_many = is_guaranteed && !books.was_commanded &&
                        !books.was_refused &&
                        counts.preemptions > counts.cut_requests;
  if (!takes_more || are_many) {
    books.Fail("'", victim.request.id, "', promised its blocks, is ",
               "preempted for the ", victim.num_preemptions, ". time; ",
               counts.preemptions, " preemptions, ", counts.cut_requests,
               " requests have lost blocks");
  }
}

// Checks that no step is issued while a request with drafts waits for the token
// before them.
void CheckNobodyAwaits(const LedgerBooks& books) {
  for (const auto& [slot, table] : books.tables) {
    const LedgerRequest& served = books.requests.at(table.request);
    if (served.num_ready == 0 || served.num_placeholders == 0) continue;
    books.Fail("a step is issued ahead of request ", Index(table.request),
               ", with ", served.num_placeholders,
               " tokens not answered and drafts behind the last");
  }
}

// Checks that the plan has restarted every sequence that has lost blocks.
void CheckRestarts(const LedgerBooks& books) {
  for (const auto& [slot, table] : books.tables) {
    if (table.restart_due) {
      books.Fail("slot ", Index(slot), " has lost blocks and goes on");
    }
  }
}

// Checks the drafts of a run that ends at `end`. CheckReplay sees whether they
// miss an eviction.
void CheckDrafts(const LedgerTable& table, int32_t num_drafts, int32_t end,
                 const LedgerBooks& books) {
  if (num_drafts == 0) return;
  const LedgerRequest& served = books.requests.at(table.request);
  const bool is_wanted = num_drafts > 0 && num_drafts <= served.num_ready &&
                         num_drafts <= books.options.num_speculative_tokens;
  if (!is_wanted || table.has_scores ||
      table.num_settled != table.num_reserved ||
      end - num_drafts != std::ssize(served.tokens)) {
    books.Fail("request ", Index(table.request), " runs ", num_drafts, " of ",
               served.num_ready, " drafts up to ", end, " of ",
               served.tokens.size(), " tokens, ", table.num_settled, " of ",
               table.num_reserved,
               " settled, accumulates scores: ", table.has_scores);
  }
}

void CheckScorerStates(const StepPlan& plan, const LedgerBooks& books) {
  RunCounts& counts = books.counts();
  for (const EvictionOrder& order : plan.evictions) {
    if (!NeedsState(order.policy.scorer)) continue;
    ++counts.scored_evictions;
    if (!books.tables.at(order.slot).has_scores) {
      books.Fail("slot ", Index(order.slot), " evicts without a scorer state");
    }
  }
  const auto num_states = std::ranges::count_if(
      books.tables, [](const auto& table) { return table.second.has_scores; });
  const int32_t max_states = books.options.engine.num_scorer_states;
  if (num_states > max_states) {
    books.Fail(num_states, " sequences have a scorer state, of ", max_states);
  }
  counts.full_states += num_states > 0 && num_states == max_states ? 1 : 0;
}

// Checks that the requests of the plan have the evictions of their records at
// the same lengths as before.
void CheckReplay(const StepPlan& plan, const LedgerBooks& books) {
  for (const SequenceSlot slot : plan.slots) {
    const LedgerTable& table = books.tables.at(slot);
    const LedgerRequest& served = books.requests.at(table.request);
    if (served.kept_less) continue;
    const int64_t num_issued = std::ssize(served.issued);
    const int64_t num_both = std::min(num_issued, std::ssize(served.recorded));
    if (!std::equal(served.issued.begin(), served.issued.begin() + num_both,
                    served.recorded.begin())) {
      books.Fail("request ", Index(table.request),
                 " is compressed otherwise than before");
    }
    if (num_issued < std::ssize(served.recorded) &&
        served.recorded[num_issued].length <= table.num_reserved) {
      books.Fail("request ", Index(table.request), ": the eviction at ",
                 served.recorded[num_issued].length, " is not replayed");
    }
  }
}

void TakeReleased(const StepPlan& plan, LedgerBooks* books) {
  for (const SequenceSlot slot : plan.released) {
    const auto table = books->tables.find(slot);
    if (table != books->tables.end()) {
      LedgerRequest& served = books->requests.at(table->second.request);
      ++served.num_preemptions;
      ++books->counts().preemptions;
      CheckPromise(served, *books);
      books->CloseTable(slot);
    }
    if (books->unannounced.erase(slot) == 0) {
      books->Fail("slot ", Index(slot), " is released and was not in use");
    }
  }
  if (!books->unannounced.empty()) {
    books->Fail(books->unannounced.size(), " released slots are kept back");
  }
}

void TakeDroppedRegions(const StepPlan& plan, LedgerBooks* books) {
  for (const RegionId region : plan.dropped_regions) {
    if (books->regions.erase(region) + books->lost_regions.erase(region) != 1) {
      books->Fail("region ", Index(region), " is dropped and was not kept");
    }
  }
  if (!books->lost_regions.empty()) {
    books->Fail(books->lost_regions.size(), " lost regions are not dropped");
  }
}

// Takes the run of this index, and adds it to the step.
void TakeRun(const StepPlan& plan, size_t index, LedgerBooks* books,
             LedgerStep* step) {
  if (!books->ok()) return;
  const SequenceSlot slot = plan.slots[index];
  const auto found = books->tables.find(slot);
  if (found == books->tables.end()) {
    books->Fail("slot ", Index(slot), " runs and holds no sequence");
    return;
  }
  LedgerTable& table = found->second;
  LedgerRequest& served = books->requests.at(table.request);
  const int32_t num_tokens = plan.num_tokens[index];
  const int32_t end = table.num_reserved + num_tokens;
  const int32_t num_drafts =
      plan.num_drafts.empty() ? 0 : plan.num_drafts[index];
  CheckDrafts(table, num_drafts, end, *books);
  const int32_t num_known =
      static_cast<int32_t>(served.tokens.size()) + served.num_placeholders;
  if (plan.positions[index] != table.num_reserved || num_tokens <= 0 ||
      end - num_drafts > num_known ||
      end > served.num_prompt() + served.request.max_tokens - 1) {
    books->Fail("request ", Index(table.request), " computes [",
                plan.positions[index], ", ", end, ") and has ",
                table.num_reserved, " of ", num_known);
    return;
  }
  const int32_t max_chunk = books->options.long_prefill_token_threshold;
  if (max_chunk > 0 && num_tokens - num_drafts > max_chunk) {
    books->Fail("a chunk of ", num_tokens, " tokens");
  }
  const bool samples = end - num_drafts == num_known &&
                       served.num_outputs() + served.num_placeholders <
                           served.request.max_tokens;
  if ((plan.samples[index] != 0) != samples) {
    books->Fail("request ", Index(table.request), " at ", end, " of ",
                num_known, ": samples ", int{plan.samples[index]});
  }
  TakeBlocks(plan, index, &table, books);
  table.num_reserved = end;
  served.num_placeholders += samples ? 1 + num_drafts : 0;
  step->runs.push_back({.slot = slot,
                        .stay = table.stay,
                        .request = table.request,
                        .num_tokens = num_tokens,
                        .num_drafts = num_drafts,
                        .samples = samples});
}

}  // namespace

void TakePlan(const StepPlan& plan, LedgerBooks* books) {
  if (Index(plan.id) <= books->dispatched ||
      std::ssize(books->in_flight) >= books->options.max_steps_in_flight) {
    books->Fail("step ", Index(plan.id), " after ", books->dispatched, " with ",
                books->in_flight.size(), " in flight");
    return;
  }
  CheckBlockArrays(plan, *books);
  if (!books->ok()) return;
  TakeDroppedSwaps(plan, books);
  for (const SwapOut& out : plan.swap_outs) {
    if (books->ok()) TakeSwapOut(plan, out, books);
  }
  TakeReleased(plan, books);
  CheckNobodyAwaits(*books);
  for (const SequenceStart& start : plan.starts) {
    TakeStart(plan, start, books);
  }
  CheckRestarts(*books);
  TakeDroppedRegions(plan, books);
  TakeReturning(books);
  TakeCopies(plan, books);
  if (!books->ok()) return;
  LedgerStep step{.id = plan.id, .runs = {}, .orders = {}};
  for (size_t i = 0; i < plan.slots.size(); ++i) TakeRun(plan, i, books, &step);
  for (const EvictionOrder& order : plan.evictions) {
    if (books->ok()) TakeOrder(plan, order, books, &step);
  }
  if (!books->ok()) return;
  if (plan.total_tokens() > books->options.max_num_batched_tokens ||
      std::ssize(books->tables) > books->options.max_num_seqs) {
    books->Fail("step ", Index(plan.id), ": ", plan.total_tokens(), " tokens, ",
                books->tables.size(), " sequences");
  }
  CheckScorerStates(plan, *books);
  if (books->replays) CheckReplay(plan, *books);
  CheckQuotas(*books);
  books->commanded.clear();
  books->counts().deep_steps += books->in_flight.size() >= 3 ? 1 : 0;
  books->dispatched = Index(plan.id);
  books->in_flight.push_back(std::move(step));
}

}  // namespace blockmgr::sim
