// blockmgr-evict: policies on tensors, golden vectors, LU-KV profiles.
#include <CLI/CLI.hpp>

#include "bench/evict/commands.h"
#include "blockmgr/base/run_main.h"

namespace {

constexpr char kFooter[] =
    "\nExamples:\n"
    "  blockmgr-evict check tests/golden/vectors/*.txt\n"
    "  blockmgr-evict run --policy 'keydiff | adakv' --keep-ratio 0.2 \\\n"
    "      --keys keys.npy --output-positions kept.npy\n"
    "\nExit status: 0 success, 1 a finding or a failure, 2 wrong usage.\n";

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help is one, too.
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  return blockmgr::RunMain(&Main, argc, argv);
}
