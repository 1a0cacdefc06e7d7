// The log on stderr of a program that serves: it never waits for whoever reads
// stderr, and does not end when nobody does any more.
#ifndef SCHEDULER_SERVER_STDERR_LOG_H_
#define SCHEDULER_SERVER_STDERR_LOG_H_

#include <cstdint>
#include <mutex>
#include <string>

#include <spdlog/sinks/base_sink.h>

namespace blockmgr {

// Writes lines to a descriptor that may be a pipe or a terminal. Lines for
// which there is no room are lost; the next one that is written comes after one
// that says how many were. Thread-safe.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit StderrSink(int descriptor);  // which stays the caller's
  ~StderrSink() override;
  StderrSink(const StderrSink&) = delete;
  StderrSink& operator=(const StderrSink&) = delete;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  // False: nothing of it is written.
  bool Write(const std::string& line);
  // The number of bytes for which there is room now.
  size_t WriteSome(const char* data, size_t size) const;

  const int given_;
  const int own_;     // the same file, that does not block; -1: there is none
  std::string rest_;  // of a line that has begun
  int64_t num_lost_ = 0;
};

// Makes it the default logger, and ignores SIGPIPE. Before any other thread
// starts.
void LogToStderr(const std::string& program);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_STDERR_LOG_H_
