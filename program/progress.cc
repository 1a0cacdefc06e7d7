#include "program/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

namespace blockmgr {
namespace {

constexpr int64_t kBarWidth = 30;
constexpr std::chrono::milliseconds kRedraw{100};

std::string Clock(double seconds) {
  const int64_t whole = std::llround(seconds);
  return whole < 3600 ? absl::StrFormat("%d:%02d", whole / 60, whole % 60)
                      : absl::StrFormat("%d:%02d:%02d", whole / 3600,
                                        whole / 60 % 60, whole % 60);
}

}  // namespace

std::string FormatProgress(int64_t done, int64_t failed, int64_t total,
                           double elapsed_s, const char* unit) {
  const int64_t filled = total > 0 && done < total
                             ? kBarWidth * std::max<int64_t>(done, 0) / total
                             : kBarWidth;
  std::string line =
      absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                   std::string(static_cast<size_t>(kBarWidth - filled), ' '),
                   "] ", done, "/", total);
  if (failed > 0) absl::StrAppend(&line, "  ", failed, " failed");
  if (done > 0 && elapsed_s > 0) {
    const double rate = static_cast<double>(done) / elapsed_s;
    absl::StrAppendFormat(
        &line, "  %.1f %s/s  ETA %s", rate, unit,
        Clock(std::max(0.0, static_cast<double>(total - done) / rate)));
  }
  return line;
}

Progress::Progress(int64_t total, bool enabled, const char* unit,
                   std::string title)
    : total_(total),
      unit_(unit),
      title_(std::move(title)),
      visible_(enabled && isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      next_draw_(start_) {
  if (visible_) Draw();
}

Progress::~Progress() {
  if (!visible_) return;
  Draw();
  std::fputc('\n', stderr);
}

void Progress::Update(int64_t done, int64_t failed) {
  if (!visible_) return;
  done_ = done;
  failed_ = failed;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedraw;
  Draw();
}

void Progress::Draw() {
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start_;
  // The escape clears what a longer line left behind.
  absl::FPrintF(stderr, "\r%s%s\x1b[K", title_,
                FormatProgress(done_, failed_, total_, elapsed.count(), unit_));
  std::fflush(stderr);
}

}  // namespace blockmgr
