// StepTimes: what steps of an engine on a device take, and what of it the
// device does.
#ifndef ENGINE_REFERENCE_STEP_TIMES_H_
#define ENGINE_REFERENCE_STEP_TIMES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace blockmgr {

// One step, from its plan to its result.
struct StepTime {
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
  // From the first kernel of the pass to the last, with the gaps between them.
  double device_s = 0.0;
  // The rows of a decode step, dead rows included; 0 for any other step.
  int32_t num_rows = 0;
};

// StepTimes adds up steps by their number of rows. There are few such numbers
// if steps are padded (DeviceGraphs::PadRows). Costs some nanoseconds per step.
// Thread-compatible.
class StepTimes {
 public:
  struct Sums {
    int64_t num_steps = 0;
    double step_s = 0.0;
    double device_s = 0.0;
    // From the end of a step to the begin of the next, where both are of this
    // kind: the daemon's time, and the way there and back.
    int64_t num_gaps = 0;
    double gap_s = 0.0;
  };

  void Add(const StepTime& step);
  // Says that a step was not measured, so that the next has no gap before it.
  void Skip() { last_rows_ = kNone; }

  // By the number of rows.
  const std::map<int32_t, Sums>& sums() const { return sums_; }
  // Returns a line for each kind of step, for people:
  //   decode steps of 256 rows: 1000 steps of 25.000 ms, 24.000 ms on the
  //   device, 4.00 % beside it; 0.400 ms between two
  std::vector<std::string> Lines() const;

 private:
  static constexpr int32_t kNone = -1;

  std::map<int32_t, Sums> sums_;
  int32_t last_rows_ = kNone;
  std::chrono::steady_clock::time_point last_end_;
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_STEP_TIMES_H_
