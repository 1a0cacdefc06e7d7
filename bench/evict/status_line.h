// "loss: 3/8": one line of standard error for people who wait, on a terminal
// only, rewritten at each step and cleared at the end.
#ifndef BENCH_EVICT_STATUS_LINE_H_
#define BENCH_EVICT_STATUS_LINE_H_

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <absl/strings/str_format.h>

namespace blockmgr {

// Thread-compatible.
class StatusLine {
 public:
  StatusLine(std::string name, int64_t num_steps)
      : name_(std::move(name)),
        num_steps_(num_steps),
        visible_(isatty(STDERR_FILENO) == 1) {
    Draw();
  }
  ~StatusLine() {
    if (visible_) absl::FPrintF(stderr, "\r\x1b[K");
  }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void Step() {
    ++num_done_;
    Draw();
  }

 private:
  void Draw() const {
    if (!visible_) return;
    absl::FPrintF(stderr, "\r%s: %d/%d\x1b[K", name_, num_done_, num_steps_);
    std::fflush(stderr);
  }

  const std::string name_;
  const int64_t num_steps_;
  const bool visible_;
  int64_t num_done_ = 0;
};

}  // namespace blockmgr

#endif  // BENCH_EVICT_STATUS_LINE_H_
