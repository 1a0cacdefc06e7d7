// The commonest check of a number from outside.
#ifndef SCHEDULER_REQUIRE_RANGE_H_
#define SCHEDULER_REQUIRE_RANGE_H_

#include <cstdint>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// InvalidArgument naming the field unless low <= value <= high. `why`: where
// the limits come from, if others than the field's own say.
inline absl::Status RequireRange(absl::string_view field, int64_t value,
                                 int64_t low, int64_t high,
                                 absl::string_view why = "") {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": expected ", low, " to ", high,
      why.empty() ? "" : absl::StrCat(" (", why, ")"), ", got ", value));
}

}  // namespace blockmgr

#endif  // SCHEDULER_REQUIRE_RANGE_H_
