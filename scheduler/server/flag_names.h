#ifndef SCHEDULER_SERVER_FLAG_NAMES_H_
#define SCHEDULER_SERVER_FLAG_NAMES_H_

#include <string>

#include <CLI/CLI.hpp>

namespace blockmgr {

// An error about options (SchedulerOptions, RequestEviction, ..) as whoever has
// typed flags of `app` reads it: fields that flags set are named by the flags.
// "max_waiting: expected .." becomes "--max-waiting: expected ..".
std::string NameFlags(const CLI::App& app, const std::string& error);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_FLAG_NAMES_H_
