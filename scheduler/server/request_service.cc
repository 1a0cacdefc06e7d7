#include "scheduler/server/request_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "scheduler/server/grpc_status.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/peer_text.h"
#include "scheduler/server/raw_messages.h"
#include "wire/request_wire.h"
#include "wire/sampling_wire.h"

namespace blockmgr {
namespace {

// A batch is closed at this size: clients accept 4 MiB a message by default.
constexpr int64_t kMaxBatchBytes = int64_t{1} << 20;
// A client gets at most one message in this time: steps that are shorter are
// collected. Those of a real model are longer, and their tokens leave at once.
constexpr std::chrono::microseconds kMinWriteInterval{1000};
// On the wire: a varint token; and tags, lengths, index, reason of a chunk.
constexpr int64_t kWireTokenBytes = 5;
constexpr int64_t kChunkBytes = 40;
// A varint token and a float.
constexpr int64_t kWireLogProbBytes = 9;

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
//
// The core thread only queues what a step brought. A worker makes and writes
// the messages, one at a time; `busy_` says that it has been asked to, or that
// a write is out.
class TokenStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          public TokenSink,
                          public std::enable_shared_from_this<TokenStream> {
 public:
  TokenStream(CoreThread* core, Worker* worker, std::string session,
              int64_t max_pending_bytes)
      : core_(core),
        worker_(worker),
        session_(std::move(session)),
        max_pending_bytes_(max_pending_bytes) {}

  // Ends at once, if the request was none.
  void Start(absl::Status status) {
    self_ = shared_from_this();
    status.Update(CheckId("client_session", session_));
    if (!status.ok()) {
      End(ToGrpc(status));
      return;
    }
    core_->Post(
        OpenClient{session_, self_,
                   [self = shared_from_this()](const absl::Status& opened) {
                     self->OnOpened(opened);
                   }});
  }

  // From the core thread.
  bool Deliver(std::span<const TokenItem> items) override {
    MutexLock lock(&mutex_);
    if (finished_ || closing_) return true;  // ClientGone is on its way
    for (const TokenItem& item : items) {
      Entry entry{.stream = item.stream->shared_from_this(),
                  .token = item.token,
                  .index = item.index};
      if (item.finish != nullptr) {
        entry.finish = std::make_unique<FinishEffect>(*item.finish);
      }
      if (item.data != nullptr) {
        entry.data = std::make_unique<std::string>(*item.data);
      }
      if (item.logprobs != nullptr) {
        entry.logprobs = std::make_unique<LogProbsEffect>(*item.logprobs);
      }
      pending_bytes_ += BytesOf(entry);
      pending_.push_back(std::move(entry));
    }
    if (pending_bytes_ > max_pending_bytes_) {
      pending_.clear();
      finished_ = true;
      Finish(grpc::Status(
          grpc::StatusCode::RESOURCE_EXHAUSTED,
          absl::StrCat("more than ", max_pending_bytes_,
                       " bytes of tokens wait for this client to read them")));
      return false;
    }
    if (!busy_) {
      busy_ = true;
      PostWrite();
    }
    return true;
  }

  bool HasSentAll() const override {
    MutexLock lock(&mutex_);
    return finished_ || (!busy_ && pending_.empty());
  }

  void Close(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    if (finished_ || closing_) return;
    closing_ = true;
    close_status_ = ToGrpc(status);
    if (!busy_) FinishClosing();
  }

 private:
  // A token, or log-probabilities, or the end of a request.
  struct Entry {
    std::shared_ptr<RequestStream> stream;
    int32_t token = 0;
    int32_t index = 0;
    std::unique_ptr<FinishEffect> finish = nullptr;
    std::unique_ptr<std::string> data = nullptr;  // of this token and others
    std::unique_ptr<LogProbsEffect> logprobs = nullptr;
  };

  // An upper bound of an entry on the wire: it has a chunk of its own.
  static int64_t BytesOf(const Entry& entry) {
    const int64_t text =
        entry.finish == nullptr
            ? 0
            : std::min(std::ssize(entry.finish->status.message()),
                       static_cast<int64_t>(2 * kMaxTextBytes));
    const int64_t data =
        entry.data == nullptr ? 0 : kChunkBytes + std::ssize(*entry.data);
    const int64_t logprobs =
        entry.logprobs == nullptr
            ? 0
            : kChunkBytes + std::ssize(entry.logprobs->logprobs.tokens) *
                                kWireLogProbBytes;
    return kWireTokenBytes + kChunkBytes + std::ssize(entry.stream->id) + text +
           data + logprobs;
  }

  void OnOpened(const absl::Status& status) {
    if (!status.ok()) {
      End(ToGrpc(status));
      return;
    }
    {
      MutexLock lock(&mutex_);
      if (!finished_) {
        busy_ = true;
        // Empty: the client knows that the stream is open.
        bytes_ = ToBytes(message_);
        StartWrite(&bytes_);
        return;
      }
    }
    // Its end has overtaken its beginning, whose queue was full.
    core_->Post(ClientGone{session_, shared_from_this()});
  }

  // REQUIRES: busy_, set by the caller, and no write is out.
  void PostWrite() {
    worker_->Post(next_write_,
                  [self = shared_from_this()] { self->WriteNext(); });
  }

  // REQUIRES: as PostWrite.
  void WriteNext() {
    {
      MutexLock lock(&mutex_);
      if (next_ == taken_.size()) {
        taken_.clear();
        next_ = 0;
        taken_.swap(pending_);
        pending_bytes_ = 0;
      }
      if (finished_ || taken_.empty()) {
        busy_ = false;
        if (closing_ && !finished_) FinishClosing();
        return;
      }
    }
    FillMessage();
    bytes_ = ToBytes(message_);
    MutexLock lock(&mutex_);
    if (finished_) {
      busy_ = false;
      return;
    }
    next_write_ = Worker::Clock::now() + kMinWriteInterval;
    StartWrite(&bytes_);
  }

  void FillMessage() {
    message_.Clear();
    ++num_messages_;
    int64_t bytes = 0;
    while (next_ < taken_.size() && bytes < kMaxBatchBytes) {
      const Entry& entry = taken_[next_++];
      bytes += BytesOf(entry);
      Add(entry);
    }
  }

  void Add(const Entry& entry) {
    RequestStream& stream = *entry.stream;
    if (stream.batch != num_messages_) {
      stream.batch = num_messages_;
      stream.chunk = message_.chunks_size();
      v1::TokenChunk* added = message_.add_chunks();
      added->set_request_id(stream.id);
      added->set_first_index(entry.index);
    }
    v1::TokenChunk* chunk = message_.mutable_chunks(stream.chunk);
    if (entry.logprobs != nullptr) {
      ToProto(entry.logprobs->logprobs, entry.logprobs->of_prompt
                                            ? chunk->add_prompt_logprobs()
                                            : chunk->add_logprobs());
      return;
    }
    if (entry.finish == nullptr) {
      chunk->add_tokens(static_cast<uint32_t>(entry.token));
      if (entry.data != nullptr) {
        v1::TokenData* data = chunk->add_token_data();
        data->set_index(entry.index);
        data->set_data(*entry.data);
      }
      return;
    }
    const FinishEffect& finish = *entry.finish;
    if (chunk->tokens().empty()) {
      chunk->set_first_index(finish.num_output_tokens);
    }
    chunk->set_finish_reason(ToProto(finish.reason));
    chunk->set_error(Shorten(finish.status.message()));
    chunk->set_num_cached_tokens(finish.num_cached_tokens);
    chunk->set_num_preemptions(finish.num_preemptions);
  }

  void FinishClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    finished_ = true;
    Finish(close_status_);
  }

  void OnWriteDone(bool ok) override {
    bytes_.Clear();  // an idle stream keeps no memory
    if (ok) {
      PostWrite();
      return;
    }
    MutexLock lock(&mutex_);  // broken: OnDone follows
    busy_ = false;
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
  Worker* const worker_;
  const std::string session_;
  const int64_t max_pending_bytes_;

  std::shared_ptr<TokenStream> self_;  // from Start to OnDone

  // Whoever has set busy_.
  Worker::Clock::time_point next_write_;  // not before this
  std::vector<Entry> taken_;              // from next_ on not in a message yet
  size_t next_ = 0;
  v1::TokenBatch message_;
  grpc::ByteBuffer bytes_;  // of message_, while a write is out
  uint64_t num_messages_ = 0;

  mutable Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status close_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Entry> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of pending_
};

}  // namespace

grpc::ServerUnaryReactor* RequestService::Submit(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::SubmitRequest>(
      context, *request, {.max_bytes = max_submit_bytes_},
      [this, response](const v1::SubmitRequest& submit,
                       grpc::ServerUnaryReactor* reactor) {
        absl::StatusOr<Request> parsed = FromProto(submit);
        if (!parsed.ok()) {
          reactor->Finish(ToGrpc(parsed.status()));
          return;
        }
        core_->Post(SubmitCommand{
            submit.client_session(), *std::move(parsed),
            [reactor, response](const absl::Status& status) {
              Answer(reactor, status, v1::SubmitResponse(), response);
            },
            // A fork is evicted from as its parent is.
            !submit.has_eviction() && submit.fork_of().empty()});
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RequestService::StreamTokens(
    grpc::CallbackServerContext* /*context*/, const grpc::ByteBuffer* request) {
  v1::StreamTokensRequest parsed;
  const absl::Status status = ParseMessage(*request, {}, &parsed);
  const auto stream = std::make_shared<TokenStream>(
      core_, &worker_, parsed.client_session(), max_pending_bytes_);
  stream->Start(status);
  return stream.get();
}

grpc::ServerUnaryReactor* RequestService::Cancel(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::CancelRequest>(
      context, *request, {},
      [this, response](const v1::CancelRequest& cancel,
                       grpc::ServerUnaryReactor* reactor) {
        const absl::Status named = CheckId("request_id", cancel.request_id());
        if (!named.ok()) {
          reactor->Finish(ToGrpc(named));
          return;
        }
        core_->Post(CancelCommand{
            cancel.request_id(), [reactor, response](const absl::Status& s) {
              Answer(reactor, s, v1::CancelResponse(), response);
            }});
      });
}

}  // namespace blockmgr
