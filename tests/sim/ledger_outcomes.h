// Outcomes: what follows when the engine has carried out an eviction, or has
// refused it.
#ifndef TESTS_SIM_LEDGER_OUTCOMES_H_
#define TESTS_SIM_LEDGER_OUTCOMES_H_

#include <span>

#include "blockmgr/step_plan.h"
#include "scheduler/scheduler.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// RunOutcomes is what was answered to the eviction orders of one run.
struct RunOutcomes {
  const LedgerStep::Run& run;
  std::span<const LedgerStep::Order> orders;
  std::span<const EvictionOutcome> outcomes;  // by order
  const Effects& effects;                     // of the whole answer
};

// Takes the outcomes into the books, and checks that the effects tell them.
void TakeOutcomes(const RunOutcomes& outcomes, LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_OUTCOMES_H_
