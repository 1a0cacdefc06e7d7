#ifndef BLOCKMGR_BASE_INVALID_H_
#define BLOCKMGR_BASE_INVALID_H_

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace blockmgr {

// Returns an InvalidArgument error. The parts name the field, and say what was
// expected and what came.
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_INVALID_H_
