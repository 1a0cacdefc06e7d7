// "loss [#######             ] 3/8, 1:13 left": one line of standard error for
// people who wait, on a terminal only, rewritten at each step and cleared at
// the end.
#ifndef BENCH_EVICT_STATUS_LINE_H_
#define BENCH_EVICT_STATUS_LINE_H_

#include <unistd.h>

#include <chrono>
#include <cstddef>
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
    constexpr int64_t kWidth = 20;
    const auto bar = static_cast<size_t>(
        num_steps_ > 0 ? kWidth * num_done_ / num_steps_ : 0);
    absl::FPrintF(stderr, "\r%s [%s%s] %d/%d%s\x1b[K", name_,
                  std::string(bar, '#'), std::string(kWidth - bar, ' '),
                  num_done_, num_steps_, TimeLeft());
    std::fflush(stderr);
  }
  // Returns ", 1:13 left", or nothing as long as nobody can tell.
  std::string TimeLeft() const {
    if (num_done_ == 0) return "";
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start_;
    const auto left = static_cast<int64_t>(
        elapsed.count() * static_cast<double>(num_steps_ - num_done_) /
        static_cast<double>(num_done_));
    return absl::StrFormat(", %d:%02d left", left / 60, left % 60);
  }

  const std::string name_;
  const int64_t num_steps_;
  const bool visible_;
  const std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
  int64_t num_done_ = 0;
};

}  // namespace blockmgr

#endif  // BENCH_EVICT_STATUS_LINE_H_
