// Files that a program writes at its end, checked before it begins.
#ifndef PROGRAM_OUTPUT_FILE_H_
#define PROGRAM_OUTPUT_FILE_H_

#include <string>

#include <absl/status/status.h>
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

// For CLI::Option::check: CheckOutputFile of a flag's value. An empty value and
// "-", which name no file, pass.
CLI::Validator OutputFile();

}  // namespace blockmgr

#endif  // PROGRAM_OUTPUT_FILE_H_
