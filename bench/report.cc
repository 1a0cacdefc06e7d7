#include "bench/report.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/policy.h"
#include "program/output_file.h"

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// JSON has no infinity: vLLM writes the word.
Json NumberOrInf(double value) {
  return std::isinf(value) ? Json("inf") : Json(value);
}

std::string PercentileName(double q) { return absl::StrCat("p", q); }

// Labels may be in any encoding; a result is not thrown away for that.
std::string Text(const Json& report) {
  return report.dump(2, ' ', false, Json::error_handler_t::replace);
}

void AddInput(const BenchOptions& options, const BenchPlan& plan, Json* json) {
  const bool trace = options.dataset.name != "random";
  (*json)["num_prompts"] = plan.workload.requests.size();
  (*json)["dataset_name"] = options.dataset.name;
  (*json)["dataset_path"] = trace ? Json(options.dataset.path) : Json(nullptr);
  (*json)["seed"] = options.seed;
  (*json)["vocab_size"] = options.vocab_size;
  (*json)["goodput"] = plan.goodput.any()
                           ? Json(absl::StrJoin(options.goodput, " "))
                           : Json(nullptr);
  const bool replay = trace && !options.arrivals.request_rate.has_value();
  (*json)["request_rate"] =
      replay ? Json("trace")
             : NumberOrInf(options.arrivals.request_rate.value_or(INFINITY));
  (*json)["burstiness"] =
      NumberOrInf(options.arrivals.burstiness.value_or(1.0));
  (*json)["spread_ticks"] = options.arrivals.spread_ticks;
  (*json)["scale_trace"] = options.arrivals.scale_trace;
  (*json)["tick_seconds"] = plan.workload.tick_s;
  (*json)["max_concurrency"] = OrNull(plan.max_concurrency);
  const bool evicts = plan.eviction.mode != EvictionMode::kNone;
  (*json)["eviction"] =
      evicts ? Json(FormatPolicy(plan.eviction.policy)) : Json(nullptr);
  const EvictionTarget& target = plan.eviction.target;
  const bool by_tokens = target.kind == EvictionTarget::Kind::kTokens;
  (*json)["keep_ratio"] =
      evicts && !by_tokens ? Json(target.ratio.value()) : Json(nullptr);
  (*json)["keep_tokens"] =
      evicts && by_tokens ? Json(target.tokens) : Json(nullptr);
  (*json)["window_keep_ratio"] = evicts && target.evicts_in_windows()
                                     ? Json(target.window_keep_ratio.value())
                                     : Json(nullptr);
  (*json)["eviction_mode"] =
      evicts ? Json(std::string(EnumName(plan.eviction.mode))) : Json(nullptr);
  (*json)["compress_every"] = plan.eviction.compress_every > 0
                                  ? Json(plan.eviction.compress_every)
                                  : Json(nullptr);
  (*json)["share_prefix"] = plan.eviction.share_prefix;
  (*json)["share_multiple"] = plan.eviction.share_multiple > 0
                                  ? Json(plan.eviction.share_multiple)
                                  : Json(nullptr);
  const auto random = [&](auto value) {
    return trace ? Json(nullptr) : Json(value);
  };
  const RandomDatasetOptions& dataset = options.dataset.random;
  (*json)["random_input_len"] = random(dataset.input_tokens);
  (*json)["random_output_len"] = random(dataset.output_tokens);
  (*json)["random_range_ratio"] = random(dataset.range_ratio);
  (*json)["random_prefix_len"] = random(dataset.prefix_tokens);
  Json metadata = Json::object();
  for (const auto& [key, value] : plan.metadata) metadata[key] = value;
  (*json)["metadata"] = std::move(metadata);
}

void AddSummary(const BenchPlan& plan, const RunSummary& summary, Json* json) {
  (*json)["duration"] = summary.duration_s;
  (*json)["completed"] = summary.completed;
  (*json)["failed"] = summary.failed;
  Json failures = Json::object();
  for (const auto& [code, failure] : summary.failures) {
    failures[code] = {{"count", failure.count}, {"example", failure.example}};
  }
  (*json)["failures"] = std::move(failures);
  (*json)["total_input_tokens"] = summary.total_input_tokens;
  (*json)["total_output_tokens"] = summary.total_output_tokens;
  (*json)["request_throughput"] = summary.request_throughput;
  (*json)["good_requests"] = OrNull(summary.good);
  (*json)["request_goodput"] = OrNull(summary.request_goodput);
  (*json)["output_throughput"] = summary.output_throughput;
  (*json)["total_token_throughput"] = summary.total_token_throughput;
  (*json)["max_output_tokens_per_s"] = summary.max_output_tokens_per_s;
  (*json)["max_concurrent_requests"] = summary.max_concurrent_requests;
  (*json)["achieved_request_rate"] = OrNull(summary.achieved_request_rate);
  // A distribution without values has no mean and no percentiles.
  const auto of = [](const Distribution& values, double value) {
    return values.num_values == 0 ? Json(nullptr) : Json(value);
  };
  const Distribution& lag = summary.client_lag_ms;
  (*json)["client_lag_ms"] = {{"mean", of(lag, lag.mean)},
                              {"p99", of(lag, lag.percentiles.at(99))},
                              {"max", of(lag, lag.max)}};
  for (const std::string& metric : plan.percentile_metrics) {
    const Distribution& latency = summary.latencies_ms.at(metric);
    const auto add = [&](const std::string& name, double value) {
      (*json)[absl::StrCat(name, "_", metric, "_ms")] = of(latency, value);
    };
    add("mean", latency.mean);
    add("median", latency.median);
    add("std", latency.std);
    for (const auto& [q, value] : latency.percentiles) {
      add(PercentileName(q), value);
    }
  }
}

double Quotient(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0
                    : static_cast<double>(part) / static_cast<double>(whole);
}

// Returns the key of a number of SchedulerStats: its name without "num_".
std::string KeyOf(absl::string_view name) {
  return std::string(absl::StripPrefix(name, "num_"));
}

// Numbers that are not known are null.
void AddSystem(const RunResult& result, Json* json) {
  const SystemCounters known = result.counters.value_or(SystemCounters());
  const SystemPeaks peaks = result.peaks.value_or(SystemPeaks());
  const auto add = [&](const std::string& key, bool is_known, auto value) {
    (*json)[key] = is_known ? Json(value) : Json(nullptr);
  };
  const bool has_counters = result.counters.has_value();
  const bool has_peaks = result.peaks.has_value();
  const SchedulerStats& stats = known.scheduler;
  add("mean_requests_in_flight", has_counters, known.mean_requests_in_flight);
  add("max_requests_in_flight", has_peaks, peaks.max_requests_in_flight);
  add("prefix_hit_rate", has_counters,
      Quotient(stats.num_cached_tokens, stats.num_prompt_tokens));
  add("draft_acceptance_rate", has_counters,
      Quotient(stats.num_accepted_tokens, stats.num_draft_tokens));
  add("num_blocks", has_counters, stats.blocks.num_blocks);
  add("max_used_blocks", has_peaks, peaks.max_used_blocks);
  VisitSchedulerStats(stats, [&](StatKind kind, absl::string_view name,
                                 const auto& value, auto&&... /*texts*/) {
    if (kind == StatKind::kCounter) add(KeyOf(name), has_counters, value);
    if (kind == StatKind::kPeak) add(KeyOf(name), has_peaks, value);
  });
}

// Per request, in vLLM's shape: seconds; zeros and an error where it failed.
void AddDetails(const RunResult& result, Json* json) {
  Json input_lens = Json::array();
  Json output_lens = Json::array();
  Json ttfts = Json::array();
  Json itls = Json::array();
  Json latencies = Json::array();
  Json starts = Json::array();
  Json lags = Json::array();
  Json errors = Json::array();
  for (const RequestRecord& record : result.records) {
    const bool done = record.completed;
    input_lens.push_back(record.prompt_tokens);
    output_lens.push_back(record.tokens_s.size());
    ttfts.push_back(done ? Ttft(record) : 0.0);
    itls.push_back(done ? Json(Itls(record)) : Json::array());
    latencies.push_back(done ? E2el(record) : 0.0);
    starts.push_back(record.intended_s);
    lags.push_back(record.sent_s.has_value()
                       ? Json(*record.sent_s - record.intended_s)
                       : Json(nullptr));
    errors.push_back(done ? std::string() : record.failure.ToString());
  }
  (*json)["input_lens"] = std::move(input_lens);
  (*json)["output_lens"] = std::move(output_lens);
  (*json)["ttfts"] = std::move(ttfts);
  (*json)["itls"] = std::move(itls);
  (*json)["start_times"] = std::move(starts);
  (*json)["send_lags"] = std::move(lags);
  (*json)["latencies"] = std::move(latencies);
  (*json)["errors"] = std::move(errors);
}

struct Line {
  const char* title;
  const char* key;
};

constexpr Line kLines[] = {
    {"Successful requests:", "completed"},
    {"Failed requests:", "failed"},
    {"Request rate asked for (req/s):", "request_rate"},
    {"Request rate achieved (req/s):", "achieved_request_rate"},
    {"Maximum request concurrency:", "max_concurrency"},
    {"Eviction policy:", "eviction"},
    {"Keep ratio:", "keep_ratio"},
    {"Keep tokens per head:", "keep_tokens"},
    {"Keep ratio in windows:", "window_keep_ratio"},
    {"Eviction mode:", "eviction_mode"},
    {"Benchmark duration (s):", "duration"},
    {"Total input tokens:", "total_input_tokens"},
    {"Total output tokens:", "total_output_tokens"},
    {"Request throughput (req/s):", "request_throughput"},
    {"Good requests:", "good_requests"},
    {"Request goodput (req/s):", "request_goodput"},
    {"Output token throughput (tok/s):", "output_throughput"},
    {"Peak output token throughput (tok/s):", "max_output_tokens_per_s"},
    {"Peak concurrent requests:", "max_concurrent_requests"},
    {"Total token throughput (tok/s):", "total_token_throughput"},
};

// Before the counters and peaks of SchedulerStats.
constexpr Line kSystemLines[] = {
    {"Prefix cache at the start:", "prefix_cache"},
    {"Mean requests in flight:", "mean_requests_in_flight"},
    {"Max requests in flight:", "max_requests_in_flight"},
    {"Prefix hit rate:", "prefix_hit_rate"},
    {"Draft acceptance rate:", "draft_acceptance_rate"},
    {"Blocks in the pool:", "num_blocks"},
    {"Max used blocks:", "max_used_blocks"},
};

std::string Shown(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_number_float()) {
    const double number = value.get<double>();
    // Rates and fractions below 1 by their digits.
    return std::abs(number) < 1 ? absl::StrFormat("%.3g", number)
                                : absl::StrFormat("%.2f", number);
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void AppendLine(const std::string& title, const Json& value,
                std::string* text) {
  absl::StrAppendFormat(text, "%-40s %15s\n", title, Shown(value));
}

template <size_t kSize>
void AppendLines(const Line (&lines)[kSize], const Json& report,
                 std::string* text) {
  for (const Line& line : lines) {
    const auto found = report.find(line.key);
    if (found == report.end() || found->is_null()) continue;
    AppendLine(line.title, *found, text);
  }
}

// Appends counters and peaks, except zeros: "swap_ins" is "Swap ins:".
void AppendStats(const Json& report, std::string* text) {
  const SchedulerStats names;
  VisitSchedulerStats(names, [&](StatKind kind, absl::string_view name,
                                 const auto& /*value*/, auto&&... /*texts*/) {
    const auto found = report.find(KeyOf(name));
    if (kind == StatKind::kGauge || found == report.end() || found->is_null() ||
        *found == 0) {
      return;
    }
    std::string title =
        absl::StrCat(absl::StrReplaceAll(KeyOf(name), {{"_", " "}}), ":");
    title[0] = absl::ascii_toupper(static_cast<unsigned char>(title[0]));
    AppendLine(title, *found, text);
  });
}

void AppendHeading(const std::string& title, char fill, std::string* text) {
  constexpr size_t kWidth = 56;
  const std::string padded = absl::StrCat(" ", title, " ");
  const size_t left = (kWidth - padded.size()) / 2;
  absl::StrAppend(text, std::string(left, fill), padded,
                  std::string(kWidth - left - padded.size(), fill), "\n");
}

// Appends the result of --find-max-rate (sim_rates.h).
void AppendRateSearch(const Json& report, std::string* text) {
  const auto search = report.find("rate_search");
  if (search == report.end()) return;
  AppendHeading("Highest Request Rate", '-', text);
  AppendLine("Goal holds at (req/s):", report.at("max_request_rate"), text);
  const Json& failing = search->at("failing_request_rate");
  if (!failing.is_null()) AppendLine("Goal fails at (req/s):", failing, text);
  AppendLine("Requests that must meet it (%):", search->at("good_percent"),
             text);
  for (const Json& trial : search->at("trials")) {
    AppendLine(absl::StrCat("  met it at ", Shown(trial.at("request_rate")),
                            " req/s (%):"),
               trial.at("good_percent"), text);
  }
}

}  // namespace

Json BuildReport(const BenchOptions& options, const BenchPlan& plan,
                 const RunResult& result,
                 const std::optional<std::string>& date) {
  Json json;
  if (date.has_value()) json["date"] = *date;
  json["endpoint_type"] = result.endpoint_type;
  json["backend"] = "blockmgr";
  json["label"] = options.label.empty() ? Json(nullptr) : Json(options.label);
  json["model_id"] = result.model_id;
  json["tokenizer_id"] = nullptr;  // prompts are token ids
  AddInput(options, plan, &json);
  AddSummary(plan,
             Summarize(result.records, result.duration_s, plan.goodput,
                       plan.percentiles),
             &json);
  json["prefix_cache"] = result.prefix_cache;
  AddSystem(result, &json);
  Json config = Json::object();
  for (const auto& [key, value] : result.config) {
    // Whole numbers without a fraction.
    config[key] = value == std::floor(value) && std::abs(value) < 1e15
                      ? Json(static_cast<int64_t>(value))
                      : Json(value);
  }
  for (const auto& [key, name] : result.choices) config[key] = name;
  json["config"] = std::move(config);
  json["notes"] = result.notes;
  if (options.save_detailed) AddDetails(result, &json);
  return json;
}

std::string FormatReport(const Json& report) {
  std::string text;
  AppendHeading("Benchmark Result", '=', &text);
  AppendLines(kLines, report, &text);
  for (const auto& [code, failure] : report.at("failures").items()) {
    AppendLine(absl::StrCat("  ", code, ":"), failure.at("count"), &text);
    absl::StrAppend(
        &text, "    such as: ", failure.at("example").get<std::string>(), "\n");
  }
  const Json& lag = report.at("client_lag_ms");
  for (const char* name : {"mean", "p99", "max"}) {
    AppendLine(absl::StrCat("Client lag, ", name, " (ms):"), lag.at(name),
               &text);
  }
  const std::pair<const char*, const char*> metrics[] = {
      {"ttft", "Time to First Token"},
      {"tpot", "Time per Output Token (excl. 1st token)"},
      {"itl", "Inter-token Latency"},
      {"e2el", "End-to-end Latency"}};
  for (const auto& [metric, title] : metrics) {
    const std::string suffix = absl::StrCat("_", metric, "_ms");
    if (!report.contains("mean" + suffix)) continue;
    AppendHeading(title, '-', &text);
    for (const auto& [key, value] : report.items()) {
      if (key.size() <= suffix.size() || !key.ends_with(suffix)) continue;
      std::string name = key.substr(0, key.size() - suffix.size());
      name[0] = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
      AppendLine(
          absl::StrCat(name, " ", absl::AsciiStrToUpper(metric), " (ms):"),
          value, &text);
    }
  }
  AppendHeading("Cache and Scheduler", '-', &text);
  AppendLines(kSystemLines, report, &text);
  AppendStats(report, &text);
  AppendRateSearch(report, &text);
  for (const Json& note : report.at("notes")) {
    absl::StrAppend(&text, "note: ", note.get<std::string>(), "\n");
  }
  text.append(56, '=');
  text.push_back('\n');
  return text;
}

std::string DescribeFailures(const Json& report) {
  const int64_t failed = report.value("failed", int64_t{0});
  if (failed == 0) return "";
  std::vector<std::string> kinds;
  const Json failures = report.value("failures", Json::object());
  for (const auto& [code, failure] : failures.items()) {
    kinds.push_back(
        absl::StrCat(failure.at("count").dump(), " ", code,
                     ", such as: ", failure.at("example").get<std::string>()));
  }
  return absl::StrCat(failed, " of ",
                      report.value("completed", int64_t{0}) + failed,
                      " requests failed", kinds.empty() ? "" : ": ",
                      absl::StrJoin(kinds, "; "));
}

std::string DefaultResultFilename(const Json& report, const std::string& time) {
  const Json& label = report.at("label");
  std::string name = absl::StrCat(
      label.is_string() ? label.get<std::string>() : "blockmgr", "-",
      report.at("request_rate").is_string()
          ? report.at("request_rate").get<std::string>()
          : report.at("request_rate").dump(),
      "qps");
  if (!report.at("max_concurrency").is_null()) {
    absl::StrAppend(&name, "-concurrency", report.at("max_concurrency").dump());
  }
  absl::StrAppend(&name, "-", report.at("model_id").get<std::string>(), "-",
                  time, ".json");
  for (char& c : name) {
    const bool safe = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                      c == '-' || c == '_' || c == '.';
    if (!safe) c = '_';
  }
  return name;
}

absl::Status WriteReport(const std::string& path, const Json& report) {
  return WriteOutputFiles({{"result", path, absl::StrCat(Text(report), "\n")}});
}

absl::Status PrepareResult(const BenchOptions& options) {
  if (!options.save_result) return absl::OkStatus();
  const std::filesystem::path folder(options.result_dir);
  if (!options.result_filename.empty()) {
    return PrepareOutputFile("--result-dir, --result-filename",
                             (folder / options.result_filename).string());
  }
  // The file's name is known after the run.
  return PrepareOutputFile("--result-dir",
                           (folder / "blockmgr-bench.json").string());
}

absl::Status PublishReport(const BenchOptions& options, const Json& report,
                           const std::string& time) {
  if (options.save_result) {
    const std::filesystem::path folder(options.result_dir);
    std::string path = (folder / options.result_filename).string();
    if (options.result_filename.empty()) {
      // Other runs of the same second keep their files.
      path = (folder / DefaultResultFilename(report, time)).string();
      BM_ASSIGN_OR_RETURN(
          path,
          MakeNewFile("result", absl::StripSuffix(path, ".json"), ".json"));
    }
    absl::Status status = WriteReport(path, report);
    if (!status.ok()) {
      if (options.result_filename.empty()) std::remove(path.c_str());
      return status;
    }
    absl::FPrintF(stderr, "saved %s\n", path);
  }
  const std::string text =
      options.json ? absl::StrCat(Text(report), "\n") : FormatReport(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return absl::OkStatus();
}

}  // namespace blockmgr
