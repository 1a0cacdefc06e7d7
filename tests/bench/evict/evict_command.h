// Runs one of the subcommands of blockmgr-evict.
#ifndef TESTS_BENCH_EVICT_EVICT_COMMAND_H_
#define TESTS_BENCH_EVICT_EVICT_COMMAND_H_

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bench/evict/commands.h"
#include "tests/testing/parse_flags.h"

namespace blockmgr {

struct CommandOutcome {
  int exit_status = -1;  // -1: wrong usage
  std::string output;
  std::string errors;
  std::string usage_error;
};

// `words` are the command line, with the name of the subcommand, which `add`
// (one of commands.h) adds.
inline CommandOutcome RunEvictCommand(void (*add)(CLI::App&, int*),
                                      std::vector<std::string> words) {
  CLI::App app("", "blockmgr-evict");
  CommandOutcome outcome;
  int exit_status = 0;  // as in main.cc
  add(app, &exit_status);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const absl::Status usage = ParseFlags(&app, std::move(words));
  outcome.usage_error = std::string(usage.message());
  if (usage.ok()) outcome.exit_status = exit_status;
  outcome.output = ::testing::internal::GetCapturedStdout();
  outcome.errors = ::testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace blockmgr

#endif  // TESTS_BENCH_EVICT_EVICT_COMMAND_H_
