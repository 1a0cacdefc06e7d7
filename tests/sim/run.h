// Runs: one world from its options and events to rest, and whole ranges of
// seeds in a child process, so that an abort is a failure like any other.
#ifndef TESTS_SIM_RUN_H_
#define TESTS_SIM_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "tests/sim/event.h"
#include "tests/sim/options.h"
#include "tests/sim/report.h"

namespace blockmgr::sim {

// A run that can be stored and repeated.
struct Script {
  SimOptions options;
  std::vector<Event> events;
  // Counts that it has to bring about: what it is kept for.
  std::vector<std::string> reaches = {};
};
// "reaches COUNT" lines and options, an empty line, events.
std::string FormatScript(const Script& script);
absl::StatusOr<Script> ParseScript(absl::string_view text);
absl::StatusOr<Script> ReadScript(const std::string& path);

// The first num_events events of a seed.
Script ScriptOfSeed(int32_t seed, int64_t num_events);

// Chaos by the events, then heal and quiesce.
void RunScript(const Script& script, Report* report);
// Chaos until `steps` plans have been issued, then heal and quiesce.
// `progress`, if any, is set to the number of events so far.
void RunSeed(int32_t seed, int32_t steps, Report* report, int64_t* progress);

struct Failure {
  int32_t seed = 0;
  int64_t num_events = 0;  // when it failed; in heal or quiesce: all of chaos
  std::string message;
};

struct RangeResult {
  uint64_t hash = 0;  // of the hashes of all runs
  RunCounts counts;
  std::optional<Failure> failure;  // the first; later seeds were not run
};

struct SeedRange {
  int32_t first = 0;
  int32_t num = 0;
  int32_t steps = 500;
};

// Runs the seeds in a child process. `setup` is called there first;
// `max_seconds` bounds each of them (a seed that hangs is a failure).
RangeResult RunRange(const SeedRange& range, int32_t max_seconds,
                     const std::function<void()>& setup = {});
// The same for one script: what went wrong, or nullopt.
std::optional<std::string> RunInChild(const Script& script,
                                      int32_t max_seconds);

// The shortest failing script that delta debugging finds within max_trials
// runs. REQUIRES: `script` fails.
Script Shrink(Script script, const std::function<bool(const Script&)>& fails,
              int32_t max_trials);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_RUN_H_
