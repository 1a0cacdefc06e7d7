// Serves the daemon's metrics to Prometheus, over HTTP: GET /metrics.
//
// Every scrape asks the core thread, as AdminService::GetStats does, so nothing
// is counted twice and nothing runs between scrapes. If the core thread does
// not answer in time, or its queue is full, the scrape reports blockmgr_up 0.
// Counters of the scheduler are rows of scheduler_stats.h and need no code
// here. Histograms are members of RequestMetrics.
//
// Threads: Start and the destructor by one thread. The CoreThread must outlive
// the exporter.
#ifndef SCHEDULER_SERVER_METRICS_EXPORTER_H_
#define SCHEDULER_SERVER_METRICS_EXPORTER_H_

#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "scheduler/server/commands.h"
#include "scheduler/server/core_thread.h"

namespace prometheus {
class Collectable;
class Exposer;
struct MetricFamily;
}  // namespace prometheus

namespace blockmgr {

// Returns every metric with its name, help and value. O(metrics), and pure.
std::vector<prometheus::MetricFamily> ToMetricFamilies(const CoreStats& stats);

class MetricsExporter {
 public:
  // `listen` is HOST:PORT of any interface; port 0 means any port. The server
  // has no encryption and no authentication: it serves numbers and accepts no
  // commands. InvalidArgument if `listen` is not an address, Unavailable if it
  // cannot be listened at.
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Start(
      const std::string& listen, CoreThread* core);
  // Ends scrapes under way. Takes up to 2 s, because the HTTP server looks only
  // so often.
  ~MetricsExporter();
  MetricsExporter(const MetricsExporter&) = delete;
  MetricsExporter& operator=(const MetricsExporter&) = delete;

  // HOST:PORT, with the port that was found for port 0.
  const std::string& address() const { return address_; }

 private:
  MetricsExporter() = default;

  std::string address_;
  // exposer_ holds only a weak pointer to it.
  std::shared_ptr<prometheus::Collectable> collectable_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_METRICS_EXPORTER_H_
