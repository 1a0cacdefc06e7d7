// EvictionService: evictions that clients order, by a scorer of the engine or
// by the client's own scores.
//
// Threads: thread-safe. The CoreThread must outlive every call.
#ifndef SCHEDULER_SERVER_EVICTION_SERVICE_H_
#define SCHEDULER_SERVER_EVICTION_SERVICE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/eviction.grpc.pb.h"
#include "scheduler/server/core_thread.h"
#include "scheduler/server/worker.h"

namespace blockmgr {

// The bytes of scores in the whole daemon. Scores count from the header of
// their call until their request ends, because a preemption makes them
// necessary again. If the eviction fails, they count until the reply.
class ScoreBudget {
 public:
  explicit ScoreBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // Returns false, with nothing changed, if there is no room.
  [[nodiscard]] bool Reserve(int64_t bytes);
  void Release(int64_t bytes) { used_bytes_.fetch_sub(bytes); }
  int64_t max_bytes() const { return max_bytes_; }

 private:
  const int64_t max_bytes_;
  std::atomic<int64_t> used_bytes_{0};
};

class EvictionService final
    : public v1::EvictionService::WithRawCallbackMethod_Evict<
          v1::EvictionService::WithRawCallbackMethod_EvictByScores<
              v1::EvictionService::Service>> {
 public:
  // A call of EvictByScores that has not sent all its scores `upload_timeout`
  // after its header ends with DEADLINE_EXCEEDED.
  EvictionService(CoreThread* core, int64_t max_score_bytes,
                  std::chrono::milliseconds upload_timeout)
      : core_(core),
        budget_(std::make_shared<ScoreBudget>(max_score_bytes)),
        upload_timeout_(upload_timeout) {}

  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* EvictByScores(
      grpc::CallbackServerContext* context,
      grpc::ByteBuffer* response) override;

 private:
  CoreThread* const core_;
  const std::shared_ptr<ScoreBudget> budget_;
  const std::chrono::milliseconds upload_timeout_;
  Worker timer_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_EVICTION_SERVICE_H_
