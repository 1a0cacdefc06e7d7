// Server: all of the daemon but its process: the core thread, the services, the
// health, and one listener.
//
// Health is grpc.health.v1: "" is SERVING while the core thread turns, and
// "blockmgr.v1.RequestService" and "vllm.grpc.engine.VllmEngine" while, in
// addition, an engine is attached.
//
// Threads: one thread calls everything, except drained(). If Start fails, it
// leaves nothing behind.
#ifndef SCHEDULER_SERVER_SERVER_H_
#define SCHEDULER_SERVER_SERVER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

#include "scheduler/scheduler.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/kv_event_publisher.h"
#include "scheduler/server/listener.h"
#include "scheduler/server/metrics_exporter.h"

namespace grpc {
class Server;
}  // namespace grpc

namespace blockmgr {

struct ServerOptions {
  // The address to listen at (listen_address.h). Port 0 means any port.
  std::string listen;
  // HOST:PORT at which metrics are served (metrics_exporter.h). If empty, no
  // metrics are served.
  std::string metrics_listen;
  KvEventOptions kv_events;
  SchedulerOptions scheduler;
  // Budget tables that policies may name, as NAME=FILE.
  std::vector<std::string> budget_tables;
  // The eviction of requests that do not mention one. Start looks its table up.
  RequestEviction default_eviction;
  // The most commands that wait for the core thread. No flag sets it. A test
  // sets it to a low number, so that the queue is full.
  int32_t queue_capacity = 4096;
  // VisitServerOptions has the meanings and ranges of the following options.
  int32_t max_connections = 1024;
  int32_t spin_us = 50;
  double step_timeout_s = 300;
  int64_t max_score_bytes = int64_t{256} << 20;
  double score_timeout_s = 60;
  int64_t max_pending_token_bytes = int64_t{64} << 20;

  absl::Status Validate() const;
};

// Visits the options that a flag sets, as in scheduler_options.h. An AwakeClock
// measures the timeouts. So a pause of the daemon does not count, and
// kGraceSeconds are added.
template <typename Options, typename Visitor>
void VisitServerOptions(Options& options, Visitor&& visitor) {
  visitor.Number("step_timeout_s", options.step_timeout_s, 0, 1e9,
                 "Seconds that an engine may take to answer a plan; a slower "
                 "engine counts as lost, and its requests wait for the next "
                 "engine (0: no limit). Time in which the daemon is stopped "
                 "does not count");
  visitor.Number("max_connections", options.max_connections, 1, 1 << 20,
                 "Open connections of engines and clients together, as far as "
                 "the limit of descriptors allows; more are closed at once");
  visitor.Number("spin_us", options.spin_us, 0, INT32_MAX,
                 "Microseconds that the core thread looks for work before it "
                 "sleeps (0 on a single processor)");
  // A plan with all the scores is one message, and Protobuf cannot make a
  // message of 2 GiB.
  visitor.Number("max_score_bytes", options.max_score_bytes, 0,
                 int64_t{1} << 30,
                 "Bytes of scores of all EvictByScores calls together. Scores "
                 "that a request was evicted by count until it ends, because a "
                 "preemption makes them necessary again");
  visitor.Number("score_timeout_s", options.score_timeout_s, 0.001, 3600,
                 "Seconds from the header of an EvictByScores call, which "
                 "keeps room for its scores, to the last score");
  visitor.Number("max_pending_token_bytes", options.max_pending_token_bytes, 1,
                 INT64_MAX,
                 "Bytes of tokens that a client may leave unread; a client "
                 "that leaves more is cut off");
}

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, SchedulerFactory factory);
  // Shuts down without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The address that clients connect to.
  const std::string& address() const { return listener_->address(); }
  // HOST:PORT of the metrics, or "" if no metrics are served.
  std::string metrics_address() const {
    return metrics_ == nullptr ? "" : metrics_->address();
  }

  // Null if no KV events are published.
  const KvEventPublisher* kv_events() const { return kv_events_.get(); }

  // Makes the core thread turn. Sets the health, and returns, by whether it has
  // turned since the last call. Call it about once a second, also while
  // draining, because the core thread looks at timeouts when it turns.
  bool UpdateHealth();

  // Sets the health to NOT_SERVING, and refuses new requests from now on.
  void BeginDrain();
  // Returns whether BeginDrain was called and then, at the last UpdateHealth,
  // no request was unfinished and all tokens had been sent.
  bool drained() const { return drained_.load(); }

  // Cancels all requests, gives clients up to `grace` to read what was sent,
  // and stops. Takes little more than `grace`, and with metrics up to 2 s more,
  // whatever peers do.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  class Services;
  Server() = default;

  std::atomic<bool> drained_{false};
  std::atomic<bool> engine_attached_{false};  // written by the core thread
  bool draining_ = false;
  // The server whose health the core thread sets when engines come and go. Null
  // while there is no gRPC server.
  std::atomic<grpc::Server*> health_{nullptr};
  // The core thread outlives the services, which outlive the gRPC server.
  std::unique_ptr<CoreThread> core_;
  std::unique_ptr<MetricsExporter> metrics_;     // null if none are served
  std::unique_ptr<KvEventPublisher> kv_events_;  // null if none are published
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_SERVER_H_
