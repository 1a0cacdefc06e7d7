#include "engine/reference/step_times.h"

#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace blockmgr {
namespace {

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void StepTimes::Add(const StepTime& step) {
  Sums& sums = sums_[step.num_rows];
  ++sums.num_steps;
  sums.step_s += Seconds(step.end - step.begin);
  sums.device_s += step.device_s;
  if (last_rows_ == step.num_rows) {
    ++sums.num_gaps;
    sums.gap_s += Seconds(step.begin - last_end_);
  }
  last_rows_ = step.num_rows;
  last_end_ = step.end;
}

std::vector<std::string> StepTimes::Lines() const {
  std::vector<std::string> lines;
  for (const auto& [num_rows, sums] : sums_) {
    const auto num_steps = static_cast<double>(sums.num_steps);
    std::string line = absl::StrFormat(
        "%s: %d steps of %.3f ms, %.3f ms on the device, %.2f %% beside it",
        num_rows == 0 ? std::string("other steps")
                      : absl::StrCat("decode steps of ", num_rows, " rows"),
        sums.num_steps, sums.step_s / num_steps * 1e3,
        sums.device_s / num_steps * 1e3,
        sums.step_s > 0 ? (1 - sums.device_s / sums.step_s) * 100 : 0.0);
    if (sums.num_gaps > 0) {
      absl::StrAppendFormat(
          &line, "; %.3f ms between two",
          sums.gap_s / static_cast<double>(sums.num_gaps) * 1e3);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace blockmgr
