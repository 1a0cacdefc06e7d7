#include "tests/sim/ledger.h"

#include <algorithm>

#include "tests/sim/ledger_admission.h"
#include "tests/sim/ledger_answer.h"
#include "tests/sim/ledger_compare.h"
#include "tests/sim/ledger_effects.h"
#include "tests/sim/ledger_loss.h"
#include "tests/sim/ledger_plan.h"

namespace blockmgr::sim {

void Ledger::OnSubmit(const Request& request,
                      const absl::StatusOr<RequestId>& id) {
  TakeSubmit(request, id, &books_);
}

void Ledger::OnCancel(RequestId request, const absl::Status& status,
                      const Effects& effects) {
  const auto found = books_.requests.find(request);
  const bool was_live = found != books_.requests.end() && found->second.live;
  books_.report->Mix(static_cast<uint64_t>(status.code()));
  if (status.ok() != was_live ||
      effects.finished.size() != (was_live ? 1u : 0u) ||
      !effects.tokens.empty()) {
    books_.Fail("Cancel of request ", Index(request), ", live: ", was_live,
                ": ", status.ToString(), ", ", effects.finished.size(),
                " ends");
    return;
  }
  TakeCommandEffects(effects, &books_);
  if (was_live) TakeEnd(effects.finished[0], FinishReason::kCancelled, &books_);
}

void Ledger::OnEvict(RequestId request,
                     const absl::StatusOr<uint64_t>& number) {
  books_.report->Mix(static_cast<uint64_t>(number.status().code()));
  if (!number.ok()) return;
  const auto found = books_.requests.find(request);
  if (found == books_.requests.end() || !found->second.live) {
    books_.Fail("an eviction of a request that is not live was accepted");
  }
  books_.was_commanded = true;
  if (!books_.commands.insert(*number).second) {
    books_.Fail("command number ", *number, " was given twice");
  }
  books_.counts().evicted_again += books_.commanded.count(request);
}

void Ledger::OnWithdraw(uint64_t command) {
  if (books_.commands.erase(command) == 0) {
    books_.Fail("command ", command, " was withdrawn, and did not wait");
  }
}

void Ledger::OnPlan(const StepPlan& plan) {
  if (books_.ok()) TakePlan(plan, &books_);
}

void Ledger::OnResult(const StepResult& result, const absl::Status& status,
                      const Effects& effects) {
  if (!books_.ok()) return;
  books_.report->Mix(static_cast<uint64_t>(status.code()));
  const bool valid = IsValid(result);
  if (status.ok() != valid) {
    books_.Fail("answer to step ", Index(result.id), ", valid: ", valid, ": ",
                status.ToString());
    return;
  }
  if (valid) {
    TakeAnswer(result, effects, &books_);
    return;
  }
  ++books_.counts().wrong_results;
  if (!effects.tokens.empty() || !effects.finished.empty() ||
      !effects.evictions.empty()) {
    books_.Fail("a refused answer had effects");
  }
}

void Ledger::TakeCuts(const BlockManager& manager) {
  sim::TakeCuts(manager, &books_);
}

void Ledger::TakeLeft(const BlockManager& manager) {
  sim::TakeLeft(manager, &books_);
}

void Ledger::OnLoseEngine(const Effects& effects) {
  TakeCommandEffects(effects, &books_);
  if (!effects.finished.empty() || !effects.tokens.empty()) {
    books_.Fail("the loss of an engine ended a request");
  }
  while (!books_.tables.empty()) {
    books_.CloseTable(books_.tables.begin()->first);
  }
  books_.unannounced.clear();
  books_.in_flight.clear();
  books_.acknowledged = books_.dispatched;
  std::ranges::fill(books_.blocks, LedgerBlock{});
  books_.regions.clear();
  books_.lost_regions.clear();
  books_.swaps.clear();
  std::ranges::fill(books_.host_fences, 0);
}

void Ledger::OnReset() {
  const auto is_free = [this](BlockId block) {
    return books_.CountHolders(block) == 0;
  };
  for (int32_t i = 1; i < books_.layout.num_blocks; ++i) {
    if (is_free(BlockId{i})) books_.blocks[i].content.clear();
  }
  books_.LoseRegions(is_free);
}

void Ledger::Compare(const BlockManager& manager, const SchedulerStats& stats) {
  CompareBooks(books_, manager, stats);
}

void Ledger::CheckQuiescent(const SchedulerStats& stats) {
  books_.counts().passes = stats.num_passes;
  books_.counts().prefix_waits = stats.num_prefix_waits;
  CheckAtRest(books_, stats);
}

bool Ledger::IsValid(const StepResult& result) const {
  return IsValidAnswer(result, books_);
}

int64_t Ledger::CountStepsToDrain() const {
  int64_t steps = 16;
  for (const auto& [name, id] : books_.names) {
    const Request& request = books_.requests.at(id).request;
    const int64_t length = std::ssize(request.prompt) + request.max_tokens + 4;
    steps += (books_.options.max_steps_in_flight + 2) * length;
    // A request is computed again for each compression that is refused when
    // entries were moved already. There is one for each page at most.
    if (books_.was_refused) {
      steps += length * length / books_.layout.page_size;
    }
  }
  return steps;
}

}  // namespace blockmgr::sim
