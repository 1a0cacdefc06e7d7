// Parses a command line in a test.
#ifndef TESTS_TESTING_PARSE_FLAGS_H_
#define TESTS_TESTING_PARSE_FLAGS_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <CLI/CLI.hpp>

namespace blockmgr {

// OK, with the values in what the flags of `app` were added for; or
// InvalidArgument with the parser's complaint.
inline absl::Status ParseFlags(CLI::App* app,
                               std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app->parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return absl::OkStatus();
}

}  // namespace blockmgr

#endif  // TESTS_TESTING_PARSE_FLAGS_H_
