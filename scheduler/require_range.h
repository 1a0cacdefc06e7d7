// Functions that check numbers from outside.
#ifndef SCHEDULER_REQUIRE_RANGE_H_
#define SCHEDULER_REQUIRE_RANGE_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {

// Returns InvalidArgument, which names the field, unless low <= value <= high.
// `why` says where the limits come from, if another field sets them.
inline absl::Status RequireRange(absl::string_view field, int64_t value,
                                 int64_t low, int64_t high,
                                 absl::string_view why = "") {
  if (value >= low && value <= high) return absl::OkStatus();
  return Invalid(field, ": expected ", low, " to ", high,
                 why.empty() ? "" : absl::StrCat(" (", why, ")"), ", got ",
                 value);
}

// A visitor of options (scheduler_options.h) that checks them. status() is OK,
// or InvalidArgument that names the first option out of its range, with
// `prefix` before the name.
class RangeChecks {
 public:
  explicit RangeChecks(std::string prefix = "") : prefix_(std::move(prefix)) {}

  template <typename T>
  void Number(absl::string_view name, const T& value,
              std::type_identity_t<T> min, std::type_identity_t<T> max,
              const char* /*help*/) {
    // The comparisons are false for NaN.
    if (!status_.ok() || (value >= min && value <= max)) return;
    status_ = Invalid(prefix_, name, ": expected ", min, " to ", max, ", got ",
                      value);
  }
  void Fraction(absl::string_view name, double value, const char* /*help*/) {
    if (!status_.ok() || (value >= 0 && value < 1)) return;
    status_ =
        Invalid(prefix_, name, ": expected a fraction in [0, 1), got ", value);
  }
  void Bool(absl::string_view /*name*/, bool /*value*/, const char* /*help*/) {}
  template <typename Enum>
  void Choice(absl::string_view /*name*/, Enum /*value*/,
              const char* /*help*/) {}

  const absl::Status& status() const { return status_; }

 private:
  const std::string prefix_;
  absl::Status status_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_REQUIRE_RANGE_H_
