// PrefixCacheWatches: streams of what the prefix cache has, for routers.
//
// A stream reads the cache from where it left off. It reads when there is
// something new and its client has taken what came before. So a slow client
// costs the memory of one reading, a few MB at most, and nobody waits for it.
// Streams that have something to read stand in a line. The core thread is asked
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

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

class PrefixCacheWatches {
 public:
  // Further streams are refused with RESOURCE_EXHAUSTED.
  static constexpr int32_t kMaxStreams = 64;

  explicit PrefixCacheWatches(CoreThread* core) : core_(core) {}

  // Returns a stream that owns itself. `request` has the bytes of a
  // WatchPrefixCacheRequest.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Open(
      const grpc::ByteBuffer& request);

 private:
  class Stream;

  // Jobs of the worker. Enqueue puts a stream into the line. EndReading notes
  // that the stream that was reading has done so.
  void Enqueue(std::shared_ptr<Stream> stream);
  void EndReading();
  void ReadNext();

  CoreThread* const core_;
  std::atomic<int32_t> num_streams_{0};

  // The worker's.
  std::deque<std::shared_ptr<Stream>> line_;
  bool is_reading_ = false;  // or waits for next_read_ to do so
  Worker::Clock::time_point next_read_;

  Worker worker_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_
