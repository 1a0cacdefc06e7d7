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

// The limits of one reading, which the core thread copies in some 25 us.
constexpr int32_t kMaxBlocks = 512;
constexpr int32_t kMaxTokens = 8192;
// The pause after a reading, for all streams together. The core thread spends
// at most about 5 percent of its time on readings.
constexpr std::chrono::microseconds kReadInterval{500};
// The time between two looks of a stream that knows everything. One look
// collects the changes of a few steps.
constexpr std::chrono::milliseconds kLookInterval{20};
// The time between two loads that a stream tells.
constexpr std::chrono::milliseconds kLoadInterval{100};
// A message takes no more entries at this size. Clients accept 4 MiB by
// default.
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

// A Stream keeps itself alive until gRPC calls OnDone. All other users hold a
// shared pointer.
//
// One operation runs at a time: a job of the worker, a reading or a write.
class PrefixCacheWatches::Stream final
    : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
      public std::enable_shared_from_this<Stream> {
 public:
  // `is_counted` says whether the stream counts as an open stream.
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
    // After the end, the teller may refer to an object that is gone.
    if (finished()) return;
    // Without a load, the command queue may have been full: then more urgent
    // commands wait.
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

  // Reads the cache, because it is the stream's turn. Returns false if the
  // stream has ended.
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
      // The command queue was full: more urgent commands wait. The stream tries
      // later.
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
    // An idle stream keeps no memory.
    bytes_.Clear();
    // If `ok` is false, the stream is broken and OnCancel follows.
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

  // Keeps the stream alive from Start to OnDone.
  std::shared_ptr<Stream> self_;

  // Used by the one operation that runs.
  PrefixCacheCursor cursor_;
  // The version that the cache had before the last reading.
  uint64_t version_ = 0;
  bool is_current_ = false;
  absl::StatusOr<PrefixCacheReading> reading_;
  Worker::Clock::time_point next_load_;
  // The bytes of the message while a write is out.
  grpc::ByteBuffer bytes_;

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
  // An earlier stream has asked for the load already.
  if (load_line_.size() > 1) return;
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
