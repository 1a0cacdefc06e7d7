#include "scheduler/server/metrics_exporter.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <limits>
#include <utility>

#include <absl/base/thread_annotations.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include "blockmgr/base/status_macros.h"
#include "scheduler/server/listen_address.h"
#include "scheduler/server/mutex.h"

namespace blockmgr {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Prometheus gives up after 10 s by default, so this is less.
constexpr std::chrono::seconds kPatience{2};

// Collects metrics. Prometheus has every number as double.
class FamilyList {
 public:
  void Gauge(const char* name, const char* help, auto value) {
    Add(name, help, MetricType::Gauge).gauge.value = static_cast<double>(value);
  }
  void Counter(const char* name, const char* help, auto value) {
    Add(name, help, MetricType::Counter).counter.value =
        static_cast<double>(value);
  }
  // Begins a family whose values Labelled adds.
  void Family(const char* name, const char* help, MetricType type) {
    families_.push_back(MetricFamily{name, help, type, {}});
  }
  // Adds a value to the last family.
  void Labelled(const char* label, std::string label_value, auto value) {
    MetricFamily& family = families_.back();
    ClientMetric& metric = family.metric.emplace_back();
    metric.label = {{label, std::move(label_value)}};
    (family.type == MetricType::Gauge ? metric.gauge.value
                                      : metric.counter.value) =
        static_cast<double>(value);
  }
  void Histogram(const char* name, const char* help,
                 const DurationHistogram& histogram) {
    ClientMetric::Histogram& metric =
        Add(name, help, MetricType::Histogram).histogram;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      metric.sample_count += histogram.counts[i];
      metric.bucket.push_back(
          {metric.sample_count, i < DurationHistogram::kBounds.size()
                                    ? DurationHistogram::kBounds[i]
                                    : std::numeric_limits<double>::infinity()});
    }
    metric.sample_sum = histogram.sum_seconds;
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  ClientMetric& Add(const char* name, const char* help, MetricType type) {
    Family(name, help, type);
    return families_.back().metric.emplace_back();
  }

  std::vector<MetricFamily> families_;
};

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "unknown";
}

// Adds the numbers that have a metric of their own. Peaks have none, because
// Prometheus finds them itself.
void AddStats(const SchedulerStats& stats, FamilyList* list) {
  VisitSchedulerStats(
      stats, [list](StatKind kind, absl::string_view /*name*/,
                    const auto& value, const char* metric, const char* help) {
        if (*metric == '\0') return;
        if (kind == StatKind::kCounter) list->Counter(metric, help, value);
        if (kind == StatKind::kGauge) list->Gauge(metric, help, value);
      });
}

void AddRequests(const CoreStats& stats, FamilyList* list) {
  const RequestMetrics& requests = stats.requests;
  list->Family("blockmgr_requests_finished_total",
               "Requests that ended, by reason", MetricType::Counter);
  for (int32_t i = 0; i < kNumFinishReasons; ++i) {
    list->Labelled("reason", ReasonName(static_cast<FinishReason>(i)),
                   requests.finished[i]);
  }
  list->Family("blockmgr_submissions_refused_total",
               "Submissions that the core refused, by status code. Malformed "
               "submissions, and those that find a full command queue, do not "
               "reach the core",
               MetricType::Counter);
  for (size_t code = 1; code < RequestMetrics::kNumStatusCodes; ++code) {
    if (requests.refused[code] == 0) continue;
    list->Labelled(
        "code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code)),
        requests.refused[code]);
  }
  list->Histogram("blockmgr_request_queue_seconds",
                  "From submission to the first step", requests.queue);
  list->Histogram("blockmgr_request_first_token_seconds",
                  "From submission to the first token", requests.first_token);
  list->Histogram("blockmgr_request_output_token_seconds",
                  "Mean time of a request's tokens after the first, of "
                  "requests that ended by length or a stop token",
                  requests.output_token);
  list->Histogram("blockmgr_request_seconds",
                  "From submission to the end, of requests that ended by "
                  "length or a stop token",
                  requests.request);
  list->Histogram("blockmgr_step_seconds",
                  "From the issue of a plan to its result, the steps before it "
                  "included",
                  requests.step);
  list->Counter("blockmgr_running_request_seconds_total",
                "Time that requests ran, summed up; its rate is the mean "
                "number of running requests",
                stats.running_request_seconds);
}

// Only configured tenants have a metric of their own, because clients choose
// the names of all other tenants.
void AddTenants(const SchedulerStats& s, FamilyList* list) {
  const auto add = [&s, list](const char* name, const char* help,
                              auto TenantUse::*value) {
    list->Family(name, help, MetricType::Gauge);
    for (const TenantUse& use : s.tenants) {
      list->Labelled("tenant", use.name, use.*value);
    }
  };
  add("blockmgr_tenant_requests",
      "Requests of a tenant now, waiting and running; *: of all that --tenant "
      "does not name",
      &TenantUse::num_requests);
  add("blockmgr_tenant_prompt_tokens_waiting",
      "Tokens of a tenant's prompts that wait for their first admission now",
      &TenantUse::queued_tokens);
  add("blockmgr_tenant_reserved_blocks",
      "Blocks that a tenant's running requests have and may still take",
      &TenantUse::reserved_blocks);
}

void AddBlocks(const BlockManagerStats& blocks, FamilyList* list) {
  list->Gauge("blockmgr_pool_blocks", "Blocks that can be allocated",
              blocks.num_blocks > 0 ? blocks.num_blocks - 1 : 0);
  list->Family("blockmgr_blocks",
               "Blocks of the pool now: free, cached (only the prefix cache "
               "holds them), fenced (released, a step in flight may touch "
               "them) or used (held by sequences)",
               MetricType::Gauge);
  list->Labelled("state", "free", blocks.free_blocks);
  list->Labelled("state", "cached", blocks.cached_blocks);
  list->Labelled("state", "fenced", blocks.fenced_blocks);
  list->Labelled("state", "used", blocks.used_blocks);
}

MetricFamily Up(bool up) {
  FamilyList list;
  list.Gauge("blockmgr_up", "1 while the core thread answers", up ? 1 : 0);
  return std::move(list.Take().front());
}

// The HTTP server's threads call it.
class CoreCollectable final : public prometheus::Collectable {
 public:
  explicit CoreCollectable(CoreThread* core) : core_(core) {}

  std::vector<MetricFamily> Collect() const override {
    const Answer answer = Ask();
    if (answer.wait_for(kPatience) != std::future_status::ready) {
      return {Up(false)};
    }
    const absl::StatusOr<CoreStats>& stats = answer.get();
    if (!stats.ok()) return {Up(false)};
    std::vector<MetricFamily> families = ToMetricFamilies(*stats);
    families.push_back(Up(true));
    return families;
  }

 private:
  using Answer = std::shared_future<absl::StatusOr<CoreStats>>;

  // Scrapes at the same time share an answer. So a client that scrapes as fast
  // as it can costs the core thread no more than one scrape after another.
  Answer Ask() const {
    MutexLock lock(&mutex_);
    if (answer_.valid() && answer_.wait_for(std::chrono::seconds(0)) !=
                               std::future_status::ready) {
      return answer_;
    }
    // The answer may come after all scrapes have stopped waiting, so it is
    // shared.
    const auto promise =
        std::make_shared<std::promise<absl::StatusOr<CoreStats>>>();
    answer_ = promise->get_future().share();
    core_->Post(GetStats{.done =
                             [promise](absl::StatusOr<CoreStats> stats) {
                               promise->set_value(std::move(stats));
                             },
                         .counts_metadata = true});
    return answer_;
  }

  CoreThread* const core_;
  mutable Mutex mutex_;
  // The last answer.
  mutable Answer answer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<MetricFamily> ToMetricFamilies(const CoreStats& stats) {
  FamilyList list;
  list.Gauge("blockmgr_engine_attached", "1 while an engine runs steps",
             stats.engine_attached ? 1 : 0);
  AddStats(stats.scheduler, &list);
  AddRequests(stats, &list);
  AddTenants(stats.scheduler, &list);
  AddBlocks(stats.scheduler.blocks, &list);
  return list.Take();
}

absl::StatusOr<std::unique_ptr<MetricsExporter>> MetricsExporter::Start(
    const std::string& listen, CoreThread* core) {
  BM_ASSIGN_OR_RETURN(const HostPort address,
                      ParseHostPort("metrics_listen", "HOST:PORT", listen));
  std::unique_ptr<MetricsExporter> exporter(new MetricsExporter);
  exporter->collectable_ = std::make_shared<CoreCollectable>(core);
  try {
    // A peer that sends or reads nothing for a second is cut off. Until then it
    // occupies a thread, so hundreds of such peers delay a scrape by some
    // seconds.
    exporter->exposer_ =
        std::make_unique<prometheus::Exposer>(std::vector<std::string>{
            "listening_ports", listen, "num_threads", "50", "connection_queue",
            "200", "listen_backlog", "1000", "request_timeout_ms", "1000"});
    exporter->exposer_->RegisterCollectable(exporter->collectable_);
  } catch (const std::exception&) {
    // The exception's text says no more than this error.
    return absl::UnavailableError(absl::StrCat(
        "metrics_listen: cannot listen on ", listen,
        ": expected a free port of an address of this machine",
        absl::StrContains(address.host, ':')
            ? ", and an HTTP library with IPv6, which Debian's has not"
            : ""));
  }
  const std::vector<int> ports = exporter->exposer_->GetListeningPorts();
  exporter->address_ =
      absl::StrCat(listen.substr(0, listen.rfind(':') + 1),
                   ports.empty() ? address.port : ports.front());
  return exporter;
}

MetricsExporter::~MetricsExporter() = default;

}  // namespace blockmgr
