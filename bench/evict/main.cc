// blockmgr-evict: policies on tensors, golden vectors, LU-KV profiles.
#include <optional>

#include <CLI/CLI.hpp>

#include "bench/evict/commands.h"
#include "blockmgr/base/run_main.h"
#include "program/command_line.h"

namespace {

constexpr char kFooter[] =
    "\nExamples:\n"
    "  blockmgr-evict check tests/golden/vectors/*.txt\n"
    "  blockmgr-evict run --policy 'keydiff | adakv' --keep-ratio 0.2 \\\n"
    "      --keys keys.npy --output-positions kept.npy\n"
    "\nExit status: 0 success, 1 a finding, or something that flags or files\n"
    "say and that cannot be done, 2 a command line that cannot be read.\n";

int Main(int argc, char** argv) {
  CLI::App app("Eviction policies on tensors, without an engine.",
               "blockmgr-evict");
  app.require_subcommand(1);
  app.footer(kFooter);
  int exit_status = 0;
  blockmgr::AddCheckCommand(app, &exit_status);
  blockmgr::AddRunCommand(app, &exit_status);
  blockmgr::AddLossCommand(app, &exit_status);
  blockmgr::AddPlotCommand(app, &exit_status);
  blockmgr::AddProfileCommand(app, &exit_status);
  if (const std::optional<int> status =
          blockmgr::ParseCommandLine(&app, argc, argv)) {
    return *status;
  }
  return exit_status;
}

}  // namespace

int main(int argc, char** argv) { return blockmgr::RunMain(&Main, argc, argv); }
