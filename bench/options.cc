#include "bench/options.h"

#include <algorithm>
#include <array>

#include <absl/status/status.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {
namespace {

constexpr std::array<const char*, 4> kMetrics = {"ttft", "tpot", "itl", "e2el"};

void AddDatasetFlags(CLI::App* app, BenchOptions* options) {
  DatasetOptions& dataset = options->dataset;
  const std::string group = "Workload";
  app->add_option("--dataset-name", dataset.name,
                  "The workload: random, or a trace: mooncake (JSON lines with "
                  "hash_ids, prefixes are shared) or azure (2023 CSV)")
      ->check(CLI::IsMember({"random", "mooncake", "azure"}))
      ->capture_default_str()
      ->group(group);
  app->add_option("--dataset-path", dataset.path, "The trace file")
      ->group(group);
  app->add_option("--num-prompts", dataset.num_prompts,
                  "Requests to send, the first ones of a trace [default: 1000 "
                  "for random, else the whole trace]")
      ->check(CLI::Range(int64_t{1}, kMaxPrompts))
      ->group(group);
  app->add_option("--random-input-len", dataset.random.input_tokens,
                  "Random: prompt tokens, the prefix not included")
      ->check(CLI::Range(1, kMaxRequestTokens))
      ->capture_default_str()
      ->group(group);
  app->add_option("--random-output-len", dataset.random.output_tokens,
                  "Random: output tokens")
      ->check(CLI::Range(1, kMaxRequestTokens))
      ->capture_default_str()
      ->group(group);
  app->add_option("--random-range-ratio", dataset.random.range_ratio,
                  "Random: lengths vary by this fraction, [0, 1)")
      ->check(AnyNumber<double>())
      ->capture_default_str()
      ->group(group);
  app->add_option("--random-prefix-len", dataset.random.prefix_tokens,
                  "Random: tokens that all prompts begin with")
      ->check(CLI::Range(0, kMaxRequestTokens))
      ->capture_default_str()
      ->group(group);
  app->add_option("--vocab-size", options->vocab_size,
                  "Prompt token ids are below this")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str()
      ->group(group);
  app->add_option("--seed", options->seed,
                  "Seed of lengths, tokens and arrival times")
      ->check(AnyNumber<uint64_t>())
      ->capture_default_str()
      ->group(group);
}

void AddArrivalFlags(CLI::App* app, BenchOptions* options) {
  const std::string group = "Arrivals";
  app->add_option("--request-rate", options->arrivals.request_rate,
                  "Requests per second; inf sends all requests at once "
                  "[default: a trace's own timestamps, else inf]")
      ->check(AnyNumber<double>())
      ->group(group);
  app->add_option("--burstiness", options->arrivals.burstiness,
                  "Shape of the Gamma distribution of the gaps: 1 is Poisson, "
                  "less is burstier, inf is a constant gap [default: 1]")
      ->check(AnyNumber<double>())
      ->group(group);
  app->add_flag("--spread-ticks", options->arrivals.spread_ticks,
                "Traces with timestamps on a grid (mooncake: 3 s): spread the "
                "requests of a tick evenly over it")
      ->group(group);
  app->add_flag("--scale-trace", options->arrivals.scale_trace,
                "With --request-rate: a trace keeps the pattern of its own "
                "timestamps, sped up or slowed down to the rate")
      ->group(group);
  app->add_option("--max-concurrency", options->max_concurrency,
                  "Hold requests back while this many are unfinished; "
                  "latencies still count from the intended send time")
      ->check(CLI::Range(1, 1 << 30))
      ->group(group);
}

void AddReportFlags(CLI::App* app, BenchOptions* options) {
  const std::string group = "Report";
  app->add_option("--goodput", options->goodput,
                  "Limits in ms that a good request meets, such as \"ttft:200 "
                  "tpot:50 e2el:5000\"")
      ->group(group);
  app->add_option("--percentile-metrics", options->percentile_metrics,
                  "Latencies to report, comma separated")
      ->delimiter(',')
      ->check(CLI::IsMember(
          std::vector<std::string>(kMetrics.begin(), kMetrics.end())))
      ->default_str(absl::StrJoin(options->percentile_metrics, ","))
      ->group(group);
  app->add_option("--metric-percentiles", options->metric_percentiles,
                  "Percentiles besides 50 and 99, comma separated")
      ->delimiter(',')
      ->check(NumberIn(0, 100))
      ->group(group);
  app->add_flag("--json", options->json,
                "Print the report as JSON to standard output, nothing else")
      ->group(group);
  app->add_flag("--save-result", options->save_result,
                "Write the report as JSON to a file")
      ->group(group);
  app->add_flag("--save-detailed", options->save_detailed,
                "Add per-request values to the JSON")
      ->group(group);
  app->add_option("--result-dir", options->result_dir,
                  "Folder of the file, created if need be [default: the "
                  "current one]")
      ->group(group);
  app->add_option("--result-filename", options->result_filename,
                  "Name of the file [default: "
                  "{label}-{rate}qps-concurrency{N}-{model}-{time}"
                  ".json]")
      ->group(group);
  app->add_option("--label", options->label, "Name of the run in the report")
      ->group(group);
  app->add_option("--metadata", options->metadata,
                  "Pairs key=value, copied to the report")
      ->group(group);
  app->add_flag("--disable-tqdm", options->disable_tqdm, "Show no progress bar")
      ->group(group);
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SplitMetadata(
    const std::vector<std::string>& items) {
  std::vector<std::pair<std::string, std::string>> result;
  for (const std::string& item : items) {
    std::vector<std::string> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (parts.size() != 2 || parts[0].empty()) {
      return Invalid("metadata: expected key=value, got '", item, "'");
    }
    result.emplace_back(std::move(parts[0]), std::move(parts[1]));
  }
  return result;
}

absl::Status CheckRandomFlags(const DatasetOptions& dataset) {
  if (dataset.name == "random") return absl::OkStatus();
  const RandomDatasetOptions unset;
  const RandomDatasetOptions& random = dataset.random;
  const char* given = nullptr;
  if (random.input_tokens != unset.input_tokens) given = "input-len";
  if (random.output_tokens != unset.output_tokens) given = "output-len";
  if (random.range_ratio != unset.range_ratio) given = "range-ratio";
  if (random.prefix_tokens != unset.prefix_tokens) given = "prefix-len";
  if (given == nullptr) return absl::OkStatus();
  return Invalid("random-", given, ": has no effect with --dataset-name ",
                 dataset.name);
}

}  // namespace

void AddBenchFlags(CLI::App* app, BenchOptions* options) {
  AddDatasetFlags(app, options);
  AddArrivalFlags(app, options);
  AddEvictionFlags(app, &options->eviction);
  AddReportFlags(app, options);
}

absl::StatusOr<BenchPlan> ResolveOptions(const BenchOptions& options) {
  BenchPlan plan;
  plan.vocab_size = options.vocab_size;
  plan.max_concurrency = options.max_concurrency;
  plan.percentiles = WithDefaultPercentiles(options.metric_percentiles);
  plan.percentile_metrics = options.percentile_metrics;
  if (options.save_detailed && !options.save_result && !options.json) {
    return absl::InvalidArgumentError(
        "save-detailed: has no effect without --save-result or --json");
  }
  if (!options.save_result &&
      !(options.result_dir.empty() && options.result_filename.empty())) {
    return absl::InvalidArgumentError(
        "result-dir, result-filename: have no effect without --save-result");
  }
  BM_ASSIGN_OR_RETURN(plan.metadata, SplitMetadata(options.metadata));
  BM_ASSIGN_OR_RETURN(plan.goodput,
                      Goodput::Parse(absl::StrJoin(options.goodput, " ")));
  BM_ASSIGN_OR_RETURN(plan.eviction, ResolveEviction(options.eviction));
  BM_RETURN_IF_ERROR(CheckRandomFlags(options.dataset));
  DatasetOptions dataset = options.dataset;
  dataset.seed = options.seed;
  BM_ASSIGN_OR_RETURN(plan.workload, LoadDataset(dataset));
  ArrivalOptions arrivals = options.arrivals;
  arrivals.seed = options.seed;
  BM_RETURN_IF_ERROR(
      SetArrivals(arrivals, dataset.name != "random", &plan.workload));
  return plan;
}

}  // namespace blockmgr
