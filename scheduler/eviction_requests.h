// Checks the evictions that requests and commands ask for, and lists their
// compression points. OrderPlanner decides in which step one is ordered.
#ifndef SCHEDULER_EVICTION_REQUESTS_H_
#define SCHEDULER_EVICTION_REQUESTS_H_

#include <string>

#include <absl/status/status.h>

#include "blockmgr/base/model_layout.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/scheduler_state.h"

namespace blockmgr {

// Scheduler::ValidateEviction.
absl::Status ValidateEviction(const RequestEviction& eviction,
                              const ModelLayout& layout,
                              const SchedulerOptions& options);

// Returns what the user of a valid eviction should be warned of; empty if there
// is nothing. Compressed prefixes are shared by requests whose questions come
// behind the prefix. A scorer that observes the last queries of the prefix
// keeps what those queries attend to, and evicts what later questions ask for.
std::string SharingWarning(const RequestEviction& eviction);

// Checks a command for a live request, as Scheduler::Evict says.
absl::Status ValidateCommand(const RequestState& request,
                             const EvictionCommand& command,
                             const SchedulerState& state);

// Refuses a request if too many of its compressions would have to be computed
// when it is submitted. `parent` is as for PlanEviction. O(1).
absl::Status CheckNumPoints(const Request& request, const RequestState* parent,
                            const ModelLayout& layout);

// Returns how a valid request is compressed, before the first point of
// EvictionMode::kDecode is listed (ListFirstPoint). `parent` is the request
// that it is a fork of, or null.
EvictionPlan PlanEviction(const Request& request, const RequestState* parent,
                          const ModelLayout& layout);

}  // namespace blockmgr

#endif  // SCHEDULER_EVICTION_REQUESTS_H_
