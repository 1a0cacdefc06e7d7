#include "program/command_line.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "program/build_info.h"

namespace blockmgr {

std::string ProgramVersion(const std::string& program) {
  return absl::StrCat(program, " ", BuildVersion(), ", commit ", BuildCommit());
}

std::optional<int> ParseCommandLine(CLI::App* app, int argc, char** argv) {
  constexpr int kBadLine = 2;
  app->set_version_flag("--version", ProgramVersion(app->get_name()),
                        "Print the version and the commit");
  // CLI11 would only say that a subcommand is missing.
  std::vector<std::string> commands;
  for (const CLI::App* command : app->get_subcommands({})) {
    commands.push_back(command->get_name());
  }
  if (!commands.empty() && argc > 1 && argv[1][0] != '-' &&
      std::ranges::find(commands, argv[1]) == commands.end()) {
    std::fprintf(stderr, "%s: expected %s, got '%s'\n", app->get_name().c_str(),
                 absl::StrJoin(commands, ", ").c_str(), argv[1]);
    return kBadLine;
  }
  try {
    app->parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    // CLI11's own message lists them from the last to the first.
    app->exit(
        CLI::ExtrasError(absl::StrCat(app->get_name(), ": unknown arguments: ",
                                      absl::StrJoin(app->remaining(true), " ")),
                         CLI::ExitCodes::ExtrasError));
    return kBadLine;
  } catch (const CLI::ParseError& error) {
    return app->exit(error) == 0 ? 0 : kBadLine;
  }
  return std::nullopt;
}

}  // namespace blockmgr
