#ifndef BENCH_EVICT_OUTPUT_NAME_H_
#define BENCH_EVICT_OUTPUT_NAME_H_

#include <filesystem>
#include <string>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"

namespace blockmgr {

// Checks that an output file is not named as if it had another format: `path`
// must end in `extension` (".svg"), or have no extension (/dev/stdout). The
// error names the flag and what would be written.
inline absl::Status CheckOutputName(absl::string_view flag,
                                    const std::string& path,
                                    absl::string_view extension,
                                    absl::string_view content) {
  const std::string own = std::filesystem::path(path).extension().string();
  if (own.empty() || absl::EqualsIgnoreCase(own, extension)) {
    return absl::OkStatus();
  }
  return Invalid(flag, ": expected a name that ends in ", extension, ", for ",
                 content, " is written, got '", path, "'");
}

}  // namespace blockmgr

#endif  // BENCH_EVICT_OUTPUT_NAME_H_
