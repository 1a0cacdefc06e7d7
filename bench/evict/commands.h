// The subcommands of blockmgr-evict. Each Add function adds one to `app`, with
// its flags and help; running it sets *exit_status: 0 success, 1 a finding or a
// failure that was printed to standard error.
#ifndef BENCH_EVICT_COMMANDS_H_
#define BENCH_EVICT_COMMANDS_H_

#include <CLI/CLI.hpp>

namespace blockmgr {

void AddCheckCommand(CLI::App& app, int* exit_status);    // check.cc
void AddRunCommand(CLI::App& app, int* exit_status);      // run.cc
void AddLossCommand(CLI::App& app, int* exit_status);     // loss.cc
void AddPlotCommand(CLI::App& app, int* exit_status);     // plot.cc
void AddProfileCommand(CLI::App& app, int* exit_status);  // profile.cc

}  // namespace blockmgr

#endif  // BENCH_EVICT_COMMANDS_H_
