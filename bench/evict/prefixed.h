#ifndef BENCH_EVICT_PREFIXED_H_
#define BENCH_EVICT_PREFIXED_H_

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {

// Returns the error with "PREFIX: " (a flag, a file, a policy) before its
// message.
inline absl::Status Prefixed(absl::string_view prefix,
                             const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(prefix, ": ", status.message()));
}

// Returns the error of a flag's value.
inline absl::Status BadFlag(absl::string_view flag, absl::string_view expected,
                            absl::string_view got) {
  return Invalid(flag, ": expected ", expected, ", got ", got);
}

}  // namespace blockmgr

#endif  // BENCH_EVICT_PREFIXED_H_
