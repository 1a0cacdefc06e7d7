// Effects: what the scheduler tells of requests that end and of commands.
#ifndef TESTS_SIM_LEDGER_EFFECTS_H_
#define TESTS_SIM_LEDGER_EFFECTS_H_

#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Returns the effect by which the request ends, or null.
const FinishEffect* FindFinish(const Effects& effects, RequestId request);

// Takes the answers to commands out of the effects.
void TakeCommandEffects(const Effects& effects, LedgerBooks* books);

// Checks that the effect is of a live request and has its counts and the
// reason, and ends the request.
void TakeEnd(const FinishEffect& effect, FinishReason reason,
             LedgerBooks* books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_EFFECTS_H_
