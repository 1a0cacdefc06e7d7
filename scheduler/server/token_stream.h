// TokenStream: the stream of a gRPC call that carries the tokens of requests.
//
// It is a gRPC reactor for the client and a sink for the core. It buffers what
// the client has not yet taken. One write is outstanding at a time. A client
// that leaves more than max_pending_bytes unread is cut off with
// RESOURCE_EXHAUSTED. When the call ends, the core is told that the session is
// gone, and cancels its requests.
//
// A stream owns itself until gRPC calls OnDone, together with everybody who
// holds a shared pointer to it. The core thread only queues what a step
// brought. A worker makes and writes the messages.
#ifndef SCHEDULER_SERVER_TOKEN_STREAM_H_
#define SCHEDULER_SERVER_TOKEN_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <absl/status/status.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "scheduler/server/commands.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

class TokenStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                    public TokenSink,
                    public std::enable_shared_from_this<TokenStream> {
 public:
  // Called by the core thread.
  bool Deliver(std::span<const TokenItem> items) override;
  bool HasSentAll() const override;
  void Close(const absl::Status& status) override;

 protected:
  // A token, or log-probabilities, or the end of a request.
  struct Entry {
    std::shared_ptr<RequestStream> stream;
    int32_t token = 0;
    int32_t index = 0;
    std::unique_ptr<FinishEffect> finish = nullptr;
    // Bytes that the engine adds to the tokens from this one on.
    std::unique_ptr<std::string> data = nullptr;
    std::unique_ptr<LogProbsEffect> logprobs = nullptr;
  };

  // Returns an upper bound of the entry's bytes on the wire. The bound assumes
  // that the entry has a chunk of its own.
  static int64_t BytesOf(const Entry& entry);

  // With `writes_at_end`, the worker waits for the end of a request before it
  // asks for messages. If many entries are pending, it asks earlier, so that
  // NextMessage can take the entries and store them in less memory.
  TokenStream(CoreThread* core, Worker* worker, std::string session,
              int64_t max_pending_bytes, bool writes_at_end)
      : core_(core),
        worker_(worker),
        session_(std::move(session)),
        max_pending_bytes_(max_pending_bytes),
        writes_at_end_(writes_at_end) {}

  const std::string& session() const { return session_; }
  CoreThread* core() const { return core_; }
  int64_t max_pending_bytes() const { return max_pending_bytes_; }

  // Keeps the stream alive until OnDone. The subclass calls it first.
  void Begin() { self_ = shared_from_this(); }
  // Takes the core's answer to the opening of the session. `first` is a message
  // to be written at once, or null if there is none.
  void OnOpened(const absl::Status& status,
                const google::protobuf::Message* first);
  // Ends the call, unless it has ended.
  void End(const grpc::Status& status);

  // The entries that NextMessage may take, in order.
  bool has_entry() const { return next_ < taken_.size(); }
  const Entry& entry() const { return taken_[next_]; }
  void PopEntry() { ++next_; }

  // Takes some entries and returns the next message, which lives until the next
  // call. Returns null if there is nothing to write until more entries come.
  // Called by the worker.
  virtual const google::protobuf::Message* NextMessage() = 0;
  // Returns whether the call has no more messages. Called by the worker after
  // NextMessage has returned null.
  virtual bool IsComplete() const { return false; }

 private:
  // Asks the worker to call WriteNext.
  // REQUIRES: the caller has set busy_, and no write is out.
  void PostWrite();
  // Writes the next message, or clears busy_ if there is none.
  // REQUIRES: busy_ is set, and no write is out.
  void WriteNext();
  // Takes the pending entries. Returns false, with busy_ cleared, if there are
  // none or if the call has ended.
  bool TakePending();
  void FinishClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override;

  // Constant.
  CoreThread* const core_;
  Worker* const worker_;
  const std::string session_;
  const int64_t max_pending_bytes_;
  const bool writes_at_end_;

  // Keeps the stream alive from Begin to OnDone.
  std::shared_ptr<TokenStream> self_;

  // One thread at a time uses these while busy_ is set: the thread that has set
  // it, the worker, or a thread of gRPC that ends a write.
  Worker::Clock::time_point next_write_;  // the earliest time of the next write
  // The entries from next_ on are in no message yet.
  std::vector<Entry> taken_;
  size_t next_ = 0;
  // The bytes of the message while a write is out.
  grpc::ByteBuffer bytes_;

  mutable Mutex mutex_;
  // The worker has been asked to write, or a write is out.
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status close_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Entry> pending_ ABSL_GUARDED_BY(mutex_);
  // The bytes of pending_.
  int64_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_TOKEN_STREAM_H_
