// Answers: which answers to a step are right, and what they bring about.
#ifndef TESTS_SIM_LEDGER_ANSWER_H_
#define TESTS_SIM_LEDGER_ANSWER_H_

#include "blockmgr/step_plan.h"
#include "scheduler/scheduler.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Returns whether this is an answer to the oldest step in flight.
bool IsValidAnswer(const StepResult& result, const LedgerBooks& books);

// Takes the answer to the oldest step in flight into the books, and checks that
// the effects are those of the answer. REQUIRES: IsValidAnswer().
void TakeAnswer(const StepResult& result, const Effects& effects,
                LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_ANSWER_H_
