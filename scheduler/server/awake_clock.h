// AwakeClock: time in which this process could do something, for deadlines of
// its peers.
//
// A process that is stopped, or whose machine sleeps, finds late what came in
// the meantime, and its own absence is nobody's fault. So a look at the clock
// counts a second at most, however long ago the one before was: whoever has a
// deadline looks every second. When it is over, kGraceSeconds are left for what
// came during the last absence to be read.
//
// Thread-compatible. Of any clock; one that goes back stands still.
#ifndef SCHEDULER_SERVER_AWAKE_CLOCK_H_
#define SCHEDULER_SERVER_AWAKE_CLOCK_H_

#include <algorithm>
#include <limits>

namespace blockmgr {

class AwakeClock {
 public:
  static constexpr double kMaxGapSeconds = 1;
  static constexpr double kGraceSeconds = 2;

  // Seconds counted since the first look.
  double Look(double now_seconds) {
    awake_seconds_ +=
        std::clamp(now_seconds - last_seconds_, 0.0, kMaxGapSeconds);
    last_seconds_ = now_seconds;
    return awake_seconds_;
  }
  double awake_seconds() const { return awake_seconds_; }

 private:
  double last_seconds_ = std::numeric_limits<double>::infinity();
  double awake_seconds_ = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_AWAKE_CLOCK_H_
