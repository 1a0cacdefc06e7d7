#include "bench/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"

namespace blockmgr {
namespace {

constexpr double kMsPerSecond = 1000.0;

bool Meets(const Goodput& goodput, const RequestRecord& record) {
  // One token has no time per output token: nothing that could be too slow.
  const double tpot = record.tokens_s.size() > 1 ? Tpot(record) : 0;
  const auto within = [](std::optional<double> limit_ms, double seconds) {
    return !limit_ms.has_value() || seconds * kMsPerSecond <= *limit_ms;
  };
  return within(goodput.ttft_ms, Ttft(record)) &&
         within(goodput.tpot_ms, tpot) && within(goodput.e2el_ms, E2el(record));
}

int64_t MaxConcurrent(std::span<const RequestRecord> records) {
  // +1 at a send, -1 at an end; an end goes before a send at the same time.
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& record : records) {
    if (!record.completed) continue;
    changes.emplace_back(*record.sent_s, +1);
    changes.emplace_back(record.tokens_s.back(), -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0;
  int64_t most = 0;
  for (const auto& [time, change] : changes) {
    now += change;
    most = std::max(most, now);
  }
  return most;
}

// Only seconds in which tokens came are kept: a run may last for ages.
double MaxTokensPerSecond(std::span<const RequestRecord> records) {
  absl::flat_hash_map<double, int64_t> counts;  // by whole second
  int64_t most = 0;
  for (const RequestRecord& record : records) {
    if (!record.completed) continue;
    for (const double time : record.tokens_s) {
      most = std::max(most, ++counts[std::floor(std::max(time, 0.0))]);
    }
  }
  return static_cast<double>(most);
}

void SummarizeSends(std::span<const RequestRecord> records,
                    std::span<const double> percentiles, RunSummary* summary) {
  std::vector<double> lags_ms;
  double last_sent_s = 0;
  for (const RequestRecord& record : records) {
    if (!record.sent_s.has_value()) continue;
    lags_ms.push_back((*record.sent_s - record.intended_s) * kMsPerSecond);
    last_sent_s = std::max(last_sent_s, *record.sent_s);
  }
  if (last_sent_s > 0) {
    summary->achieved_request_rate =
        static_cast<double>(lags_ms.size()) / last_sent_s;
  }
  summary->client_lag_ms = Distribution::Of(std::move(lags_ms), percentiles);
}

}  // namespace

double Percentile(std::span<const double> sorted, double q) {
  BM_CHECK(q >= 0 && q <= 100);
  if (sorted.empty()) return 0;
  const double rank = q / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double t = rank - static_cast<double>(below);
  const double low = sorted[below];
  const double high = sorted[above];
  // NumPy's way round: exact at both ends.
  return t < 0.5 ? low + (high - low) * t : high - (high - low) * (1 - t);
}

Distribution Distribution::Of(std::vector<double> values,
                              std::span<const double> percentiles) {
  Distribution result;
  std::sort(values.begin(), values.end());
  for (const double q : percentiles) {
    result.percentiles[q] = Percentile(values, q);
  }
  if (values.empty()) return result;
  const auto n = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) {
    squares += (value - result.mean) * (value - result.mean);
  }
  result.std = std::sqrt(squares / n);
  result.median = Percentile(values, 50);
  result.max = values.back();
  result.num_values = std::ssize(values);
  return result;
}

absl::StatusOr<Goodput> Goodput::Parse(absl::string_view text) {
  Goodput goodput;
  for (const absl::string_view item :
       absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits(':', 1));
    std::optional<double>* limit = parts.first == "ttft"   ? &goodput.ttft_ms
                                   : parts.first == "tpot" ? &goodput.tpot_ms
                                   : parts.first == "e2el" ? &goodput.e2el_ms
                                                           : nullptr;
    if (limit == nullptr) {
      return Invalid("goodput: expected ttft, tpot or e2el, got '", parts.first,
                     "'");
    }
    double value = 0;
    if (!absl::SimpleAtod(parts.second, &value) || !std::isfinite(value) ||
        value <= 0) {
      return Invalid("goodput: ", parts.first,
                     ": expected milliseconds greater than 0, got '",
                     parts.second, "'");
    }
    if (limit->has_value()) {
      return Invalid("goodput: ", parts.first, " is given twice");
    }
    *limit = value;
  }
  return goodput;
}

std::vector<double> WithDefaultPercentiles(std::vector<double> asked) {
  asked.insert(asked.end(), {50.0, 99.0});
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  return asked;
}

double Ttft(const RequestRecord& record) {
  return record.tokens_s.front() - record.intended_s;
}

double E2el(const RequestRecord& record) {
  return record.tokens_s.back() - record.intended_s;
}

double Tpot(const RequestRecord& record) {
  return (record.tokens_s.back() - record.tokens_s.front()) /
         static_cast<double>(record.tokens_s.size() - 1);
}

std::vector<double> Itls(const RequestRecord& record) {
  std::vector<double> gaps;
  for (size_t i = 1; i < record.tokens_s.size(); ++i) {
    const double gap = record.tokens_s[i] - record.tokens_s[i - 1];
    if (gap > 0) gaps.push_back(gap);
  }
  return gaps;
}

RunSummary Summarize(std::span<const RequestRecord> records, double duration_s,
                     const Goodput& goodput,
                     std::span<const double> percentiles) {
  BM_CHECK(duration_s >= 0);
  // A run in which nothing was sent successfully can take no time at all.
  const double per_second = duration_s > 0 ? 1 / duration_s : 0;
  RunSummary summary;
  summary.duration_s = duration_s;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> itl;
  std::vector<double> e2el;
  int64_t good = 0;
  for (const RequestRecord& record : records) {
    if (!record.completed) {
      ++summary.failed;
      FailureCount& failure =
          summary.failures[absl::StatusCodeToString(record.failure.code())];
      if (failure.count++ == 0) {
        failure.example = std::string(record.failure.message());
      }
      continue;
    }
    ++summary.completed;
    summary.total_input_tokens += record.prompt_tokens;
    summary.total_output_tokens += static_cast<int64_t>(record.tokens_s.size());
    ttft.push_back(Ttft(record) * kMsPerSecond);
    e2el.push_back(E2el(record) * kMsPerSecond);
    if (record.tokens_s.size() > 1) tpot.push_back(Tpot(record) * kMsPerSecond);
    for (const double gap : Itls(record)) itl.push_back(gap * kMsPerSecond);
    good += Meets(goodput, record) ? 1 : 0;
  }
  summary.request_throughput =
      static_cast<double>(summary.completed) * per_second;
  if (goodput.any()) {
    summary.good = good;
    summary.request_goodput = static_cast<double>(good) * per_second;
  }
  summary.output_throughput =
      static_cast<double>(summary.total_output_tokens) * per_second;
  summary.total_token_throughput =
      static_cast<double>(summary.total_input_tokens +
                          summary.total_output_tokens) *
      per_second;
  summary.max_output_tokens_per_s = MaxTokensPerSecond(records);
  summary.max_concurrent_requests = MaxConcurrent(records);
  summary.latencies_ms = {
      {"ttft", Distribution::Of(std::move(ttft), percentiles)},
      {"tpot", Distribution::Of(std::move(tpot), percentiles)},
      {"itl", Distribution::Of(std::move(itl), percentiles)},
      {"e2el", Distribution::Of(std::move(e2el), percentiles)}};
  SummarizeSends(records, percentiles, &summary);
  return summary;
}

}  // namespace blockmgr
