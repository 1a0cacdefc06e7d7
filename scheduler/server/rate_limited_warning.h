#ifndef SCHEDULER_SERVER_RATE_LIMITED_WARNING_H_
#define SCHEDULER_SERVER_RATE_LIMITED_WARNING_H_

#include <chrono>
#include <cstdint>
#include <string>

#include <absl/base/thread_annotations.h>

#include "scheduler/server/mutex.h"

namespace blockmgr {

// A warning that peers can cause as often as they like. It is logged at most
// every ten seconds, with the number of causes since the last time.
// Thread-safe.
class RateLimitedWarning {
 public:
  void Warn(const std::string& what);

 private:
  Mutex mutex_;
  std::chrono::steady_clock::time_point next_ ABSL_GUARDED_BY(mutex_);
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_RATE_LIMITED_WARNING_H_
