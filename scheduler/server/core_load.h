// CoreLoad: the time of the core, and statistics of its load over that time.
//
// The load is the number of requests that run and of blocks that are used. It
// is sampled at the end of every pass. Between two samples, the number of
// running requests counts as constant.
//
// Threads: core thread. O(1).
#ifndef SCHEDULER_SERVER_CORE_LOAD_H_
#define SCHEDULER_SERVER_CORE_LOAD_H_

#include <algorithm>
#include <cstdint>

#include "scheduler/server/commands.h"

namespace blockmgr {

class CoreLoad {
 public:
  // Sets the time of the pass that begins. If the clock has gone back, the time
  // of the last pass counts.
  void BeginPass(double now_seconds) {
    if (start_seconds_ < 0) start_seconds_ = now_seconds_ = now_seconds;
    now_seconds = std::max(now_seconds, now_seconds_);
    running_request_seconds_ += num_running_ * (now_seconds - now_seconds_);
    now_seconds_ = now_seconds;
  }
  // Samples the load.
  void EndPass(int32_t num_running, int32_t num_used_blocks) {
    num_running_ = num_running;
    max_running_ = std::max(max_running_, num_running);
    max_used_blocks_ = std::max(max_used_blocks_, num_used_blocks);
  }
  // Forgets the peaks so far. The new ones begin with these values.
  void ResetPeaks(int32_t num_running, int32_t num_used_blocks) {
    max_running_ = num_running;
    max_used_blocks_ = num_used_blocks;
    peaks_since_seconds_ = clock_seconds();
  }
  // Fills in the fields of the load. The peaks include the present load, which
  // the caller has put into stats->scheduler.
  void Report(CoreStats* stats) const {
    stats->running_request_seconds = running_request_seconds_;
    stats->clock_seconds = clock_seconds();
    stats->max_running = std::max(max_running_, stats->scheduler.num_running);
    stats->max_used_blocks =
        std::max(max_used_blocks_, stats->scheduler.blocks.used_blocks);
    stats->peaks_since_seconds = peaks_since_seconds_;
  }

  // The time of this pass, by the clock of the caller.
  double now_seconds() const { return now_seconds_; }
  int64_t now_ms() const { return static_cast<int64_t>(now_seconds_ * 1e3); }
  // The time since the first pass.
  double clock_seconds() const { return now_seconds_ - start_seconds_; }

 private:
  // The time of the first pass. Below 0 before the first pass.
  double start_seconds_ = -1;
  double now_seconds_ = 0;
  double running_request_seconds_ = 0;
  int32_t num_running_ = 0;  // running requests after the last pass
  int32_t max_running_ = 0;
  int32_t max_used_blocks_ = 0;
  double peaks_since_seconds_ = 0;  // clock_seconds() of the last ResetPeaks
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CORE_LOAD_H_
