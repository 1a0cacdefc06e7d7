// Functions for requests that start with what a running request has computed
// (Request::fork_of).
#ifndef SCHEDULER_FORKS_H_
#define SCHEDULER_FORKS_H_

#include <cstdint>

#include <absl/status/status.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/prefix_match.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

// Checks a request against the live request that it names as its parent, which
// is null if there is none.
absl::Status ValidateFork(const Request& request, const RequestState* parent);

// Returns the eviction plan of a fork with a prompt of num_prompt tokens and
// last_length tokens at its end. The fork is compressed like its parent, but
// without the commands and squeezes that compressed the parent behind the
// fork's prompt.
EvictionPlan InheritedPlan(const RequestState& parent, int32_t num_prompt,
                           int32_t last_length, const ModelLayout& layout);

// Returns how many first tokens both requests have in common. Tokens are only
// appended, so the comparison starts at fork.num_common, where an earlier one
// ended.
int32_t CountCommonTokens(const RequestState& parent, const RequestState& fork);

struct ForkPoint {
  // The fork must wait until its parent has computed the common tokens.
  bool waits = false;
  // Without tokens: the request starts like any other.
  PrefixMatch match = {};
};
// Returns which of its parent's tokens a waiting request may start with. If the
// parent's eviction plan has changed, the decision takes the fork's new plan.
ForkPoint FindFork(const SchedulerState& state, const RequestState& request,
                   StepDecision* decision);

}  // namespace blockmgr

#endif  // SCHEDULER_FORKS_H_
