// Files that a program writes at its end, checked before it begins.
#ifndef PROGRAM_OUTPUT_FILE_H_
#define PROGRAM_OUTPUT_FILE_H_

#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>
#include <CLI/CLI.hpp>

namespace blockmgr {

// Returns an error that names the path and the reason if the file `path` cannot
// be written. An existing file keeps its contents. If there was no file, there
// is none afterwards.
absl::Status CheckOutputFile(const std::string& path);

// Makes the folder of the file if need be, and does CheckOutputFile. The error
// begins with `flag`.
absl::Status PrepareOutputFile(absl::string_view flag, const std::string& path);

// The whole content of an output file.
struct FileContent {
  std::string flag;  // that names the file
  std::string path;
  std::string bytes;
};

// Writes all files or none, as far as a file system can. A file is written
// beside its place first and then renamed, behind the links that lead to it. In
// place are written what is no regular file, such as a device or a pipe, and
// what has no room for a file beside it. The error begins with the flag.
absl::Status WriteOutputFiles(const std::vector<FileContent>& files);

// Makes an empty file of a name that no file has, STEM EXTENSION or STEM-2
// EXTENSION and so on, and returns the name. The error begins with `flag`.
absl::StatusOr<std::string> MakeNewFile(absl::string_view flag,
                                        absl::string_view stem,
                                        absl::string_view extension);

// Returns whether both paths, of which neither need exist, are of one file.
bool IsSameFile(const std::string& a, const std::string& b);

// For CLI::Option::check: CheckOutputFile of a flag's value. An empty value and
// "-", which name no file, pass.
CLI::Validator OutputFile();

}  // namespace blockmgr

#endif  // PROGRAM_OUTPUT_FILE_H_
