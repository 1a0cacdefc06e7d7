// sim_test: the simulator by hand and from CTest. See README.md here.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <CLI/CLI.hpp>

#include "blockmgr/base/run_main.h"
#include "tests/sim/run.h"

namespace blockmgr::sim {
namespace {

// Shrinking stops there: a thousand runs of a tiny world take seconds.
constexpr int32_t kMaxTrials = 1500;

struct Flags {
  int32_t num_seeds = 40;
  int32_t first_seed = 1;
  int32_t steps = 500;
  int32_t max_seconds = 300;
  bool verbose = false;
  bool twice = false;
  std::string replay;
  std::string failures = ".";
  std::string hash_file;
};

// Quiet about the hundreds of aborts on the way.
bool Fails(const Script& script) { return RunInChild(script, 20).has_value(); }

void Explain(const Failure& failure, const Flags& flags) {
  const Script script = ScriptOfSeed(failure.seed, failure.num_events);
  std::printf("FAILED: seed %d after %lld events: %s\n%s", failure.seed,
              static_cast<long long>(failure.num_events),
              failure.message.c_str(), FormatOptions(script.options).c_str());
  std::fflush(stdout);
  if (!Fails(script)) {
    std::printf("its events alone do not fail: run it again with --verbose\n");
    return;
  }
  std::FILE* quiet = std::freopen("/dev/null", "w", stderr);
  (void)quiet;
  const Script small = Shrink(script, Fails, kMaxTrials);
  const std::string path =
      absl::StrCat(flags.failures, "/sim-seed-", failure.seed, ".txt");
  std::ofstream(path) << FormatScript(small);
  std::printf("%zu events are enough (%s):\n%sreplay: sim_test --replay=%s\n",
              small.events.size(),
              RunInChild(small, 20).value_or("not always").c_str(),
              FormatEvents(small.events).c_str(), path.c_str());
}

int Replay(const Flags& flags) {
  const absl::StatusOr<Script> script = ReadScript(flags.replay);
  if (!script.ok()) {
    std::fprintf(stderr, "%s\n", script.status().ToString().c_str());
    return 2;
  }
  Report report(flags.verbose);
  RunScript(*script, &report);
  std::printf("%s: %s\ntrace hash %016llx: %s\n", flags.replay.c_str(),
              report.ok() ? "passed" : report.message().c_str(),
              static_cast<unsigned long long>(report.hash()),
              report.counts().ToString().c_str());
  return report.ok() ? 0 : 1;
}

// In this process, so that a debugger finds it.
int RunVerbosely(const Flags& flags) {
  for (int32_t i = 0; i < flags.num_seeds; ++i) {
    Report report(true);
    RunSeed(flags.first_seed + i, flags.steps, &report, nullptr);
    std::printf("seed %d: trace hash %016llx, %s\n", flags.first_seed + i,
                static_cast<unsigned long long>(report.hash()),
                report.counts().ToString().c_str());
    if (!report.ok()) return 1;
  }
  return 0;
}

bool WriteHash(uint64_t hash, const std::string& path) {
  std::ofstream file(path);
  file << absl::StrFormat("%016x\n", hash) << std::flush;
  if (!file) std::fprintf(stderr, "cannot write %s\n", path.c_str());
  return file.good();
}

int Run(const Flags& flags) {
  const SeedRange range{
      .first = flags.first_seed, .num = flags.num_seeds, .steps = flags.steps};
  const RangeResult result = RunRange(range, flags.max_seconds);
  if (result.failure.has_value()) {
    Explain(*result.failure, flags);
    return 1;
  }
  std::printf("%d seeds from %d, trace hash %016llx: %s\n", flags.num_seeds,
              flags.first_seed, static_cast<unsigned long long>(result.hash),
              result.counts.ToString().c_str());
  if (!flags.hash_file.empty() && !WriteHash(result.hash, flags.hash_file)) {
    return 2;
  }
  if (!flags.twice) return 0;
  const RangeResult again = RunRange(range, flags.max_seconds);
  if (again.hash == result.hash) return 0;
  std::printf("FAILED: the same seeds gave trace hash %016llx\n",
              static_cast<unsigned long long>(again.hash));
  return 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Simulates a daemon's core, its clients, engine and wire.");
  app.add_option("--seeds", flags.num_seeds, "how many seeds to run")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--first-seed", flags.first_seed, "the first of them")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--steps", flags.steps, "engine steps of chaos per seed")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--max-seconds", flags.max_seconds,
                 "a seed that takes longer hangs")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--verbose", flags.verbose, "print every event and call");
  app.add_flag("--twice", flags.twice, "run all seeds twice, compare hashes");
  app.add_option("--replay", flags.replay, "a stored run")
      ->check(CLI::ExistingFile);
  app.add_option("--failures", flags.failures,
                 "folder for the shrunk run of a failing seed")
      ->check(CLI::ExistingDirectory);
  app.add_option("--hash-file", flags.hash_file,
                 "file for the trace hash of all seeds");
  CLI11_PARSE(app, argc, argv);
  if (!flags.replay.empty()) return Replay(flags);
  return flags.verbose ? RunVerbosely(flags) : Run(flags);
}

}  // namespace
}  // namespace blockmgr::sim

int main(int argc, char** argv) {
  return blockmgr::RunMain(&blockmgr::sim::Main, argc, argv);
}
