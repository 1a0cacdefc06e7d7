#ifndef BLOCKMGR_BASE_READ_FILE_H_
#define BLOCKMGR_BASE_READ_FILE_H_

#include <string>

#include <absl/status/statusor.h>

namespace blockmgr {

// Returns the whole content of the file. Returns NotFound, with the path, if
// the file does not exist, is a folder, or cannot be read to its end.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_READ_FILE_H_
