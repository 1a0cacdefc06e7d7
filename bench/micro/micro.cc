#include "bench/micro/micro.h"

#include <algorithm>
#include <cstdio>
#include <regex>
#include <span>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <nlohmann/json.hpp>

#include "bench/metrics.h"
#include "bench/micro/benchmarks.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "program/output_file.h"
#include "program/progress.h"

namespace blockmgr {
namespace {

// Sizes and counts of tiny inputs are divided by this.
constexpr int32_t kTiny = 32;

absl::StatusOr<std::vector<Benchmark>> Choose(const std::string& filter) {
  std::vector<Benchmark> benchmarks = Benchmarks();
  std::vector<std::string> names;
  names.reserve(benchmarks.size());
  for (const Benchmark& benchmark : benchmarks) names.push_back(benchmark.name);
  try {
    const std::regex expression(filter);
    std::erase_if(benchmarks, [&](const Benchmark& benchmark) {
      return !std::regex_search(benchmark.name, expression);
    });
  } catch (const std::regex_error& error) {
    return Invalid("filter: expected a regular expression, got '", filter,
                   "': ", error.what());
  }
  if (benchmarks.empty()) {
    return Invalid("filter: expected a part of ", absl::StrJoin(names, ", "),
                   "; got '", filter, "'");
  }
  return benchmarks;
}

// The figures of one benchmark.
std::vector<Figure> Summarize(const std::string& name,
                              std::span<const Outcome> runs) {
  std::vector<Figure> figures;
  const auto add = [&](const std::string& measure, std::vector<double> values) {
    std::ranges::sort(values);
    figures.push_back({.key = absl::StrCat(name, ".", measure),
                       .median = Percentile(values, 50),
                       .min = values.front(),
                       .max = values.back()});
  };
  for (size_t i = 0; i < runs.front().measures.size(); ++i) {
    std::vector<double> values;
    for (const Outcome& run : runs) values.push_back(run.measures[i].second);
    add(runs.front().measures[i].first, std::move(values));
  }
  if (!runs.front().steps_us.empty()) {
    add("same_step_p99_9_over_p50", {TailOfMedians(runs)});
  }
  return figures;
}

std::string Shown(double value) {
  return value < 0.1 ? absl::StrFormat("%.3g", value)
                     : absl::StrFormat("%.2f", value);
}

}  // namespace

void AddMicroFlags(CLI::App* app, MicroOptions* options) {
  app->add_option_function<std::string>(
         "--json",
         [options](const std::string& path) {
           options->json = path.empty() ? "-" : path;
         },
         "write the figures as JSON; to standard output, and nothing else, "
         "without a FILE or for -")
      ->check(OutputFile())
      ->type_name("[FILE|-]")
      ->expected(0, 1);
  app->add_option("--filter", options->filter,
                  "measure the benchmarks whose name this regular expression "
                  "finds [default: all]");
  app->add_option("--runs", options->runs,
                  "a figure is the median of so many runs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag("--check", options->check,
                "fail if a figure is above its limit");
  app->add_flag("--tiny", options->tiny,
                "everything 32 times smaller, to see that it works; limits do "
                "not apply");
}

absl::StatusOr<std::vector<Figure>> RunMicro(const MicroOptions& options) {
  BM_ASSIGN_OR_RETURN(const std::vector<Benchmark> benchmarks,
                      Choose(options.filter));
  std::vector<std::vector<Outcome>> outcomes(benchmarks.size());
  const auto total = std::ssize(benchmarks) * options.runs;
  Progress progress(total, true, "benchmarks");
  int64_t num_done = 0;
  for (int32_t run = 0; run < options.runs; ++run) {
    for (size_t i = 0; i < benchmarks.size(); ++i) {
      outcomes[i].push_back(benchmarks[i].run(options.tiny ? kTiny : 1));
      progress.Update(++num_done, 0);
    }
  }
  std::vector<Figure> figures;
  for (size_t i = 0; i < benchmarks.size(); ++i) {
    for (Figure& figure : Summarize(benchmarks[i].name, outcomes[i])) {
      const auto limit = Limits().find(figure.key);
      if (limit != Limits().end() && !options.tiny) {
        figure.limit = limit->second;
      }
      figures.push_back(std::move(figure));
    }
  }
  return figures;
}

absl::Status CheckFigures(const std::vector<Figure>& figures) {
  std::vector<std::string> above;
  for (const Figure& figure : figures) {
    if (figure.within_limit()) continue;
    above.push_back(absl::StrCat(figure.key, ": expected at most ",
                                 *figure.limit, ", got ", figure.median));
  }
  if (above.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrJoin(above, "; "));
}

std::string FormatFigures(const MicroOptions& options,
                          const std::vector<Figure>& figures) {
  size_t width = 0;
  for (const Figure& figure : figures) {
    width = std::max(width, figure.key.size());
  }
  std::string text = absl::StrFormat(
      "Thread CPU time, median of %d run%s%s\n\n%-*s %10s %10s %10s %8s\n",
      options.runs, options.runs == 1 ? "" : "s",
      options.tiny ? ", tiny: these figures mean nothing" : "",
      static_cast<int>(width), "", "median", "min", "max", "limit");
  for (const Figure& figure : figures) {
    absl::StrAppendFormat(&text, "%-*s %10s %10s %10s", static_cast<int>(width),
                          figure.key, Shown(figure.median), Shown(figure.min),
                          Shown(figure.max));
    if (figure.limit.has_value()) {
      absl::StrAppendFormat(&text, " %8s  %s", absl::StrCat(*figure.limit),
                            figure.within_limit() ? "ok" : "ABOVE");
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

nlohmann::ordered_json FiguresToJson(const MicroOptions& options,
                                     const std::vector<Figure>& figures) {
  nlohmann::ordered_json json;
  json["benchmark"] = "micro";
  json["runs"] = options.runs;
  json["tiny"] = options.tiny;
  for (const char* part : {"min", "max", "limit"}) {
    json[part] = nlohmann::ordered_json::object();
  }
  for (const Figure& figure : figures) {
    json[figure.key] = figure.median;
    json["min"][figure.key] = figure.min;
    json["max"][figure.key] = figure.max;
    if (figure.limit.has_value()) json["limit"][figure.key] = *figure.limit;
  }
  return json;
}

absl::Status Micro(const MicroOptions& options) {
  BM_ASSIGN_OR_RETURN(const std::vector<Figure> figures, RunMicro(options));
  if (options.json.has_value()) {
    const std::string text =
        absl::StrCat(FiguresToJson(options, figures).dump(2), "\n");
    if (*options.json == "-") {
      std::fputs(text.c_str(), stdout);
    } else {
      BM_RETURN_IF_ERROR(WriteOutputFiles({{"json", *options.json, text}}));
    }
  }
  if (options.json != "-") {
    std::fputs(FormatFigures(options, figures).c_str(), stdout);
  }
  return options.check ? CheckFigures(figures) : absl::OkStatus();
}

}  // namespace blockmgr
