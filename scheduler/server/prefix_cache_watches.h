// PrefixCacheWatches: streams that tell routers which prefixes are cached.
//
// A stream reads the cache from where it left off. It reads when there is
// something new and its client has taken what came before. So a slow client
// costs the memory of one reading, a few MB at most, and nobody waits for it.
// A PrefixCacheTeller may hold more (kv_event_batches.h).
//
// Streams that have something to read wait in a line. The core thread is asked
// for one reading at a time, with pauses between readings, whatever the number
// of streams.
//
// Threads: thread-safe. The CoreThread must outlive every stream.
#ifndef SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_
#define SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <absl/status/statusor.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "scheduler/server/commands.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

// PrefixCacheTeller makes the messages in which one stream tells of readings.
// One thread at a time uses it.
class PrefixCacheTeller {
 public:
  virtual ~PrefixCacheTeller() = default;
  // Takes the next reading. REQUIRES: Next has returned null for the reading
  // before.
  virtual void Take(PrefixCacheReading reading) = 0;
  // Returns the next message of the reading, of about `max_bytes`. The message
  // lives until the next call. Returns null if no message is left.
  virtual const google::protobuf::Message* Next(int64_t max_bytes) = 0;
  // Returns whether the stream also tells of the load, again and again.
  virtual bool tells_load() const { return false; }
  // Takes a load that is `age` seconds old. Returns a message about it, or null
  // if the stream cannot tell it yet.
  virtual const google::protobuf::Message* TakeLoad(const CoreStats& /*stats*/,
                                                    double /*age*/) {
    return nullptr;
  }
};

class PrefixCacheWatches {
 public:
  // Further streams are refused with RESOURCE_EXHAUSTED.
  static constexpr int32_t kMaxStreams = 64;

  explicit PrefixCacheWatches(CoreThread* core) : core_(core) {}

  // Returns a stream that owns itself. `request` has the bytes of a
  // WatchPrefixCacheRequest.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Open(
      const grpc::ByteBuffer& request);
  // Returns a stream that reads from `cursor` on. It ends at once, if the
  // status is an error.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Open(
      grpc::Status status, const PrefixCacheCursor& cursor,
      std::unique_ptr<PrefixCacheTeller> teller);

 private:
  class Stream;

  // Jobs of the worker. Enqueue puts a stream into the line. EndReading notes
  // that the stream that was reading has done so.
  void Enqueue(std::shared_ptr<Stream> stream);
  void EndReading();
  void ReadNext();
  // Lets the stream take the load: the last one, or a new one if that is old.
  void AskLoad(std::shared_ptr<Stream> stream);
  void ShareLoad(absl::StatusOr<CoreStats> load);
  // Returns the age of load_ in seconds.
  double load_age() const;

  CoreThread* const core_;
  std::atomic<int32_t> num_streams_{0};

  // Only the worker uses these.
  std::deque<std::shared_ptr<Stream>> line_;
  // A reading is under way, or is due at next_read_.
  bool is_reading_ = false;
  Worker::Clock::time_point next_read_;
  absl::StatusOr<CoreStats> load_;
  Worker::Clock::time_point load_taken_;
  Worker::Clock::time_point next_load_;  // the earliest time to ask for load_
  std::vector<std::shared_ptr<Stream>> load_line_;  // streams that wait for it

  Worker worker_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_
