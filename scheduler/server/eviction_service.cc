#include "scheduler/server/eviction_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/awake_clock.h"
#include "scheduler/server/grpc_status.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/raw_messages.h"
#include "wire/request_wire.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxMessageBytes = int64_t{1} << 20;
constexpr int64_t kMaxMessageScores = kMaxMessageBytes / sizeof(float);
// A header may contain a budget for every head, and may then be larger than a
// message of scores.
constexpr MessageLimits kUploadLimits = {.max_bytes = 2 * kMaxMessageBytes};

// ScoreBuffer holds the scores that a call receives, and takes their bytes out
// of the budget. The last owner (the call, a command or a plan) gives the bytes
// back when it releases the buffer.
class ScoreBuffer {
 public:
  ScoreBuffer(std::shared_ptr<ScoreBudget> budget, int64_t num_scores)
      : budget_(std::move(budget)),
        bytes_(num_scores * int64_t{sizeof(float)}) {
    values_.reserve(static_cast<size_t>(num_scores));
  }
  ~ScoreBuffer() { budget_->Release(bytes_); }
  ScoreBuffer(const ScoreBuffer&) = delete;
  ScoreBuffer& operator=(const ScoreBuffer&) = delete;

  std::vector<float>& values() { return values_; }

 private:
  const std::shared_ptr<ScoreBudget> budget_;
  const int64_t bytes_;
  std::vector<float> values_;
};

Reply<absl::StatusOr<EvictionEffect>> AnswerTo(
    grpc::ByteBuffer* response, absl::AnyInvocable<void(grpc::Status)> finish) {
  return [response, finish = std::move(finish)](
             absl::StatusOr<EvictionEffect> effect) mutable {
    if (effect.ok()) {
      v1::EvictResponse proto;
      ToProto(*effect, &proto);
      *response = ToBytes(proto);
    }
    finish(ToGrpc(effect.status()));
  };
}

// One call of EvictByScores: header, count of the scores, scores, command.
// Each stage starts the next, so that one thing happens at a time, besides the
// timeout. A call owns itself until gRPC calls OnDone, together with everybody
// who holds a shared pointer to it.
class ScoreUpload final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                          public std::enable_shared_from_this<ScoreUpload> {
 public:
  ScoreUpload(CoreThread* core, Worker* timer,
              std::chrono::milliseconds timeout,
              std::shared_ptr<ScoreBudget> budget,
              grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : core_(core),
        timer_(timer),
        timeout_(timeout),
        budget_(std::move(budget)),
        context_(context),
        response_(response) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&bytes_);
  }

 private:
  void OnReadDone(bool ok) override {
    absl::Status status;
    // The command whose reply continues the call.
    std::optional<Command> command;
    {
      MutexLock lock(&mutex_);
      if (finished_) return;
      if (ok) {
        status = ParseMessage(bytes_, kUploadLimits, &message_);
        bytes_.Clear();
      }
      if (status.ok()) {
        status = !ok                  ? TakeEnd(&command)
                 : buffer_ == nullptr ? TakeHeader(&command)
                                      : TakeScores();
      }
    }
    // The lock is free here, because the reply may come before Post returns.
    if (command.has_value()) {
      core_->Post(*std::move(command));
    } else {
      Continue(status);
    }
  }

  void Continue(const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (finished_) return;
    if (status.ok()) {
      StartRead(&bytes_);
    } else {
      End(ToGrpc(status));
    }
  }

  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    // The scores are freed first. A caller that learns of the end may try again
    // at once.
    buffer_.reset();
    Finish(status);
  }

  absl::Status TakeHeader(std::optional<Command>* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!message_.has_header() || !message_.scores().empty()) {
      return absl::InvalidArgumentError(
          "header: expected a header and no scores in the first message");
    }
    request_id_ = message_.header().request_id();
    BM_ASSIGN_OR_RETURN(command_, FromProto(message_.header()));
    if (command_.policy.scorer.kind != ScorerKind::kExternal) {
      return absl::InvalidArgumentError(
          "header.policy.scorer: expected external_scores");
    }
    if (command_.cut < 1) {
      return Invalid("header.cut: expected at least 1 with scores, got ",
                     command_.cut);
    }
    *next = CountScores{
        request_id_, command_.cut,
        [self = shared_from_this()](const absl::StatusOr<int64_t>& count) {
          self->Continue(count.ok() ? self->Reserve(*count) : count.status());
        }};
    return absl::OkStatus();
  }

  absl::Status Reserve(int64_t num_scores) {
    MutexLock lock(&mutex_);
    num_scores_ = num_scores;
    if (num_scores_ > budget_->max_bytes() / int64_t{sizeof(float)} ||
        !budget_->Reserve(num_scores_ * int64_t{sizeof(float)})) {
      return absl::ResourceExhaustedError(
          absl::StrCat("scores: layers x heads x cut = ", num_scores_,
                       " of 4 bytes each; all calls together may hold ",
                       budget_->max_bytes()));
    }
    buffer_ = std::make_shared<ScoreBuffer>(budget_, num_scores_);
    WaitOn();
    return absl::OkStatus();
  }

  // The AwakeClock adds at most one second per look, so the call looks every
  // second.
  void WaitOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Worker::Clock::time_point now = Worker::Clock::now();
    const double left =
        std::chrono::duration<double>(timeout_).count() +
        AwakeClock::kGraceSeconds -
        awake_.Look(
            std::chrono::duration<double>(now.time_since_epoch()).count());
    if (left <= 0) {
      TimeOut();
      return;
    }
    const std::chrono::duration<double> wait(
        std::min(left, AwakeClock::kMaxGapSeconds));
    timer_->Post(now + std::chrono::ceil<Worker::Clock::duration>(wait),
                 [weak = weak_from_this()] {
                   const std::shared_ptr<ScoreUpload> self = weak.lock();
                   if (self == nullptr) return;
                   MutexLock lock(&self->mutex_);
                   if (!self->finished_ && !self->executes_) self->WaitOn();
                 });
  }

  void TimeOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    End(ToGrpc(absl::DeadlineExceededError(
        absl::StrCat("scores: expected all ", num_scores_, " within ",
                     absl::FormatDuration(absl::FromChrono(timeout_)), ", got ",
                     buffer_->values().size()))));
  }

  absl::Status TakeScores() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (message_.has_header()) {
      return absl::InvalidArgumentError(
          "header: expected in the first message only");
    }
    if (message_.scores().size() > kMaxMessageScores) {
      return Invalid("scores: expected at most ", kMaxMessageScores,
                     " in a message, got ", message_.scores().size());
    }
    std::vector<float>& values = buffer_->values();
    const int64_t total =
        static_cast<int64_t>(values.size()) + message_.scores().size();
    if (total > num_scores_) return WrongCount(total);
    values.insert(values.end(), message_.scores().begin(),
                  message_.scores().end());
    return absl::OkStatus();
  }

  absl::Status TakeEnd(std::optional<Command>* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (context_->IsCancelled()) return absl::CancelledError();
    if (buffer_ == nullptr) {
      return absl::InvalidArgumentError("header: expected one, got none");
    }
    const auto total = static_cast<int64_t>(buffer_->values().size());
    if (total != num_scores_) return WrongCount(total);
    // The pointer owns the buffer and points at the buffer's values.
    command_.scores =
        std::shared_ptr<const std::vector<float>>(buffer_, &buffer_->values());
    buffer_.reset();
    // A new message frees the memory, which Clear would keep.
    message_ = {};
    executes_ = true;
    *next = EvictCommand{request_id_, std::move(command_),
                         AnswerTo(response_, [self = shared_from_this()](
                                                 const grpc::Status& status) {
                           MutexLock lock(&self->mutex_);
                           self->End(status);
                         })};
    return absl::OkStatus();
  }

  absl::Status WrongCount(int64_t got) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return Invalid("scores: expected layers x heads x cut = ", num_scores_,
                   " values, got ", got);
  }

  void OnDone() override { const auto self = std::move(self_); }

  // Constant.
  CoreThread* const core_;
  Worker* const timer_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<ScoreBudget> budget_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;

  // The upload owns itself from Start to OnDone.
  std::shared_ptr<ScoreUpload> self_;

  Mutex mutex_;
  // gRPC fills the buffer while a read is out.
  grpc::ByteBuffer bytes_;
  v1::EvictByScoresRequest message_ ABSL_GUARDED_BY(mutex_);
  std::string request_id_ ABSL_GUARDED_BY(mutex_);
  EvictionCommand command_ ABSL_GUARDED_BY(mutex_);
  // The number of scores that the core expects.
  int64_t num_scores_ ABSL_GUARDED_BY(mutex_) = 0;
  // Counts the time since the header.
  AwakeClock awake_ ABSL_GUARDED_BY(mutex_);
  // Null before the header is accepted, and after the last score.
  std::shared_ptr<ScoreBuffer> buffer_ ABSL_GUARDED_BY(mutex_);
  // EvictCommand is posted and not answered yet.
  bool executes_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

bool ScoreBudget::Reserve(int64_t bytes) {
  int64_t used = used_bytes_.load();
  do {
    if (bytes > max_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return true;
}

grpc::ServerUnaryReactor* EvictionService::Evict(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::EvictRequest>(
      context, *request, kUploadLimits,
      [this, response](const v1::EvictRequest& evict,
                       grpc::ServerUnaryReactor* reactor) -> absl::Status {
        BM_ASSIGN_OR_RETURN(EvictionCommand command, FromProto(evict));
        if (command.policy.scorer.kind == ScorerKind::kExternal) {
          return absl::InvalidArgumentError(
              "policy.scorer: external_scores need EvictByScores");
        }
        core_->Post(EvictCommand{
            evict.request_id(), std::move(command),
            AnswerTo(response, [reactor](const grpc::Status& status) {
              reactor->Finish(status);
            })});
        return absl::OkStatus();
      });
}

grpc::ServerReadReactor<grpc::ByteBuffer>* EvictionService::EvictByScores(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response) {
  // make_shared is not used. It would put the call and its reference count into
  // one allocation, which the timer's weak pointer would keep for longer.
  const std::shared_ptr<ScoreUpload> upload(new ScoreUpload(
      core_, &timer_, upload_timeout_, budget_, context, response));
  upload->Start();
  return upload.get();
}

}  // namespace blockmgr
