// CanaryError: the error of every check of the CanaryEngine.
#ifndef TESTS_TESTING_CANARY_ERROR_H_
#define TESTS_TESTING_CANARY_ERROR_H_

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace blockmgr {

// Returns an Internal error. The parts say what was expected and what came.
template <typename... Parts>
absl::Status CanaryError(const Parts&... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}

// Returns what EngineTables have refused as an error of the canary.
inline absl::Status AsCanaryError(const absl::Status& status) {
  return status.ok() ? status : CanaryError(status.message());
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_CANARY_ERROR_H_
