// blockmgr-bench: loads a daemon, simulates one, compares the reports, times
// the bookkeeping, and measures what eviction costs in answers.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/compare.h"
#include "bench/kernels.h"
#include "bench/micro/micro.h"
#include "bench/options.h"
#include "bench/quality/quality.h"
#include "bench/report.h"
#include "bench/serve/generate.h"
#include "bench/serve/serve.h"
#include "bench/sim.h"
#include "bench/sim_rates.h"
#include "blockmgr/base/run_main.h"
#include "blockmgr/base/status_macros.h"
#include "program/command_line.h"
#include "program/flag_names.h"
#include "program/progress.h"
#include "scheduler/server/eviction_flags.h"

namespace blockmgr {
namespace {

constexpr char kFooter[] =
    "\nExamples:\n"
    "  blockmgr-bench serve --num-prompts 200 --request-rate 20\n"
    "  blockmgr-bench generate --model model.gguf --keep-ratio 0.5 \\\n"
    "      --prompt \"What is the capital of France?\"\n"
    "  blockmgr-bench sim --dataset-name mooncake --dataset-path trace.jsonl "
    "\\\n      --spread-ticks --json > full.json\n"
    "  blockmgr-bench sim --dataset-name mooncake --dataset-path trace.jsonl "
    "\\\n      --spread-ticks --keep-ratio 0.2 --json > kept.json\n"
    "  blockmgr-bench compare full.json kept.json\n"
    "  blockmgr-bench micro --filter decode --json\n"
    "  blockmgr-bench kernels --kv-mib 256 --json > kernels.json\n"
    "  blockmgr-bench kernels --check\n"
    "  blockmgr-bench kernels --dtype fp16 --tail 512 --kernels decode,chunk\n"
    "  blockmgr-bench kernels --check --lengths kept.npy --group-size 4\n"
    "  blockmgr-bench quality --model model.gguf --policy 'keydiff | adakv' "
    "\\\n"
    "      --tasks fact,needle --keep-ratios 0.5,0.2 --num-prompts 50\n"
    "  blockmgr-bench sim --goodput \"ttft:5000 tpot:60\" --find-max-rate\n"
    "\nExit status: 0 if all requests completed and all checks passed; 1 if a "
    "check\nfailed, or flags or files ask for something impossible; 2 if the "
    "command line cannot\nbe read; 3 if requests failed. With 3 the report is "
    "whole, and standard error counts\nthe failures by kind.\n";

// vLLM's spelling of times in reports and file names.
std::string Now() {
  return absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone());
}

// Exit statuses. 0 says that all requests completed; ParseCommandLine
// returns 2.
constexpr int kError = 1;  // a check failed, or a flag or file is wrong
constexpr int kRequestsFailed = 3;  // the report is whole and says which

// Prints an error of the command that `app` has run, with its flags named.
void Print(const CLI::App& app, const std::string& error) {
  FieldFlags fields = EvictionFields();
  fields.merge(FieldsBehind(app, "--sim-"));
  PrintError(app, error, fields);
}

// Says on standard error what failed.
int ExitStatus(const CLI::App& app, const nlohmann::ordered_json& report,
               const std::string& name) {
  const std::string failures = DescribeFailures(report);
  if (failures.empty()) return EXIT_SUCCESS;
  Print(app, absl::StrCat(name, failures));
  return kRequestsFailed;
}

absl::StatusOr<int> Serve(const CLI::App& app, const BenchOptions& bench,
                          const ServeOptions& serve) {
  BM_ASSIGN_OR_RETURN(const BenchPlan plan, ResolveOptions(bench));
  BM_RETURN_IF_ERROR(PrepareResult(bench));
  const std::string time = Now();
  absl::StatusOr<RunResult> result;
  {
    Progress progress(static_cast<int64_t>(plan.workload.requests.size()),
                      !bench.disable_tqdm);
    result = RunServe(serve, plan, &progress);
  }
  BM_RETURN_IF_ERROR(result.status());
  const nlohmann::ordered_json report = BuildReport(bench, plan, *result, time);
  BM_RETURN_IF_ERROR(PublishReport(bench, report, time));
  return ExitStatus(app, report, "");
}

absl::StatusOr<int> Simulate(const CLI::App& app, const BenchOptions& bench,
                             const SimOptions& sim,
                             const RateSearchOptions& search) {
  BM_RETURN_IF_ERROR(PrepareResult(bench));
  BM_ASSIGN_OR_RETURN(const nlohmann::ordered_json report,
                      ReportSim(bench, sim, search));
  BM_RETURN_IF_ERROR(PublishReport(bench, report, Now()));
  return ExitStatus(app, report, "");
}

absl::StatusOr<int> Compare(const CLI::App& app, const std::string& a,
                            const std::string& b) {
  BM_ASSIGN_OR_RETURN(const nlohmann::ordered_json left, ReadReport(a));
  BM_ASSIGN_OR_RETURN(const nlohmann::ordered_json right, ReadReport(b));
  absl::PrintF("%s", FormatComparison(a, left, b, right));
  return std::max(ExitStatus(app, left, absl::StrCat(a, ": ")),
                  ExitStatus(app, right, absl::StrCat(b, ": ")));
}

absl::StatusOr<int> Generate(const GenerateOptions& options) {
  BM_ASSIGN_OR_RETURN(const int64_t num_failed, RunGenerate(options));
  return num_failed == 0 ? EXIT_SUCCESS : kRequestsFailed;
}

// The status of a command that measures no requests.
absl::StatusOr<int> Plain(const absl::Status& status) {
  if (!status.ok()) return status;
  return EXIT_SUCCESS;
}

// Commands holds the values of the flags of all commands.
struct Commands {
  BenchOptions serve_bench;
  ServeOptions serve;
  GenerateOptions generate;
  BenchOptions sim_bench;
  SimOptions sim;
  RateSearchOptions search;
  std::string left;
  std::string right;
  MicroOptions micro;
  KernelBenchOptions kernels;
  QualityOptions quality;
};

void AddCommands(CLI::App* app, Commands* commands) {
  CLI::App* serve = app->add_subcommand(
      "serve",
      "Load a daemon over gRPC, open loop. Latencies count from the intended "
      "send times.");
  AddServeFlags(serve, &commands->serve);
  AddBenchFlags(serve, &commands->serve_bench);

  CLI::App* generate = app->add_subcommand(
      "generate", "Ask a daemon's language model in text, print its answers.");
  AddGenerateFlags(generate, &commands->generate);

  CLI::App* sim = app->add_subcommand(
      "sim",
      "Run manager, scheduler and a simulated engine in this process, in "
      "virtual time. The same flags give the same report.");
  AddBenchFlags(sim, &commands->sim_bench);
  AddSimFlags(sim, &commands->sim);
  AddRateSearchFlags(sim, &commands->search);

  CLI::App* compare = app->add_subcommand(
      "compare", "Print two saved reports side by side, with ratios.");
  compare->add_option("A", commands->left, "Report of the baseline, JSON")
      ->required();
  compare->add_option("B", commands->right, "Report to compare with it, JSON")
      ->required();

  CLI::App* micro = app->add_subcommand(
      "micro",
      "Time the bookkeeping in this process (decode steps, long queues, the "
      "pool, the prefix cache, evictions), and print the promised times next "
      "to it.");
  AddMicroFlags(micro, &commands->micro);

  CLI::App* kernels = app->add_subcommand(
      "kernels",
      "Measure the bandwidth of a GPU's memory, then every CUDA kernel.");
  AddKernelFlags(kernels, &commands->kernels);

  CLI::App* quality = app->add_subcommand(
      "quality", "Measure what policies cost in answers of a real model.");
  AddQualityFlags(quality, &commands->quality);
}

absl::StatusOr<int> RunCommand(const CLI::App& app, const Commands& commands) {
  if (app.got_subcommand("serve")) {
    return Serve(app, commands.serve_bench, commands.serve);
  }
  if (app.got_subcommand("generate")) return Generate(commands.generate);
  if (app.got_subcommand("sim")) {
    return Simulate(app, commands.sim_bench, commands.sim, commands.search);
  }
  if (app.got_subcommand("compare")) {
    return Compare(app, commands.left, commands.right);
  }
  if (app.got_subcommand("micro")) return Plain(Micro(commands.micro));
  if (app.got_subcommand("kernels")) {
    return Plain(BenchKernels(commands.kernels));
  }
  return Plain(RunQuality(commands.quality));
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures paged KV caches under load, with a running blockmgrd or with a "
      "simulated one in virtual time, the cost of their bookkeeping, and what "
      "eviction costs in answers.",
      "blockmgr-bench");
  app.require_subcommand(1);
  app.footer(kFooter);
  Commands commands;
  AddCommands(&app, &commands);
  if (const std::optional<int> ended = ParseCommandLine(&app, argc, argv)) {
    return *ended;
  }
  const absl::StatusOr<int> status = RunCommand(app, commands);
  if (status.ok()) return *status;
  Print(app, std::string(status.status().message()));
  return kError;
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) {
  return blockmgr::RunMain(&blockmgr::Main, argc, argv);
}
