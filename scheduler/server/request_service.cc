#include "scheduler/server/request_service.h"

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/wire.h"

namespace blockmgr {
namespace {

// A batch is closed at this size: clients accept 4 MiB a message by default.
constexpr int64_t kMaxBatchBytes = int64_t{1} << 20;
// On the wire: a varint token; and tags, lengths, index, reason of a chunk.
constexpr int64_t kTokenBytes = 5;
constexpr int64_t kChunkBytes = 40;

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kFailed:
      break;
  }
  return v1::FINISH_REASON_FAILED;
}

// One client's stream: a gRPC reactor for the client, a sink for the core.
// Owned by itself until gRPC says OnDone, and by whoever holds a pointer.
class TokenStream final : public grpc::ServerWriteReactor<v1::TokenBatch>,
                          public TokenSink,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  TokenStream(CoreThread* core, std::string session, int64_t max_pending_bytes)
      : core_(core),
        session_(std::move(session)),
        max_pending_bytes_(max_pending_bytes) {}

  void Start() {
    self_ = shared_from_this();
    const absl::Status status = CheckId("client_session", session_);
    if (!status.ok()) {
      End(ToGrpc(status));
      return;
    }
    core_->Post(OpenClient{session_, self_,
                           [self = shared_from_this()](absl::Status opened) {
                             self->OnOpened(opened);
                           }});
  }

  // From the core thread.
  bool Deliver(std::span<const TokenItem> items) override {
    MutexLock lock(&mutex_);
    if (finished_ || closing_) return true;  // ClientGone is on its way
    for (const TokenItem& item : items) Add(item);
    if (pending_bytes_ > max_pending_bytes_) {
      pending_.clear();
      finished_ = true;
      Finish(grpc::Status(
          grpc::StatusCode::RESOURCE_EXHAUSTED,
          absl::StrCat("more than ", max_pending_bytes_,
                       " bytes of tokens wait for this client to read them")));
      return false;
    }
    if (sending_ == nullptr) SendNext();
    return true;
  }

  void Close(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    if (finished_ || closing_) return;
    closing_ = true;
    close_status_ = ToGrpc(status);
    if (sending_ == nullptr) FinishClosing();
  }

 private:
  struct Batch {
    v1::TokenBatch message;
    int64_t bytes = 0;
    uint64_t number = 0;
  };

  void OnOpened(const absl::Status& status) {
    if (!status.ok()) {
      End(ToGrpc(status));
      return;
    }
    MutexLock lock(&mutex_);
    if (finished_) return;
    StartBatch();  // empty: the client now knows that the stream is open
    SendNext();
  }

  void Add(const TokenItem& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (pending_.empty() || pending_.back()->bytes >= kMaxBatchBytes) {
      StartBatch();
    }
    Batch& batch = *pending_.back();
    RequestStream& stream = *item.stream;
    int64_t bytes = 0;
    if (stream.batch != batch.number) {
      stream.batch = batch.number;
      stream.chunk = batch.message.chunks_size();
      v1::TokenChunk* added = batch.message.add_chunks();
      added->set_request_id(stream.id);
      added->set_first_index(item.index);
      bytes += kChunkBytes + static_cast<int64_t>(stream.id.size());
    }
    v1::TokenChunk* chunk = batch.message.mutable_chunks(stream.chunk);
    if (item.finish == nullptr) {
      chunk->add_tokens(static_cast<uint32_t>(item.token));
      bytes += kTokenBytes;
    } else {
      const FinishEffect& finish = *item.finish;
      if (chunk->tokens().empty()) {
        chunk->set_first_index(finish.num_output_tokens);
      }
      chunk->set_finish_reason(ToProto(finish.reason));
      chunk->set_error(std::string(finish.status.message()));
      chunk->set_num_cached_tokens(finish.num_cached_tokens);
      chunk->set_num_preemptions(finish.num_preemptions);
      bytes += static_cast<int64_t>(finish.status.message().size());
    }
    batch.bytes += bytes;
    pending_bytes_ += bytes;
  }

  void StartBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::unique_ptr<Batch> batch = std::move(spare_);
    if (batch == nullptr) batch = std::make_unique<Batch>();
    batch->message.Clear();
    batch->bytes = 0;
    batch->number = ++num_batches_;
    pending_.push_back(std::move(batch));
  }

  void SendNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (pending_.empty()) return;
    sending_ = std::move(pending_.front());
    pending_.pop_front();
    pending_bytes_ -= sending_->bytes;
    StartWrite(&sending_->message);
  }

  void FinishClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    Finish(close_status_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    spare_ = std::move(sending_);
    if (finished_) return;
    if (ok) SendNext();
    if (closing_ && sending_ == nullptr) FinishClosing();
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    const std::shared_ptr<TokenStream> self = std::move(self_);
    core_->Post(ClientGone{session_, self});
  }

  void End(const grpc::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (finished_) return;
      finished_ = true;
      Finish(status);
    }
    core_->Post(ClientGone{session_, shared_from_this()});
  }

  // Constant.
  CoreThread* const core_;
  const std::string session_;
  const int64_t max_pending_bytes_;

  std::shared_ptr<TokenStream> self_;  // from Start to OnDone

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status close_status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Batch> sending_ ABSL_GUARDED_BY(mutex_);  // one write
  std::deque<std::unique_ptr<Batch>> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // of pending_
  std::unique_ptr<Batch> spare_ ABSL_GUARDED_BY(mutex_);  // reused memory
  uint64_t num_batches_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

grpc::ServerUnaryReactor* RequestService::Submit(
    grpc::CallbackServerContext* context, const v1::SubmitRequest* request,
    v1::SubmitResponse* /*response*/) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::StatusOr<Request> parsed = FromProto(*request);
  if (!parsed.ok()) {
    reactor->Finish(ToGrpc(parsed.status()));
    return reactor;
  }
  core_->Post(SubmitCommand{
      request->client_session(), *std::move(parsed),
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); }});
  return reactor;
}

grpc::ServerWriteReactor<v1::TokenBatch>* RequestService::StreamTokens(
    grpc::CallbackServerContext* /*context*/,
    const v1::StreamTokensRequest* request) {
  const auto stream = std::make_shared<TokenStream>(
      core_, request->client_session(), max_pending_bytes_);
  stream->Start();
  return stream.get();
}

grpc::ServerUnaryReactor* RequestService::Cancel(
    grpc::CallbackServerContext* context, const v1::CancelRequest* request,
    v1::CancelResponse* /*response*/) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  core_->Post(CancelCommand{
      request->request_id(),
      [reactor](absl::Status status) { reactor->Finish(ToGrpc(status)); }});
  return reactor;
}

}  // namespace blockmgr
