#include "blockmgr/base/read_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace blockmgr {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  // A stream without characters sets the failbit of what they are put into.
  const bool is_empty =
      file && file.peek() == std::ifstream::traits_type::eof();
  if (!is_folder && !is_empty) bytes << file.rdbuf();
  if (is_folder || (!is_empty && !file) || bytes.fail()) {
    return absl::NotFoundError(
        absl::StrCat("expected a readable file, got '", path, "'",
                     is_folder ? ", which is a folder" : ""));
  }
  return std::move(bytes).str();
}

}  // namespace blockmgr
