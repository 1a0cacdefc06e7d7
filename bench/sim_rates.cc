#include "bench/sim_rates.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include "bench/rate_search.h"
#include "bench/report.h"
#include "blockmgr/base/status_macros.h"
#include "program/progress.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity.
Json RateToJson(double rate) {
  return std::isinf(rate) ? Json("inf") : Json(rate);
}

absl::StatusOr<Json> Run(const BenchOptions& bench, SimOptions sim,
                         const std::string& title) {
  BM_ASSIGN_OR_RETURN(const BenchPlan plan, ResolveOptions(bench));
  sim.seed = bench.seed;
  absl::StatusOr<RunResult> result;
  {
    Progress progress(static_cast<int64_t>(plan.workload.requests.size()),
                      !bench.disable_tqdm, "req", title);
    result = RunSim(sim, plan, &progress);
  }
  BM_RETURN_IF_ERROR(result.status());
  return BuildReport(bench, plan, *result, std::nullopt);
}

BenchOptions AtRate(BenchOptions bench, double rate) {
  bench.arrivals.request_rate = rate;
  if (std::isinf(rate)) {
    // Without effect then.
    bench.arrivals.burstiness.reset();
    bench.arrivals.scale_trace = false;
    bench.arrivals.spread_ticks = false;
  }
  return bench;
}

Json TrialsToJson(const RateSearch& found) {
  Json trials = Json::array();
  for (const RateTrial& trial : found.trials) {
    trials.push_back({{"request_rate", RateToJson(trial.rate)},
                      {"good_percent", trial.good_percent()},
                      {"request_throughput", trial.throughput}});
  }
  return trials;
}

absl::StatusOr<Json> FindAndReport(const BenchOptions& bench,
                                   const SimOptions& sim, double good_percent) {
  Json best;  // of the highest rate so far at which the goal held
  const auto run = [&](double rate) -> absl::StatusOr<RateTrial> {
    BM_ASSIGN_OR_RETURN(
        Json report, Run(AtRate(bench, rate), sim, absl::StrCat(rate, "/s ")));
    const RateTrial trial{.rate = rate,
                          .num_requests = report.at("num_prompts"),
                          .good = report.at("good_requests"),
                          .throughput = report.at("request_throughput")};
    // The search goes up as long as the goal holds.
    if (trial.good_percent() >= good_percent) best = std::move(report);
    return trial;
  };
  BM_ASSIGN_OR_RETURN(const RateSearch found, FindMaxRate(good_percent, run));
  best["max_request_rate"] = RateToJson(found.max_rate);
  best["rate_search"] = {
      {"good_percent", good_percent},
      {"failing_request_rate", found.failing_rate.has_value()
                                   ? RateToJson(*found.failing_rate)
                                   : Json(nullptr)},
      {"resolution", kRateResolution},
      {"trials", TrialsToJson(found)}};
  return best;
}

}  // namespace

void AddRateSearchFlags(CLI::App* app, RateSearchOptions* options) {
  const std::string group = "Rate search";
  app->add_flag("--find-max-rate", options->find_max_rate,
                "Find the highest --request-rate at which --goodput holds, and "
                "report the run at that")
      ->group(group);
  app->add_option("--good-percent", options->good_percent,
                  absl::StrCat("Percentage of a run's requests that must meet "
                               "--goodput [default: ",
                               kDefaultGoodPercent, "]"))
      ->check(NumberIn(0, 100))
      ->group(group);
}

absl::StatusOr<Json> ReportSim(const BenchOptions& bench, const SimOptions& sim,
                               const RateSearchOptions& search) {
  if (!search.find_max_rate) {
    if (!search.good_percent.has_value()) return Run(bench, sim, "");
    return absl::InvalidArgumentError(
        "good-percent: has no effect without --find-max-rate");
  }
  // Flags that only finite rates make use of are checked before the first run,
  // which sends all requests at once.
  BM_ASSIGN_OR_RETURN(const BenchPlan plan, ResolveOptions(AtRate(bench, 1.0)));
  if (!plan.goodput.any()) {
    return absl::InvalidArgumentError(
        "find-max-rate: needs --goodput, the goal");
  }
  if (bench.arrivals.request_rate.has_value()) {
    return absl::InvalidArgumentError(
        "request-rate: has no effect with --find-max-rate, which finds it");
  }
  return FindAndReport(bench, sim,
                       search.good_percent.value_or(kDefaultGoodPercent));
}

}  // namespace blockmgr
