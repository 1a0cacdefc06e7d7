// What a fork has from its parent (Request::fork_of).
#ifndef SCHEDULER_FORKS_H_
#define SCHEDULER_FORKS_H_

#include <cstdint>

#include "blockmgr/base/model_layout.h"
#include "scheduler/request_state.h"

namespace blockmgr {

// Returns how a fork with a prompt of num_prompt tokens, and last_length tokens
// at its end, is compressed: as its parent, but for the commands and squeezes
// that met the parent behind the fork's prompt.
EvictionPlan InheritedPlan(const RequestState& parent, int32_t num_prompt,
                           int32_t last_length, const ModelLayout& layout);

// Returns how many tokens both begin with. Tokens are only ever appended, so
// the comparison starts where fork.num_common says that an earlier one ended.
int32_t NumCommonTokens(const RequestState& parent, const RequestState& fork);

}  // namespace blockmgr

#endif  // SCHEDULER_FORKS_H_
