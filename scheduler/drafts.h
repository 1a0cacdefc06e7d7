// Speculative decoding: which drafts of the engine a step verifies.
//
// The engine proposes drafts and verifies them. The plan reserves positions for
// all drafts, and AnswerSettler voids those of rejected drafts. Drafts take
// what is left of a step: tokens that no running request needs (only half of
// them while requests wait), and blocks that no running request will miss. A
// run that must end at an exact length, before an eviction, has no drafts.
#ifndef SCHEDULER_DRAFTS_H_
#define SCHEDULER_DRAFTS_H_

#include <cstdint>

#include "scheduler/request_state.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

// Returns whether a running request has drafts ready while a step in flight
// samples for this request. Then no step is planned.
bool AwaitsDrafts(const SchedulerState& state);
// Adds drafts to the runs of running requests, as far as the step has tokens
// left and no running request will miss the blocks.
void PlanDrafts(const SchedulerState& state, BlockBudget* budget,
                int32_t* token_budget, StepDecision* decision);
// Returns how many drafts the next run of a request may verify. The run must
// not reach a compression point, because the length there must be exact, or
// the request's last token, which is never an input.
int32_t MaxDrafts(const RequestState& request, const SchedulerOptions& options);

}  // namespace blockmgr

#endif  // SCHEDULER_DRAFTS_H_
