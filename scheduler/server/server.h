// The daemon without its process: core thread, services, health, one listener.
//
// Threads: by one thread, except drained(). Errors of Start leave nothing
// behind. Health (grpc.health.v1): "" is SERVING while the core thread turns,
// "blockmgr.v1.RequestService" while an engine is attached as well.
#ifndef SCHEDULER_SERVER_SERVER_H_
#define SCHEDULER_SERVER_SERVER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <absl/status/statusor.h>

#include "scheduler/scheduler.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/listener.h"
#include "scheduler/server/metrics_exporter.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace blockmgr {

struct ServerOptions {
  std::string listen;  // see listen_address.h; port 0: any
  // HOST:PORT that Prometheus is served at (metrics_exporter.h); empty: none.
  std::string metrics_listen;
  SchedulerOptions scheduler;
  // Budget tables that policies may name, as NAME=FILE.
  std::vector<std::string> budget_tables;
  // The eviction of requests that do not mention one. Start looks its table up.
  RequestEviction default_eviction;
  int32_t max_connections = 1024;  // of engines and clients together
  int32_t queue_capacity = 4096;   // commands waiting for the core thread
  int32_t spin_us = 50;            // before the core thread sleeps
  // How long an engine may take to answer a plan before it counts as lost; 0:
  // no limit. An AwakeClock measures this timeout and score_timeout_s: a pause
  // of the daemon does not count, and kGraceSeconds are added.
  double step_timeout_s = 300;
  // Of scores in all EvictByScores calls together.
  int64_t max_score_bytes = int64_t{256} << 20;
  // From the header of such a call to its last score.
  double score_timeout_s = 60;
  // Of tokens that one client has not taken; more, and it is cut off.
  int64_t max_pending_token_bytes = int64_t{64} << 20;

  absl::Status Validate() const;
};

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, SchedulerFactory factory);
  ~Server();  // Shutdown without grace
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // What clients connect to.
  const std::string& address() const { return listener_->address(); }
  // HOST:PORT of the metrics; empty: none are served.
  std::string metrics_address() const {
    return metrics_ == nullptr ? "" : metrics_->address();
  }

  // Makes the core thread turn, and sets the health by whether it has since the
  // last call. For a timer of about a second, also while draining: limits of
  // time are looked at when it turns. False: it has not turned.
  bool UpdateHealth();

  // NOT_SERVING, and no new requests.
  void BeginDrain();
  // After BeginDrain: no request is unfinished, and all tokens have been sent,
  // as of the last UpdateHealth.
  bool drained() const { return drained_.load(); }

  // Cancels what is left, gives streams up to `grace` to take it, and stops.
  // Bounded by `grace` and a little (with metrics 2 s), whatever peers do.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  class Services;
  Server() = default;

  std::atomic<bool> drained_{false};
  std::atomic<bool> engine_attached_{false};  // written by the core thread
  bool draining_ = false;
  // Told of engines by the core thread, while the gRPC server lives.
  std::atomic<grpc::Server*> health_{nullptr};
  // Outlives the services, which outlive the gRPC server.
  std::unique_ptr<CoreThread> core_;
  std::unique_ptr<MetricsExporter> metrics_;  // null: none
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SERVER_H_
