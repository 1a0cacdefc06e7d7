#include "program/output_file.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>

namespace blockmgr {
namespace {

absl::Status CannotWrite(const std::string& path, const std::error_code& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected a file that can be written, got '", path,
                   "': ", why.message()));
}

// Opens the file and closes it. Returns the error, or 0.
int TryOpen(const std::string& path, int flags) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (file < 0) return errno;
  close(file);
  return 0;
}

int ErrorOf(bool succeeded) { return succeeded ? 0 : errno; }

// Returns the error that writing the file would meet, or 0.
int WriteError(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return EISDIR;
    if (S_ISREG(status.st_mode)) return TryOpen(path, 0);
    // The reader of a pipe would take the end of a trial for the end.
    return ErrorOf(access(path.c_str(), W_OK) == 0);
  }
  if (errno != ENOENT) return errno;
  // Permissions do not tell it of every file system, for example of /proc.
  const int error = TryOpen(path, O_CREAT | O_EXCL);
  // A link to a file that is not there yet.
  if (error == EEXIST) return 0;
  if (error != 0) return error;
  return ErrorOf(unlink(path.c_str()) == 0);
}

}  // namespace

absl::Status CheckOutputFile(const std::string& path) {
  const int error = WriteError(path);
  if (error == 0) return absl::OkStatus();
  return CannotWrite(path, std::error_code(error, std::generic_category()));
}

absl::Status PrepareOutputFile(absl::string_view flag,
                               const std::string& path) {
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const absl::Status status =
      error ? CannotWrite(path, error) : CheckOutputFile(path);
  if (status.ok()) return absl::OkStatus();
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

CLI::Validator OutputFile() {
  CLI::Validator validator("");
  validator.operation([](std::string& path) {
    if (path.empty() || path == "-") return std::string();
    return std::string(CheckOutputFile(path).message());
  });
  return validator;
}

}  // namespace blockmgr
