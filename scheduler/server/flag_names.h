#ifndef SCHEDULER_SERVER_FLAG_NAMES_H_
#define SCHEDULER_SERVER_FLAG_NAMES_H_

#include <string>

#include <CLI/CLI.hpp>

namespace blockmgr {

// Returns `error`, which names fields of options (SchedulerOptions,
// RequestEviction, ..), with the flags of `app` in the place of those fields
// that a flag sets: its reader has typed flags.
// "max_waiting: expected .." becomes "--max-waiting: expected ..".
std::string NameFlags(const CLI::App& app, const std::string& error);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_FLAG_NAMES_H_
