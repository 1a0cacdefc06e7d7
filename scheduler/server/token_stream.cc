#include "scheduler/server/token_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <absl/strings/str_cat.h>

#include "scheduler/server/grpc_status.h"
#include "scheduler/server/peer_text.h"
#include "scheduler/server/raw_messages.h"

namespace blockmgr {
namespace {

// A client gets at most one message in this time. The tokens of shorter steps
// are collected. Steps of a real model are longer, so their tokens leave at
// once.
constexpr std::chrono::microseconds kMinWriteInterval{1000};
// If a call that writes at its end has more pending bytes, NextMessage takes
// them, because the call's answer stores them in far less memory.
constexpr int64_t kCompactBytes = int64_t{1} << 20;
// The bytes of a token on the wire, as a varint.
constexpr int64_t kWireTokenBytes = 5;
// The bytes of a chunk's tags, lengths, index and reason.
constexpr int64_t kChunkBytes = 40;
// The bytes of a token, as a varint, and a float.
constexpr int64_t kWireLogProbBytes = 9;

}  // namespace

bool TokenStream::Deliver(std::span<const TokenItem> items) {
  MutexLock lock(&mutex_);
  // The core will get ClientGone of a stream that ends.
  if (finished_ || closing_) return true;
  bool writes = !writes_at_end_;
  for (const TokenItem& item : items) {
    Entry entry{.stream = item.stream->shared_from_this(),
                .token = item.token,
                .index = item.index};
    if (item.finish != nullptr) {
      entry.finish = std::make_unique<FinishEffect>(*item.finish);
      writes = true;
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
  // If no request has ended, NextMessage only stores the entries in less
  // memory.
  writes |= pending_bytes_ > std::min(kCompactBytes, max_pending_bytes_ / 2);
  if (!busy_ && writes) {
    busy_ = true;
    PostWrite();
  }
  return true;
}

bool TokenStream::HasSentAll() const {
  MutexLock lock(&mutex_);
  return finished_ || (!busy_ && pending_.empty());
}

void TokenStream::Close(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (finished_ || closing_) return;
  closing_ = true;
  close_status_ = ToGrpc(status);
  if (!busy_) FinishClosing();
}

int64_t TokenStream::BytesOf(const Entry& entry) {
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
          : kChunkBytes +
                std::ssize(entry.logprobs->logprobs.tokens) * kWireLogProbBytes;
  return kWireTokenBytes + kChunkBytes + std::ssize(entry.stream->id) + text +
         data + logprobs;
}

void TokenStream::OnOpened(const absl::Status& status,
                           const google::protobuf::Message* first) {
  if (!status.ok()) {
    End(ToGrpc(status));
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (!finished_) {
      if (first == nullptr) return;
      busy_ = true;
      bytes_ = ToBytes(*first);
      StartWrite(&bytes_);
      return;
    }
  }
  // The call has ended already. Its ClientGone bypassed a full queue, so it
  // came before the command that opened the session.
  core_->Post(ClientGone{session_, shared_from_this()});
}

void TokenStream::PostWrite() {
  worker_->Post(next_write_,
                [self = shared_from_this()] { self->WriteNext(); });
}

bool TokenStream::TakePending() {
  taken_.clear();
  next_ = 0;
  const bool is_complete = IsComplete();
  MutexLock lock(&mutex_);
  if (!finished_) taken_.swap(pending_);
  pending_bytes_ = 0;
  if (!taken_.empty()) return true;
  busy_ = false;
  if (finished_) return false;
  if (is_complete) {
    finished_ = true;
    Finish(grpc::Status::OK);
  } else if (closing_) {
    FinishClosing();
  }
  return false;
}

void TokenStream::WriteNext() {
  const google::protobuf::Message* message = NextMessage();
  while (message == nullptr) {
    if (!TakePending()) return;
    message = NextMessage();
  }
  bytes_ = ToBytes(*message);
  MutexLock lock(&mutex_);
  if (finished_) {
    busy_ = false;
    return;
  }
  next_write_ = Worker::Clock::now() + kMinWriteInterval;
  StartWrite(&bytes_);
}

void TokenStream::FinishClosing() {
  finished_ = true;
  Finish(close_status_);
}

void TokenStream::OnWriteDone(bool ok) {
  // An idle stream keeps no memory.
  bytes_.Clear();
  if (ok) {
    PostWrite();
    return;
  }
  // The stream is broken, and OnDone follows.
  MutexLock lock(&mutex_);
  busy_ = false;
}

void TokenStream::OnDone() {
  const std::shared_ptr<TokenStream> self = std::move(self_);
  core_->Post(ClientGone{session_, self});
}

void TokenStream::End(const grpc::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }
  core_->Post(ClientGone{session_, shared_from_this()});
}

}  // namespace blockmgr
