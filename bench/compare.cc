#include "bench/compare.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>
#include <nlohmann/json.hpp>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Row {
  const char* title;
  const char* key;
  double unit;  // a value is shown in multiples of it
  int decimals;
  // Means nothing in a run without evictions.
  bool of_evictions = false;
  // Left out if neither report has it.
  bool may_lack = false;
};

constexpr Row kRows[] = {
    {"highest request rate (1/s)", "max_request_rate", 1, 3, false, true},
    {"requests in flight, mean", "mean_requests_in_flight", 1, 1},
    {"requests in flight, max", "max_requests_in_flight", 1, 0},
    {"requests completed", "completed", 1, 0},
    {"requests failed", "failed", 1, 0},
    {"request throughput (1/s)", "request_throughput", 1, 3},
    {"output throughput (tokens/s)", "output_throughput", 1, 1},
    {"TTFT p50 (ms)", "p50_ttft_ms", 1, 1},
    {"TTFT p99 (ms)", "p99_ttft_ms", 1, 1},
    {"TPOT p50 (ms)", "p50_tpot_ms", 1, 2},
    {"TPOT p99 (ms)", "p99_tpot_ms", 1, 2},
    {"preemptions", "preemptions", 1, 0},
    {"back from host memory", "swap_ins", 1, 0},
    {"recomputed tokens", "recomputed_tokens", 1, 0},
    {"prefix hit rate", "prefix_hit_rate", 1, 3},
    {"blocks used, max", "max_used_blocks", 1, 0},
    {"evictions", "evictions", 1, 0},
    {"freed by eviction (GiB)", "evicted_bytes", kGiB, 2},
    {"kept tokens per head, min", "kept_entries_min", 1, 0, true},
    {"kept tokens per head, median", "kept_entries_median", 1, 0, true},
    {"kept tokens per head, max", "kept_entries_max", 1, 0, true},
};

// Fields of a report that describe the workload. The headline names the
// eviction, so its fields are not here.
constexpr const char* kInputs[] = {"num_prompts",       "dataset_name",
                                   "dataset_path",      "seed",
                                   "vocab_size",        "request_rate",
                                   "burstiness",        "spread_ticks",
                                   "scale_trace",       "max_concurrency",
                                   "goodput",           "random_input_len",
                                   "random_output_len", "random_range_ratio",
                                   "random_prefix_len"};

// Names the inputs in which the reports differ. What a report does not tell,
// because an older program wrote it, is no difference; nor is a rate that was
// searched for.
std::string DifferentInputs(const Json& a, const Json& b) {
  std::string text;
  for (const char* key : kInputs) {
    if (!a.contains(key) || !b.contains(key) || a.at(key) == b.at(key)) {
      continue;
    }
    if (absl::string_view(key) == "request_rate" && a.contains("rate_search") &&
        b.contains("rate_search")) {
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "inputs differ: " : ", ", key, " ",
                    a.at(key).dump(), " and ", b.at(key).dump());
  }
  return text.empty() ? "" : absl::StrCat(text, "\n");
}

std::optional<double> Value(const Json& report, const Row& row) {
  const auto found = report.find(row.key);
  // JSON has no infinity (report.h).
  if (found != report.end() && *found == "inf") return HUGE_VAL;
  if (found == report.end() || !found->is_number()) return std::nullopt;
  const auto evictions = report.find("evictions");
  if (row.of_evictions && evictions != report.end() && *evictions == 0) {
    return std::nullopt;
  }
  return found->get<double>() / row.unit;
}

std::string Shown(std::optional<double> value, int decimals) {
  return value.has_value() ? absl::StrFormat("%.*f", decimals, *value) : "-";
}

// The two runs differ by the eviction that they ask for.
std::string Eviction(const Json& report) {
  const auto policy = report.find("eviction");
  const auto keep = report.find("keep_ratio");
  if (policy == report.end() || !policy->is_string() || keep == report.end()) {
    return "no eviction";
  }
  const auto tokens = report.find("keep_tokens");
  const std::string kept =
      keep->is_null() && tokens != report.end()
          ? absl::StrCat(tokens->dump(), " tokens per head")
          : keep->dump();
  std::string text =
      absl::StrCat("keep ", kept, ", ", policy->get<std::string>());
  const auto mode = report.find("eviction_mode");
  if (mode != report.end() && mode->is_string()) {
    absl::StrAppend(&text, ", ", mode->get<std::string>());
  }
  const auto every = report.find("compress_every");
  if (every != report.end() && every->is_number()) {
    absl::StrAppend(&text, " ", every->dump());
  }
  const auto shared = report.find("share_prefix");
  if (shared != report.end() && *shared == true) {
    absl::StrAppend(&text, ", shared prefixes");
  }
  return text;
}

// A run's name and eviction, and what its reader must know.
std::string Headline(const char* letter, const std::string& name,
                     const Json& report) {
  std::string text =
      absl::StrCat(letter, "  ", name, ": ", Eviction(report), "\n");
  for (const Json& note : report.value("notes", Json::array())) {
    absl::StrAppend(&text, "   note: ",
                    note.is_string() ? note.get<std::string>() : note.dump(),
                    "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<Json> ReadReport(const std::string& path) {
  BM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Json report = Json::parse(text, nullptr, false);
  // DescribeFailures reads these fields.
  const auto is_count = [](const Json& value) {
    return value.is_number_integer();
  };
  bool good = report.is_object() && is_count(report.value("completed", Json()));
  if (good && report.contains("failed")) good = is_count(report["failed"]);
  if (good && report.contains("failures")) {
    const Json& failures = report["failures"];
    good = failures.is_object() &&
           std::ranges::all_of(failures, [&](const Json& failure) {
             return failure.is_object() &&
                    is_count(failure.value("count", Json())) &&
                    failure.value("example", Json()).is_string();
           });
  }
  if (!good) {
    return Invalid(path,
                   ": expected a report of blockmgr-bench, as --save-result or "
                   "--json writes it");
  }
  return report;
}

std::string FormatComparison(const std::string& name_a, const Json& a,
                             const std::string& name_b, const Json& b) {
  std::string text =
      absl::StrCat(Headline("A", name_a, a), Headline("B", name_b, b),
                   DifferentInputs(a, b), "\n");
  absl::StrAppendFormat(&text, "%-30s %14s %14s %8s\n", "", "A", "B", "B / A");
  for (const Row& row : kRows) {
    const std::optional<double> left = Value(a, row);
    const std::optional<double> right = Value(b, row);
    if (row.may_lack && !left.has_value() && !right.has_value()) continue;
    std::string ratio = "-";
    if (left.has_value() && right.has_value() && *left != 0 &&
        std::isfinite(*left) && std::isfinite(*right)) {
      ratio = absl::StrFormat("%.2fx", *right / *left);
    }
    absl::StrAppendFormat(&text, "%-30s %14s %14s %8s\n", row.title,
                          Shown(left, row.decimals), Shown(right, row.decimals),
                          ratio);
  }
  return text;
}

}  // namespace blockmgr
