// EngineClient: attaches an engine to a daemon and runs the steps it is sent.
//
// The thread that calls Serve executes the plans. A second thread reads and
// decodes the next plans meanwhile. While no daemon is there, attaching is
// retried. When the daemon goes away, Serve returns, or attaches again if
// EngineClientOptions::reconnect is set.
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
#include "blockmgr/engine_abilities.h"
#include "blockmgr/served_model.h"
#include "blockmgr/step_plan.h"
#include "proto/blockmgr/v1/engine.grpc.pb.h"

namespace blockmgr {

struct EngineClientOptions {
  std::string address;  // a gRPC target: unix:PATH or HOST:PORT
  std::string engine_name = "engine";
  EngineAbilities abilities = {};
  // The model, as gateways are told of it.
  ServedModel model = {};
  // Whether the first attachment takes the place of an engine that is attached.
  bool replace = false;
  // Whether to attach again when the daemon goes away. A daemon that has
  // replaced this engine by another one is left alone.
  bool reconnect = false;
  // The time for which to look for a daemon. Zero means without end.
  std::chrono::milliseconds attach_timeout{0};
  // The wait between two attempts, doubled each time from first to last.
  std::chrono::milliseconds first_backoff{50};
  std::chrono::milliseconds last_backoff{2000};
};

// EngineHandlers are the engine's functions. They run on the thread that called
// Serve.
struct EngineHandlers {
  // Forgets all sequences, because the engine has attached anew.
  std::function<void()> reset;
  std::function<absl::Status(const StepPlan&, StepResult*)> run;
};

// Thread-safe, but only one thread at a time may call Serve.
class EngineClient {
 public:
  explicit EngineClient(EngineClientOptions options);

  // Attaches and executes plans until the stream ends. The stream ends when the
  // daemon ends it (OK), when it breaks (its error), or when the engine cannot
  // run a plan (the engine's error). Serve then returns this status. If
  // options.reconnect is set, it attaches again instead, unless the status is
  // Aborted, because another engine has replaced this one.
  //
  // Returns OK after Stop. If attaching fails, returns the daemon's error when
  // another attempt would not help, or DeadlineExceeded after attach_timeout.
  // An exception of a handler ends the stream, too, and is thrown on.
  absl::Status Serve(const ModelLayout& layout, const EngineHandlers& handlers);

  // Ends Serve soon: cancels its calls.
  void Stop();
  // Waits until `time`, for a handler that simulates a duration. If the client
  // is stopped, returns false at once.
  bool WaitUntil(std::chrono::steady_clock::time_point time);

 private:
  struct Attachment {
    std::shared_ptr<grpc::Channel> channel;
    v1::AttachResponse response;
  };
  class CallScope;

  absl::StatusOr<Attachment> Attach(const ModelLayout& layout, bool replace);
  // Serves one attachment. Sets `served` when a plan has come.
  absl::Status RunStream(const Attachment& attachment,
                         const EngineHandlers& handlers, bool* served);
  // Returns false if the client was stopped meanwhile.
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
