// Errors of a program, with flags named as the user has typed them.
#ifndef PROGRAM_FLAG_NAMES_H_
#define PROGRAM_FLAG_NAMES_H_

#include <map>
#include <string>

#include <absl/strings/string_view.h>
#include <CLI/CLI.hpp>

namespace blockmgr {

// Maps names of fields, "eviction.mode", to flags, "--eviction-mode".
using FieldFlags = std::map<std::string, std::string>;

// Returns the fields that flags with `prefix` set. With the prefix "--sim-",
// the flag --sim-heads sets "heads" and "num_heads".
FieldFlags FieldsBehind(const CLI::App& app, absl::string_view prefix);

// Returns `error`, which names fields of options (SchedulerOptions,
// RequestEviction, ..), with flags in the place of those fields that a flag
// sets. "max_waiting: expected .." becomes "--max-waiting: expected ..", and
// "max-waiting: expected .." does, too.
//
// The flags are those of `app` and of the subcommand that its command line had.
// A field of another name than its flag is found in `fields`, which come first.
// Quoted words and parts of paths stay as they are.
std::string NameFlags(const CLI::App& app, absl::string_view error,
                      const FieldFlags& fields = {});

// Prints "PROGRAM: ERROR" to standard error, or "PROGRAM SUBCOMMAND: ERROR" if
// `app` is a subcommand, with the flags named.
void PrintError(const CLI::App& app, absl::string_view error,
                const FieldFlags& fields = {});

}  // namespace blockmgr

#endif  // PROGRAM_FLAG_NAMES_H_
