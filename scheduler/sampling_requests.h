// Functions that check what requests ask of the engine's sampling: whether it
// is in range, and whether the engine can do it.
//
// Thread-safe: pure functions.
#ifndef SCHEDULER_SAMPLING_REQUESTS_H_
#define SCHEDULER_SAMPLING_REQUESTS_H_

#include <cstdint>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "blockmgr/sampling_params.h"
#include "scheduler/request.h"

namespace blockmgr {

// Checks what an engine announces. InvalidArgument names the field.
absl::Status ValidateEngineSampling(const EngineSampling& engine);

// Checks that every token id is at least 0 and below the engine's vocabulary
// size, if it is known. InvalidArgument names the index.
absl::Status ValidateTokens(absl::string_view field,
                            const std::vector<int32_t>& tokens,
                            int32_t vocabulary_size);

// Checks a request's SamplingParams. InvalidArgument names the field that is
// out of its range. FailedPrecondition names the field that the engine does not
// support.
absl::Status ValidateSampling(const Request& request,
                              const EngineSampling& engine);

// Returns the tokens that end the request, ascending: its own, and the engine's
// unless `ignore_eos`.
std::vector<int32_t> StopTokensOf(const Request& request,
                                  const EngineSampling& engine,
                                  bool ignore_eos);

}  // namespace blockmgr

#endif  // SCHEDULER_SAMPLING_REQUESTS_H_
