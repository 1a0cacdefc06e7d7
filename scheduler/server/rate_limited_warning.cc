#include "scheduler/server/rate_limited_warning.h"

#include <utility>

#include <spdlog/spdlog.h>

namespace blockmgr {
namespace {

constexpr std::chrono::seconds kWarningInterval{10};

}  // namespace

void RateLimitedWarning::Warn(const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  int64_t count = 0;
  {
    MutexLock lock(&mutex_);
    ++count_;
    if (now < next_) return;
    next_ = now + kWarningInterval;
    count = std::exchange(count_, 0);
  }
  spdlog::warn("{} ({} such since the last warning)", what, count);
}

}  // namespace blockmgr
