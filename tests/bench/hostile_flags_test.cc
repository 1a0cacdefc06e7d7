// Every number that `blockmgr-bench sim` takes, at its limits and beyond: it is
// refused by name, or the run ends.
#include <algorithm>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/sim_rates.h"
#include "blockmgr/base/status_macros.h"
#include "tests/bench/small_sim.h"
#include "tests/testing/parse_flags.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

struct Command {
  BenchOptions bench;
  SimOptions sim = SmallSim();
  RateSearchOptions search;

  Command() {
    bench.dataset.num_prompts = 5;
    bench.dataset.random = {.input_tokens = 60, .output_tokens = 5};
    bench.disable_tqdm = true;
  }

  void AddTo(CLI::App* app) {
    AddBenchFlags(app, &bench);
    AddSimFlags(app, &sim);
    AddRateSearchFlags(app, &search);
  }

  absl::Status Run(std::vector<std::string> arguments) {
    CLI::App app;
    AddTo(&app);
    BM_RETURN_IF_ERROR(ParseFlags(&app, std::move(arguments)));
    return ReportSim(bench, sim, search).status();
  }
};

// Flags with one value that is a number.
std::vector<std::string> NumericFlags() {
  CLI::App app;
  Command command;
  command.AddTo(&app);
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (absl::StartsWith(type, "INT") || absl::StartsWith(type, "UINT") ||
        absl::StartsWith(type, "FLOAT")) {
      flags.push_back(option->get_name());
    }
  }
  return flags;
}

// As `name` and the fields of options are compared: without what parts words.
std::string Squeezed(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"-", ""}, {"_", ""}});
}

class HostileFlagTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(
    All, HostileFlagTest, ::testing::ValuesIn(NumericFlags()),
    [](const testing::TestParamInfo<std::string>& flag) {
      return absl::StrReplaceAll(flag.param, {{"--", ""}, {"-", "_"}});
    });

TEST(HostileFlagsTest, AllNumbersAreTried) {
  EXPECT_GE(NumericFlags().size(), 40u);
}

TEST_P(HostileFlagTest, NumbersAreRefusedByNameOrRun) {
  const std::string& flag = GetParam();
  // What a flag needs to have any effect.
  const auto companions = [&flag] {
    std::vector<std::string> arguments;
    if (flag == "--burstiness") arguments = {"--request-rate", "5"};
    if (flag == "--compress-every") {
      arguments = {"--keep-ratio", "0.5", "--eviction-mode", "decode"};
    }
    if (flag == "--share-multiple") {
      arguments = {"--keep-ratio", "0.5", "--share-compressed-prefixes"};
    }
    if (flag == "--good-percent") {
      arguments = {"--find-max-rate", "--goodput", "ttft:100"};
    }
    return arguments;
  };
  int num_refused = 0;
  for (const char* value :
       {"0", "-1", "1e-300", "1e300", "1e-12", "100000000000", "2147483647",
        "1073741824", "65536", "99999999999999999999", "nan", "inf", "-inf", "",
        "many"}) {
    std::vector<std::string> arguments = companions();
    arguments.insert(arguments.end(), {flag, value});
    const absl::Status status = Command().Run(std::move(arguments));
    if (status.ok()) continue;
    ++num_refused;
    const std::string message(status.message());
    // "sim-flops" is the field "flops".
    const std::string name =
        Squeezed(absl::StrReplaceAll(flag, {{"--sim-", ""}, {"--", ""}}));
    EXPECT_TRUE(absl::StrContains(Squeezed(message), name))
        << flag << " " << value << ": " << message;
    // As it was typed, or as numbers are printed.
    double number = 0;
    EXPECT_TRUE(absl::StrContains(message, value) ||
                (absl::SimpleAtod(value, &number) &&
                 absl::StrContains(message, absl::StrCat(number))))
        << flag << " " << value << ": " << message;
    EXPECT_TRUE(absl::StrContains(message, "expected") ||
                absl::StrContains(message, "not in range"))
        << flag << " " << value << ": " << message;
  }
  EXPECT_GE(num_refused, 3) << flag;
}

TEST(HostileFlagsTest, TheModelTakesWhatTheFlagsTake) {
  for (const char* flag :
       {"--sim-layer-params", "--sim-output-params", "--sim-attention-flops",
        "--sim-attention-bandwidth", "--sim-flops", "--sim-bandwidth",
        "--sim-host-bandwidth", "--sim-weight-bytes"}) {
    EXPECT_OK(Command().Run({flag, "1"})) << flag;
  }
  EXPECT_OK(Command().Run({"--sim-step-overhead", "1e6"}));
  EXPECT_OK(Command().Run({"--sim-flops", "1e24"}));
  EXPECT_OK(Command().Run({"--sim-layer-params", "1e18", "--sim-flops", "1"}));
}

}  // namespace
}  // namespace blockmgr
