// EngineClient: attaches an engine to a daemon and runs the steps it is sent.
//
// The thread that calls Serve executes; another reads, so that the next plans
// are already here and decoded while one runs. Attaching is retried while the
// daemon is not there; a daemon that goes away ends Serve, or, on request,
// starts it over.
#ifndef ENGINE_REFERENCE_CLIENT_H_
#define ENGINE_REFERENCE_CLIENT_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/engine.grpc.pb.h"

namespace blockmgr {

struct EngineClientOptions {
  std::string address;  // a gRPC target: unix:PATH or HOST:PORT
  std::string engine_name = "engine";
  // Sequences whose scores the engine can accumulate at a time; 0: none.
  int32_t num_scorer_states = 0;
  // Of host memory, for preempted requests; 0: they are computed again.
  int32_t num_host_blocks = 0;
  // Whether it carries out eviction orders of layer groups with a window.
  bool supports_window_evictions = false;
  // Take the place of an engine that is attached, at first.
  bool replace = false;
  // Attach again when the daemon goes away, but not to one that has replaced
  // this engine by another.
  bool reconnect = false;
  // How long to look for a daemon; zero: for ever.
  std::chrono::milliseconds attach_timeout{0};
  // Wait between two attempts: doubled from first to last.
  std::chrono::milliseconds first_backoff{50};
  std::chrono::milliseconds last_backoff{2000};
};

// What serves the plans. Both run on the thread that called Serve.
struct EngineHandlers {
  // A new attachment: everything known of sequences is void.
  std::function<void()> reset;
  std::function<absl::Status(const StepPlan&, StepResult*)> run;
};

// Thread-safe: Stop may come from any thread. Serve is called once at a time.
class EngineClient {
 public:
  explicit EngineClient(EngineClientOptions options);

  // Attaches and executes plans until Stop (OK), until the daemon ends the
  // stream and options do not say to reconnect (OK when it did so in order, its
  // error otherwise), or until the engine cannot run a plan (its error).
  // Attaching fails with the daemon's error, when another attempt would not
  // help, or DeadlineExceeded.
  absl::Status Serve(const ModelLayout& layout, const EngineHandlers& handlers);

  // Ends Serve soon: cancels its calls.
  void Stop();
  // Waits until `time`, for handlers that take their time. Returns false, at
  // once, when the client is stopped.
  bool WaitUntil(std::chrono::steady_clock::time_point time);

 private:
  struct Attachment {
    std::shared_ptr<grpc::Channel> channel;
    v1::AttachResponse response;
  };
  class CallScope;

  absl::StatusOr<Attachment> Attach(const ModelLayout& layout, bool replace);
  // `served`: set when a plan has come.
  absl::Status RunStream(const Attachment& attachment,
                         const EngineHandlers& handlers, bool* served);
  // False when stopped meanwhile.
  bool Wait(std::chrono::milliseconds duration);
  bool stopping();

  const EngineClientOptions options_;
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stopping_ = false;                // guarded by mutex_
  grpc::ClientContext* call_ = nullptr;  // guarded by mutex_
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_CLIENT_H_
