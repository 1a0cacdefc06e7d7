#include "scheduler/server/prefix_cache_watches.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>

#include "scheduler/server/grpc_status.h"
#include "scheduler/server/mutex.h"
#include "scheduler/server/prefix_cache_updates.h"
#include "scheduler/server/raw_messages.h"

namespace blockmgr {
namespace {

// The limits of one reading. The core thread copies so much in some 25 us.
constexpr int32_t kMaxBlocks = 512;
constexpr int32_t kMaxTokens = 8192;
// From the end of one reading to the next, of all streams: so the core thread
// spends about 5 percent of its time on them, at most.
constexpr std::chrono::microseconds kReadInterval{500};
// From one look for changes to the next, of a stream that knows all: collects
// what a few steps change.
constexpr std::chrono::milliseconds kLookInterval{20};
// From one load to the next, of a stream that tells it.
constexpr std::chrono::milliseconds kLoadInterval{100};
// A message is closed at this size: clients accept 4 MiB by default.
constexpr int64_t kMaxBytes = int64_t{1} << 20;

class UpdatesTeller final : public PrefixCacheTeller {
 public:
  void Take(PrefixCacheReading reading) override {
    updates_ = PrefixCacheUpdates(std::move(reading));
  }
  const google::protobuf::Message* Next(int64_t max_bytes) override {
    if (updates_.Next(max_bytes, &message_)) return &message_;
    // updates_ and message_ may be large, and updates_ shares the content of
    // regions.
    updates_ = {};
    message_ = {};
    return nullptr;
  }

 private:
  PrefixCacheUpdates updates_;
  v1::PrefixCacheUpdate message_;
};

}  // namespace

// Owned by itself until gRPC says OnDone, and by whoever holds a pointer.
//
// One thing happens at a time: a job of the worker, a reading or a write.
class PrefixCacheWatches::Stream final
    : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
      public std::enable_shared_from_this<Stream> {
 public:
  // `is_counted`: among the open streams.
  Stream(PrefixCacheWatches* watches, const PrefixCacheCursor& cursor,
         std::unique_ptr<PrefixCacheTeller> teller, bool is_counted)
      : watches_(watches),
        is_counted_(is_counted),
        teller_(std::move(teller)),
        cursor_(cursor) {}
  ~Stream() override {
    if (is_counted_) --watches_->num_streams_;
  }

  // Ends at once, if the status is an error.
  void Start(const grpc::Status& status) {
    self_ = shared_from_this();
    if (status.ok()) {
      Post(Worker::Clock::now(), &Stream::Look);
    } else {
      End(status);
    }
  }

  // Takes the load that the streams share.
  void TakeLoad() {
    if (finished()) return;  // what the teller refers to may be gone, too
    // The command queue may be full: there are those who are in a hurry.
    const google::protobuf::Message* const message =
        watches_->load_.ok()
            ? teller_->TakeLoad(*watches_->load_, watches_->load_age())
            : nullptr;
    if (message != nullptr) {
      Write(*message);
    } else {
      Look();
    }
  }

  // Its turn. False: it has ended.
  bool Read() {
    if (finished()) return false;
    version_ = watches_->core_->prefix_cache_version();
    watches_->core_->Post(ReadPrefixCache{
        cursor_, kMaxBlocks, kMaxTokens,
        [self = shared_from_this()](absl::StatusOr<PrefixCacheReading> read) {
          self->reading_ = std::move(read);
          self->Post(Worker::Clock::now(), &Stream::TakeReading);
        }});
    return true;
  }

 private:
  void Post(Worker::Clock::time_point due, void (Stream::*job)()) {
    watches_->worker_.Post(
        due, [self = shared_from_this(), job] { ((*self).*job)(); });
  }

  bool finished() {
    MutexLock lock(&mutex_);
    return finished_;
  }

  void Look() {
    if (finished()) return;
    if (teller_->tells_load() && Worker::Clock::now() >= next_load_) {
      AskLoad();
      return;
    }
    const uint64_t version = watches_->core_->prefix_cache_version();
    if (is_current_ && version == version_) {
      Post(Worker::Clock::now() + kLookInterval, &Stream::Look);
    } else {
      watches_->Enqueue(shared_from_this());
    }
  }

  void AskLoad() {
    next_load_ = Worker::Clock::now() + kLoadInterval;
    watches_->AskLoad(shared_from_this());
  }

  void TakeReading() {
    watches_->EndReading();
    if (absl::IsResourceExhausted(reading_.status())) {
      // The command queue was full: there are those who are in a hurry.
      is_current_ = false;
      Post(Worker::Clock::now() + kLookInterval, &Stream::Look);
      return;
    }
    if (!reading_.ok()) {
      End(ToGrpc(reading_.status()));
      return;
    }
    cursor_ = reading_->cursor;
    is_current_ = reading_->delta.current;
    teller_->Take(*std::move(reading_));
    WriteNext();
  }

  void WriteNext() {
    const google::protobuf::Message* const message = teller_->Next(kMaxBytes);
    if (message != nullptr) {
      Write(*message);
      return;
    }
    const auto now = Worker::Clock::now();
    Post(is_current_ ? now + kLookInterval : now, &Stream::Look);
  }

  void Write(const google::protobuf::Message& message) {
    bytes_ = ToBytes(message);
    MutexLock lock(&mutex_);
    if (!finished_) StartWrite(&bytes_);
  }

  void OnWriteDone(bool ok) override {
    bytes_.Clear();  // an idle stream keeps no memory
    // If not, it is broken: OnCancel follows.
    if (ok) Post(Worker::Clock::now(), &Stream::WriteNext);
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override { const auto self = std::move(self_); }

  void End(const grpc::Status& status) {
    MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  // Constant.
  PrefixCacheWatches* const watches_;
  const bool is_counted_;
  const std::unique_ptr<PrefixCacheTeller> teller_;

  std::shared_ptr<Stream> self_;  // from Start to OnDone

  // Whoever acts.
  PrefixCacheCursor cursor_;
  uint64_t version_ = 0;  // from before the last reading
  bool is_current_ = false;
  absl::StatusOr<PrefixCacheReading> reading_;
  Worker::Clock::time_point next_load_;
  grpc::ByteBuffer bytes_;  // of the message, while a write is out

  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerWriteReactor<grpc::ByteBuffer>* PrefixCacheWatches::Open(
    const grpc::ByteBuffer& request) {
  v1::WatchPrefixCacheRequest parsed;
  const absl::Status status = ParseMessage(request, {}, &parsed);
  return Open(ToGrpc(status), FromProto(parsed.position()),
              std::make_unique<UpdatesTeller>());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* PrefixCacheWatches::Open(
    grpc::Status status, const PrefixCacheCursor& cursor,
    std::unique_ptr<PrefixCacheTeller> teller) {
  const bool has_room = num_streams_.fetch_add(1) < kMaxStreams;
  if (!has_room) {
    --num_streams_;
    status = grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("expected fewer than ", kMaxStreams,
                     " open streams of the prefix cache, got that many"));
  }
  const auto stream =
      std::make_shared<Stream>(this, cursor, std::move(teller), has_room);
  stream->Start(status);
  return stream.get();
}

void PrefixCacheWatches::AskLoad(std::shared_ptr<Stream> stream) {
  const auto now = Worker::Clock::now();
  if (load_line_.empty() && now < next_load_) {
    stream->TakeLoad();
    return;
  }
  load_line_.push_back(std::move(stream));
  if (load_line_.size() > 1) return;  // it has been asked for
  next_load_ = now + kLoadInterval;
  core_->Post(GetStats{false, [this](absl::StatusOr<CoreStats> stats) {
                         worker_.Post(
                             Worker::Clock::now(),
                             [this, load = std::move(stats)]() mutable {
                               ShareLoad(std::move(load));
                             });
                       }});
}

void PrefixCacheWatches::ShareLoad(absl::StatusOr<CoreStats> load) {
  load_ = std::move(load);
  load_taken_ = Worker::Clock::now();
  for (const auto& stream : std::exchange(load_line_, {})) stream->TakeLoad();
}

double PrefixCacheWatches::load_age() const {
  return std::chrono::duration<double>(Worker::Clock::now() - load_taken_)
      .count();
}

void PrefixCacheWatches::Enqueue(std::shared_ptr<Stream> stream) {
  line_.push_back(std::move(stream));
  if (!is_reading_) ReadNext();
}

void PrefixCacheWatches::EndReading() {
  next_read_ = Worker::Clock::now() + kReadInterval;
  ReadNext();
}

void PrefixCacheWatches::ReadNext() {
  is_reading_ = !line_.empty();
  if (!is_reading_) return;
  worker_.Post(std::max(next_read_, Worker::Clock::now()), [this] {
    const std::shared_ptr<Stream> next = std::move(line_.front());
    line_.pop_front();
    if (!next->Read()) ReadNext();
  });
}

}  // namespace blockmgr
