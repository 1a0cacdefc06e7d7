// AwakeClock: the time in which this process could do something. Deadlines of
// peers are measured with it.
//
// A process may be stopped, and a machine may sleep. Messages that arrive
// meanwhile are read late, and no peer is to blame. So Look adds at most
// kMaxGapSeconds, however long ago the previous Look was. A caller that waits
// for a deadline calls Look at least once a second. After the deadline it waits
// kGraceSeconds more, to read messages that arrived during a pause.
//
// Thread-compatible. Works with any clock. If the clock goes back, no time is
// added.
#ifndef SCHEDULER_SERVER_AWAKE_CLOCK_H_
#define SCHEDULER_SERVER_AWAKE_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <limits>

namespace blockmgr {

// Seconds of the steady clock.
inline double SteadyNowSeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class AwakeClock {
 public:
  static constexpr double kMaxGapSeconds = 1;
  static constexpr double kGraceSeconds = 2;

  // Looks at a clock that shows `now_seconds`. Returns the awake time since the
  // first look.
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
