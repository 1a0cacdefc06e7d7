#ifndef BLOCKMGR_BASE_READ_FILE_H_
#define BLOCKMGR_BASE_READ_FILE_H_

#include <string>

#include <absl/status/statusor.h>

namespace blockmgr {

// All of the file, as it is. NotFound, naming the path: there is none, it is a
// folder, or reading fails midway.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_READ_FILE_H_
