// PrefixCacheWatches: streams of what the prefix cache has, for routers.
//
// Every stream reads the cache where it left off, when there is something new
// and its client has taken what came before: so a slow client costs one
// message, and nobody waits for it. The core thread is asked for one reading at
// a time, with pauses between them, whatever the number of streams.
//
// Threads: thread-safe. The CoreThread must outlive every stream.
#ifndef SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_
#define SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_

#include <atomic>
#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/admin.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

class PrefixCacheWatches {
 public:
  // More are refused with RESOURCE_EXHAUSTED.
  static constexpr int32_t kMaxStreams = 64;

  explicit PrefixCacheWatches(CoreThread* core) : core_(core) {}

  // A stream that owns itself.
  grpc::ServerWriteReactor<v1::PrefixCacheUpdate>* Open(
      const v1::WatchPrefixCacheRequest& request);

 private:
  class Stream;

  CoreThread* const core_;
  std::atomic<int32_t> num_streams_{0};
  Worker::Clock::time_point next_read_;  // the worker's; none before
  Worker worker_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_PREFIX_CACHE_WATCHES_H_
