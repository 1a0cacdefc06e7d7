// Functions that limit the tokens of a request to what a sequence may have.
// Pure functions. O(1).
#ifndef SCHEDULER_SERVER_SEQUENCE_LIMITS_H_
#define SCHEDULER_SERVER_SEQUENCE_LIMITS_H_

#include <cstdint>

#include <absl/status/status.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/served_model.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_options.h"

namespace blockmgr {

// Returns the most tokens of a sequence: max_model_len, or fewer if the model's
// context has fewer. `model` is null if the engine has told nothing of it.
int32_t MaxSequenceTokens(const SchedulerOptions& options,
                          const ServedModel* model);

// Checks the request's prompt and max_tokens against MaxSequenceTokens. With
// `all_tokens`, a max_tokens that is too high is no error. It is lowered to
// what the sequence, the pool and the tenant's quota have room for, but not
// below 1. InvalidArgument names the field that is too high.
absl::Status LimitTokens(const SchedulerOptions& options,
                         const ServedModel* model, const ModelLayout& layout,
                         bool all_tokens, Request* request);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SEQUENCE_LIMITS_H_
