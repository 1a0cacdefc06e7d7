#include "program/command_line.h"

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
  try {
    app->parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    // CLI11's own message lists them from the last to the first.
    app->exit(
        CLI::ExtrasError(absl::StrCat("not expected: ",
                                      absl::StrJoin(app->remaining(true), " ")),
                         CLI::ExitCodes::ExtrasError));
    return kBadLine;
  } catch (const CLI::ParseError& error) {
    return app->exit(error) == 0 ? 0 : kBadLine;
  }
  return std::nullopt;
}

}  // namespace blockmgr
