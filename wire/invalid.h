#ifndef WIRE_INVALID_H_
#define WIRE_INVALID_H_

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace blockmgr {

// Returns an InvalidArgument error about a message. The parts name the field,
// and say what was expected and what came.
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace blockmgr

#endif  // WIRE_INVALID_H_
