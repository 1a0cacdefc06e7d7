#include "engine/reference/client.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <future>
#include <optional>
#include <utility>

#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <grpcpp/create_channel.h>
#include <spdlog/spdlog.h>

#include "blockmgr/base/status_macros.h"
#include "wire/engine_wire.h"
#include "wire/plan_wire.h"
#include "wire/policy_wire.h"

namespace blockmgr {
namespace {

constexpr std::chrono::seconds kAttachDeadline(5);

// The codes of both libraries are the same numbers.
absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

// Whether a failed attachment is worth another attempt: no daemon yet, one that
// is starting or overloaded, or our own last stream not yet noticed to be dead.
// A message that is too large (RESOURCE_EXHAUSTED) stays so.
bool MayRetry(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE ||
         code == grpc::StatusCode::DEADLINE_EXCEEDED ||
         code == grpc::StatusCode::ALREADY_EXISTS;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  // A plan carries whole prompts and a caller's scores.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Every attempt dials anew, instead of sitting out an older one's backoff.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

// Plans read but not executed yet. Bounded: a reader that is ahead waits, and
// flow control holds the daemon back.
class PlanQueue {
 public:
  explicit PlanQueue(size_t capacity) : capacity_(capacity) {}

  // False once closed.
  bool Push(absl::StatusOr<StepPlan> plan) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [this] { return closed_ || plans_.size() < capacity_; });
    if (closed_) return false;
    plans_.push_back(std::move(plan));
    changed_.notify_all();
    return true;
  }
  // Nothing once closed and empty.
  std::optional<absl::StatusOr<StepPlan>> Pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || !plans_.empty(); });
    if (plans_.empty()) return std::nullopt;
    absl::StatusOr<StepPlan> plan = std::move(plans_.front());
    plans_.pop_front();
    changed_.notify_all();
    return plan;
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::deque<absl::StatusOr<StepPlan>> plans_;
};

using Stream = grpc::ClientReaderWriter<v1::EngineMessage, v1::StepPlan>;

void ReadPlans(Stream* stream, PlanQueue* queue) {
  const absl::Cleanup close = [queue] { queue->Close(); };
  v1::StepPlan message;
  while (stream->Read(&message)) {
    StepPlan plan;
    absl::Status status = FromProto(message, &plan);
    const bool good = status.ok();
    const bool open =
        good ? queue->Push(std::move(plan)) : queue->Push(std::move(status));
    if (!good || !open) break;
  }
}

}  // namespace

// Makes a call the one that Stop cancels.
class EngineClient::CallScope {
 public:
  CallScope(EngineClient* client, grpc::ClientContext* context)
      : client_(*client) {
    const std::lock_guard lock(client_.mutex_);
    client_.call_ = context;
    if (client_.stopping_) context->TryCancel();
  }
  ~CallScope() {
    const std::lock_guard lock(client_.mutex_);
    client_.call_ = nullptr;
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  EngineClient& client_;
};

EngineClient::EngineClient(EngineClientOptions options)
    : options_(std::move(options)) {}

void EngineClient::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  if (call_ != nullptr) call_->TryCancel();
  stop_signal_.notify_all();
}

bool EngineClient::stopping() {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

bool EngineClient::WaitUntil(std::chrono::steady_clock::time_point time) {
  std::unique_lock<std::mutex> lock(mutex_);
  return !stop_signal_.wait_until(lock, time, [this] { return stopping_; });
}

bool EngineClient::Wait(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  return !stop_signal_.wait_for(lock, duration, [this] { return stopping_; });
}

absl::StatusOr<EngineClient::Attachment> EngineClient::Attach(
    const ModelLayout& layout, bool replace) {
  v1::AttachRequest request;
  ToProto(layout, request.mutable_layout());
  request.set_engine_name(options_.engine_name);
  ToProto(options_.abilities, &request);
  ToProto(options_.model, request.mutable_model());
  request.set_replace(replace);
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::milliseconds backoff = options_.first_backoff;
  bool told = false;
  while (true) {
    Attachment attachment{.channel = Connect(options_.address), .response = {}};
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAttachDeadline);
    grpc::Status status;
    {
      const CallScope scope(this, &context);
      status = v1::EngineService::NewStub(attachment.channel)
                   ->Attach(&context, request, &attachment.response);
    }
    if (status.ok()) return attachment;
    if (stopping()) return absl::CancelledError("stopped");
    if (!MayRetry(status.error_code())) return ToAbsl(status);
    if (!told) {
      spdlog::info("waiting for the daemon at {}: {}", options_.address,
                   status.error_message());
      told = true;
    }
    if (options_.attach_timeout.count() > 0 &&
        std::chrono::steady_clock::now() - begin + backoff >
            options_.attach_timeout) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no attachment to ", options_.address, " within ",
          options_.attach_timeout.count(), " ms: ", status.error_message()));
    }
    if (!Wait(backoff)) return absl::CancelledError("stopped");
    backoff = std::min(2 * backoff, options_.last_backoff);
  }
}

absl::Status EngineClient::RunStream(const Attachment& attachment,
                                     const EngineHandlers& handlers,
                                     bool* served) {
  const v1::AttachResponse& session = attachment.response;
  grpc::ClientContext context;
  const CallScope scope(this, &context);
  const std::unique_ptr<v1::EngineService::Stub> stub =
      v1::EngineService::NewStub(attachment.channel);
  const std::unique_ptr<Stream> stream = stub->RunSteps(&context);
  v1::EngineMessage message;
  message.set_epoch(session.epoch());
  message.set_session(session.session());
  stream->Write(message);

  PlanQueue queue(
      static_cast<size_t>(std::clamp(session.max_steps_in_flight(), 1, 64)));
  std::future<void> reader =
      std::async(std::launch::async, ReadPlans, stream.get(), &queue);
  absl::Status engine_status;
  std::exception_ptr thrown;
  try {
    StepResult result;
    while (std::optional<absl::StatusOr<StepPlan>> plan = queue.Pop()) {
      *served = true;
      engine_status =
          plan->ok() ? handlers.run(**plan, &result) : plan->status();
      if (!engine_status.ok()) break;
      message.clear_result();
      ToProto(result, message.mutable_result());
      // A failed write means that the stream is over; Finish says why.
      if (!stream->Write(message)) break;
    }
  } catch (...) {
    thrown = std::current_exception();
  }
  if (!engine_status.ok() || thrown != nullptr) context.TryCancel();
  queue.Close();
  stream->WritesDone();
  reader.wait();
  // Finish waits for the daemon to end the call; unread plans would hold it up.
  v1::StepPlan unread;
  while (stream->Read(&unread)) {
  }
  const grpc::Status status = stream->Finish();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  reader.get();
  if (!engine_status.ok()) return engine_status;
  return ToAbsl(status);
}

absl::Status EngineClient::Serve(const ModelLayout& layout,
                                 const EngineHandlers& handlers) {
  BM_RETURN_IF_ERROR(layout.Validate());
  bool served = false;
  while (true) {
    // Not once it had the place: whoever has it then would lose it at once.
    absl::StatusOr<Attachment> attachment =
        Attach(layout, options_.replace && !served);
    if (stopping()) return absl::OkStatus();
    BM_RETURN_IF_ERROR(attachment.status());
    spdlog::info("attached to {}, session {:x}: {}", options_.address,
                 attachment->response.session(), layout.ToString());
    handlers.reset();
    absl::Status status = RunStream(*attachment, handlers, &served);
    if (stopping()) return absl::OkStatus();
    // Somebody has taken its place, and does not want to lose it again.
    if (!options_.reconnect || absl::IsAborted(status)) return status;
    spdlog::warn("the stream ended ({}), attaching again", status.ToString());
    if (!Wait(options_.first_backoff)) return absl::OkStatus();
  }
}

}  // namespace blockmgr
