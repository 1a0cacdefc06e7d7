// Speculative decoding: which drafts of the engine a step verifies.
//
// The engine proposes drafts and verifies them; the plan has a slot for each of
// them, as if all were accepted (AnswerSettler voids the others). Drafts are an
// extra of the step: they take tokens that are left when every running request
// has its own (half of them, while others wait to be admitted) and blocks that
// no running request wants, and go where no length has to be exact.
#ifndef SCHEDULER_DRAFTS_H_
#define SCHEDULER_DRAFTS_H_

#include <cstdint>

#include "scheduler/request_state.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

// Returns whether a running request has drafts for a run that follows one in
// flight. Then no step is planned.
bool AwaitsDrafts(const SchedulerState& state);
// Adds drafts to the runs of running requests, as far as the step has tokens
// left and no running request will miss the blocks.
void PlanDrafts(const SchedulerState& state, BlockBudget* budget,
                int32_t* token_budget, StepDecision* decision);
// Returns how many drafts the next run of a request may verify: where the
// request is compressed its length must be sure, and its last token is never an
// input.
int32_t MaxDrafts(const RequestState& request, const SchedulerOptions& options);

}  // namespace blockmgr

#endif  // SCHEDULER_DRAFTS_H_
