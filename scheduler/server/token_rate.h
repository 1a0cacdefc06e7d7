// TokenRate: tokens per second, from a counter that is looked at now and then.
#ifndef SCHEDULER_SERVER_TOKEN_RATE_H_
#define SCHEDULER_SERVER_TOKEN_RATE_H_

#include <cstdint>

#include <absl/base/thread_annotations.h>

#include "scheduler/server/mutex.h"

namespace blockmgr {

// Thread-safe.
class TokenRate {
 public:
  // Takes the counter at a time, and returns the rate over the last second or
  // more between two looks. The counter may begin again at 0.
  double Look(uint64_t num_tokens, double now_seconds) {
    MutexLock lock(&mutex_);
    const double seconds = now_seconds - since_seconds_;
    if (seconds < kMinSeconds) return rate_;
    rate_ = num_tokens < since_tokens_
                ? 0
                : static_cast<double>(num_tokens - since_tokens_) / seconds;
    since_seconds_ = now_seconds;
    since_tokens_ = num_tokens;
    return rate_;
  }

 private:
  static constexpr double kMinSeconds = 1.0;

  Mutex mutex_;
  double rate_ ABSL_GUARDED_BY(mutex_) = 0;
  double since_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t since_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_TOKEN_RATE_H_
