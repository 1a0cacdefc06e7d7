// The command line of a program: what all of our programs have in common.
#ifndef PROGRAM_COMMAND_LINE_H_
#define PROGRAM_COMMAND_LINE_H_

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace blockmgr {

// "blockmgrd 0.1.0, commit 0123..", for --version and logs.
std::string ProgramVersion(const std::string& program);

// Adds --version to `app`, which has the program's name, and parses the command
// line. Returns nothing if the program is to go on. Otherwise returns the exit
// status: 0 after --help or --version; 2 after an error, which is printed on
// standard error. Unknown arguments are named in their order, and an unknown
// subcommand together with those that there are.
std::optional<int> ParseCommandLine(CLI::App* app, int argc, char** argv);

}  // namespace blockmgr

#endif  // PROGRAM_COMMAND_LINE_H_
