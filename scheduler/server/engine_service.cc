#include "scheduler/server/engine_service.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/connections.h"
#include "scheduler/server/grpc_status.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/peer_text.h"
#include "scheduler/server/rate_limited_warning.h"
#include "scheduler/server/raw_messages.h"
#include "wire/engine_wire.h"
#include "wire/plan_wire.h"
#include "wire/policy_wire.h"

namespace blockmgr {
namespace {

// Counts of a thousand evictions of a large model have small numbers.
constexpr int64_t kResultAllowanceBytes = int64_t{16} << 20;
constexpr size_t kMaxNameBytes = 256;
// The limit has room for a tokenizer that is too large, so that the error can
// name the tokenizer.
constexpr int64_t kMaxAttachBytes =
    kMaxTokenizerZipBytes + 2 * kMaxSmallMessageBytes;

// The stream of one engine: a gRPC reactor for the engine, and a sink for the
// core. It owns itself until gRPC calls OnDone, together with everybody who
// holds a shared pointer to it.
class EngineStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public EngineSink,
      public std::enable_shared_from_this<EngineStream> {
 public:
  EngineStream(CoreThread* core, int64_t max_result_bytes, bool may_replace,
               RateLimitedWarning* refusals)
      : core_(core),
        limits_{.max_bytes = max_result_bytes,
                .allowance_bytes = kResultAllowanceBytes},
        may_replace_(may_replace),
        refusals_(refusals) {}

  void Start() {
    self_ = shared_from_this();
    StartRead(&bytes_);
  }

  // Called by the core thread.
  void SendPlan(const StepPlan& plan) override {
    ToProto(plan, &plan_);
    grpc::ByteBuffer bytes;
    bool owns = false;
    const grpc::Status status =
        grpc::SerializationTraits<v1::StepPlan>::Serialize(plan_, &bytes,
                                                           &owns);
    if (plan_.evictions().empty()) {
      plan_.Clear();
    } else {
      // A new message frees the memory of a caller's scores, which may be huge.
      plan_ = {};
    }
    if (!status.ok()) {
      End(status);
      return;
    }
    MutexLock lock(&mutex_);
    if (finished_) return;
    unsent_.push_back(bytes);
    if (!sending_.Valid()) SendNext();
  }

  void ReadNext() override {
    MutexLock lock(&mutex_);
    if (!finished_) StartRead(&bytes_);
  }

  void Close(const absl::Status& status) override { End(ToGrpc(status)); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      // The engine has detached, or the stream is broken.
      End(grpc::Status::OK);
      return;
    }
    absl::Status status = ParseMessage(bytes_, limits_, &message_);
    bytes_.Clear();
    if (status.ok()) status = opened_ ? TakeResult() : Open();
    if (!status.ok()) End(ToGrpc(status));
  }

  absl::Status Open() {
    opened_ = true;
    if (message_.has_result()) {
      return absl::FailedPreconditionError(
          "result: expected none in the first message of the stream");
    }
    epoch_ = message_.epoch();
    session_ = message_.session();
    core_->Post(
        OpenSteps{epoch_, session_, shared_from_this(),
                  [self = shared_from_this()](const absl::Status& status) {
                    self->OnOpened(status);
                  },
                  may_replace_});
    return absl::OkStatus();
  }

  // If the core's queue is full, the end of a stream overtakes its beginning.
  // The core then does not know the stream yet.
  void OnOpened(const absl::Status& status) {
    if (!status.ok()) {
      End(ToGrpc(status));
      return;
    }
    {
      MutexLock lock(&mutex_);
      if (!finished_) {
        StartRead(&bytes_);
        return;
      }
    }
    core_->Post(EngineLost{shared_from_this()});
  }

  absl::Status TakeResult() {
    if (message_.epoch() != epoch_ || message_.session() != session_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "STALE_EPOCH: epoch, session: expected ", epoch_, ", ", session_,
          ", got ", message_.epoch(), ", ", message_.session()));
    }
    if (!message_.has_result()) {
      return absl::InvalidArgumentError("result: expected one, got none");
    }
    FromProto(message_.result(), &result_);
    WarnOfRefusals();
    core_->Post(EngineResult{shared_from_this(), &result_});
    return absl::OkStatus();
  }

  // Most requests go on after a refused eviction, and their clients hear
  // nothing.
  void WarnOfRefusals() {
    const auto refused = std::ranges::find_if(
        result_.evictions, std::logical_not(), &EvictionOutcome::ok);
    if (refused == result_.evictions.end()) return;
    refusals_->Warn(absl::StrCat("the engine refused an eviction in step ",
                                 Index(result_.id), ": ",
                                 ForLog(refused->error)));
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    sending_.Clear();
    if (ok && !finished_ && !unsent_.empty()) SendNext();
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    const std::shared_ptr<EngineStream> self = std::move(self_);
    core_->Post(EngineLost{self});
  }

  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sending_ = unsent_.front();  // shares its bytes
    unsent_.pop_front();
    StartWrite(&sending_);
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (finished_) return;
      finished_ = true;
      Finish(status);
    }
    core_->Post(EngineLost{shared_from_this(), status.error_message()});
  }

  // Constant.
  CoreThread* const core_;
  const MessageLimits limits_;
  const bool may_replace_;
  RateLimitedWarning* const refusals_;

  // Used by the core thread. The message is empty between plans, but keeps its
  // memory.
  v1::StepPlan plan_;

  // Used by the thread that reads. The core thread reads result_ between
  // EngineResult and ReadNext, when no read is out.
  grpc::ByteBuffer bytes_;
  v1::EngineMessage message_;
  StepResult result_;
  bool opened_ = false;
  uint64_t epoch_ = 0;
  uint64_t session_ = 0;
  // Keeps the stream alive from Start to OnDone.
  std::shared_ptr<EngineStream> self_;

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // The core bounds both together to max_steps_in_flight + 1 messages. The
  // additional message is a plan that was answered before its write was
  // reported done.
  grpc::ByteBuffer sending_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mutex_);
};

void ToProto(const Attachment& attachment, v1::AttachResponse* proto) {
  proto->set_epoch(attachment.epoch);
  proto->set_session(attachment.session);
  const SchedulerOptions& options = attachment.options;
  proto->set_max_num_seqs(options.max_num_seqs);
  proto->set_max_num_batched_tokens(options.max_num_batched_tokens);
  proto->set_max_steps_in_flight(options.max_steps_in_flight);
  proto->set_num_speculative_tokens(options.num_speculative_tokens);
}

// `size` is the size of the message in bytes.
absl::Status CheckSizes(const v1::AttachRequest& attach, int64_t size) {
  if (attach.engine_name().size() > kMaxNameBytes) {
    return Invalid("engine_name: expected at most ", kMaxNameBytes,
                   " bytes, got ", attach.engine_name().size());
  }
  const int64_t others = size - std::ssize(attach.model().tokenizer_zip());
  if (others <= kMaxSmallMessageBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("AttachRequest: expected at most ", kMaxSmallMessageBytes,
                   " bytes beside model.tokenizer_zip, got ", others));
}

}  // namespace

grpc::ServerUnaryReactor* EngineService::Attach(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::AttachRequest>(
      context, *request, {.max_bytes = kMaxAttachBytes},
      [this, context, response, size = static_cast<int64_t>(request->Length())](
          const v1::AttachRequest& attach,
          grpc::ServerUnaryReactor* reactor) -> absl::Status {
        BM_RETURN_IF_ERROR(CheckSizes(attach, size));
        BM_ASSIGN_OR_RETURN(const ModelLayout layout,
                            FromProto(attach.layout()));
        BM_ASSIGN_OR_RETURN(EngineAbilities abilities, FromProto(attach));
        BM_ASSIGN_OR_RETURN(ServedModel model, FromProto(attach.model()));
        core_->Post(AttachEngine{
            .layout = layout,
            .name = attach.engine_name(),
            .done =
                [reactor,
                 response](const absl::StatusOr<Attachment>& attachment) {
                  v1::AttachResponse proto;
                  if (attachment.ok()) ToProto(*attachment, &proto);
                  Answer(reactor, attachment.status(), proto, response);
                },
            .abilities = std::move(abilities),
            .model = std::make_shared<const ServedModel>(std::move(model)),
            .replace = attach.replace(),
            .may_replace = IsOwner(*context)});
        return absl::OkStatus();
      });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
EngineService::RunSteps(grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<EngineStream>(
      core_, max_result_bytes_, IsOwner(*context), &refusals_);
  stream->Start();
  return stream.get();
}

}  // namespace blockmgr
