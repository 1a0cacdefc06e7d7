// A progress bar for people who wait: on a terminal, or not at all.
#ifndef PROGRAM_PROGRESS_H_
#define PROGRAM_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace blockmgr {

// "[####      ]  412/1000  3 failed  8.1 req/s  ETA 1:13". `elapsed_s` is the
// time since the start; the rate and the time left are those of the whole run.
std::string FormatProgress(int64_t done, int64_t failed, int64_t total,
                           double elapsed_s, const char* unit = "req");

// Redraws one line of standard error, at most ten times a second.
// Thread-compatible.
class Progress {
 public:
  // Draws only if `enabled` and standard error is a terminal.
  // `unit`: what is counted; a literal. `title`: comes first.
  Progress(int64_t total, bool enabled, const char* unit = "req",
           std::string title = "");
  // Ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `done` counts the failed ones too.
  void Update(int64_t done, int64_t failed);
  // One more is done.
  void Step() { Update(done_ + 1, failed_); }

 private:
  void Draw();

  const int64_t total_;
  const char* const unit_;
  const std::string title_;
  const bool visible_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point next_draw_;
  int64_t done_ = 0;
  int64_t failed_ = 0;
};

}  // namespace blockmgr

#endif  // PROGRAM_PROGRESS_H_
