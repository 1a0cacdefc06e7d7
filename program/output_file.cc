#include "program/output_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>

namespace blockmgr {
namespace {

namespace fs = std::filesystem;

std::string CannotWrite(const std::string& path, const std::error_code& why) {
  return absl::StrCat("expected a file that can be written, got '", path,
                      "': ", why.message());
}

// Returns the error that a program meets at its end.
absl::Status NotWritten(absl::string_view flag, const std::string& path,
                        const std::error_code& why) {
  return absl::UnavailableError(
      absl::StrCat(flag, ": ", CannotWrite(path, why)));
}

std::error_code ErrorOfNumber(int error) {
  return {error, std::generic_category()};
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

// Returns the regular file that `path` leads to, which need not exist, or
// nothing if it leads to something else, or to an open file of a process.
std::optional<fs::path> FileBehind(fs::path path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type != fs::file_type::regular && type != fs::file_type::not_found) {
    return std::nullopt;
  }
  path = fs::absolute(path, error);
  while (!error && fs::is_symlink(path, error)) {
    const fs::path folder = fs::canonical(path.parent_path(), error);
    if (error || folder.native().starts_with("/proc/")) return std::nullopt;
    path = folder / fs::read_symlink(path, error);
  }
  path = fs::weakly_canonical(path, error);
  if (error) return std::nullopt;
  return path;
}

// Makes a file of a name that no file has. Returns nullptr, and errno, if it
// cannot be made.
std::FILE* OpenNewFile(absl::string_view stem, absl::string_view extension,
                       std::string* name) {
  for (int number = 1;; ++number) {
    *name = number == 1 ? absl::StrCat(stem, extension)
                        : absl::StrCat(stem, "-", number, extension);
    std::FILE* const file = std::fopen(name->c_str(), "wbxe");
    if (file != nullptr || errno != EEXIST) return file;
  }
}

// Writes and closes the file. Returns the error, or 0.
int WriteAndClose(std::FILE* file, const std::string& bytes) {
  if (file == nullptr) return errno;
  const int error =
      ErrorOf(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  const int close_error = ErrorOf(std::fclose(file) == 0);
  return error != 0 ? error : close_error;
}

// Returns the error, or 0.
int WriteInPlace(const FileContent& file) {
  return WriteAndClose(std::fopen(file.path.c_str(), "wbe"), file.bytes);
}

// A file beside its place, which is removed unless it has been renamed. No
// name: there is none.
struct Part {
  std::string name;
  fs::path place;

  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() {
    if (!name.empty()) unlink(name.c_str());
  }
};

}  // namespace

absl::Status CheckOutputFile(const std::string& path) {
  const int error = WriteError(path);
  if (error == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(CannotWrite(path, ErrorOfNumber(error)));
}

absl::Status PrepareOutputFile(absl::string_view flag,
                               const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  const absl::Status status =
      error ? absl::InvalidArgumentError(CannotWrite(path, error))
            : CheckOutputFile(path);
  if (status.ok()) return absl::OkStatus();
  return absl::Status(status.code(),
                      absl::StrCat(flag, ": ", status.message()));
}

absl::Status WriteOutputFiles(const std::vector<FileContent>& files) {
  std::vector<Part> parts(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    const std::optional<fs::path> place = FileBehind(files[i].path);
    if (!place.has_value()) continue;
    std::string name;
    std::FILE* const file = OpenNewFile(place->native(), ".part", &name);
    if (file == nullptr) continue;
    parts[i].name = name;
    parts[i].place = *place;
    struct stat old {};
    // A file that is replaced keeps its permissions.
    if (stat(place->c_str(), &old) == 0) fchmod(fileno(file), old.st_mode);
    const int error = WriteAndClose(file, files[i].bytes);
    if (error != 0) {
      return NotWritten(files[i].flag, files[i].path, ErrorOfNumber(error));
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (!parts[i].name.empty()) continue;
    const int error = WriteInPlace(files[i]);
    if (error != 0) {
      return NotWritten(files[i].flag, files[i].path, ErrorOfNumber(error));
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (parts[i].name.empty()) continue;
    std::error_code error;
    fs::rename(parts[i].name, parts[i].place, error);
    if (!error) {
      parts[i].name.clear();
      continue;
    }
    // A file that is mounted by itself, or a stranger's in a sticky folder, can
    // be written and not replaced.
    if (WriteInPlace(files[i]) != 0) {
      return NotWritten(files[i].flag, files[i].path, error);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> MakeNewFile(absl::string_view flag,
                                        absl::string_view stem,
                                        absl::string_view extension) {
  std::string name;
  const int error = WriteAndClose(OpenNewFile(stem, extension, &name), "");
  if (error != 0) return NotWritten(flag, name, ErrorOfNumber(error));
  return name;
}

bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  const std::optional<fs::path> behind_a = FileBehind(a);
  return fs::equivalent(a, b, error) ||
         (behind_a.has_value() && behind_a == FileBehind(b));
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
