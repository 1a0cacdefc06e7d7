// Serves the daemon's metrics to Prometheus, over HTTP: GET /metrics.
//
// Every scrape asks the core thread, as AdminService::GetStats does: nothing is
// counted twice, and nobody is asked between scrapes. A core thread that does
// not answer in time, or whose queue is full, is reported as blockmgr_up 0.
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

// Every metric, named, explained and valued. O(metrics), and pure.
std::vector<prometheus::MetricFamily> ToMetricFamilies(const CoreStats& stats);

class MetricsExporter {
 public:
  // `listen` is HOST:PORT of any interface, port 0: any port. The server has no
  // encryption and no authentication: it serves numbers, and takes nothing.
  // InvalidArgument: not an address; Unavailable: cannot listen there.
  static absl::StatusOr<std::unique_ptr<MetricsExporter>> Start(
      const std::string& listen, CoreThread* core);
  // Ends scrapes under way. Takes up to 2 s: the HTTP server looks that often.
  ~MetricsExporter();
  MetricsExporter(const MetricsExporter&) = delete;
  MetricsExporter& operator=(const MetricsExporter&) = delete;

  // HOST:PORT, as it is.
  const std::string& address() const { return address_; }

 private:
  MetricsExporter() = default;

  std::string address_;
  std::shared_ptr<prometheus::Collectable>
      collectable_;  // exposer_ has it weak
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_METRICS_EXPORTER_H_
