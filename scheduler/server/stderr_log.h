// The log of a server on stderr. The program never waits for the reader of
// stderr, and does not end when the reader does.
#ifndef SCHEDULER_SERVER_STDERR_LOG_H_
#define SCHEDULER_SERVER_STDERR_LOG_H_

#include <cstdint>
#include <mutex>
#include <string>

#include <sys/types.h>

#include <spdlog/sinks/base_sink.h>

namespace blockmgr {

// Writes lines to a descriptor: a file, a pipe, a terminal or a socket. A line
// for which there is no room is lost. The next line that is written comes after
// a line that says how many were lost. Thread-safe.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Borrows the descriptor.
  explicit StderrSink(int descriptor);
  ~StderrSink() override;
  StderrSink(const StderrSink&) = delete;
  StderrSink& operator=(const StderrSink&) = delete;

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  // Returns false if nothing of the line is written.
  bool Write(const std::string& line);
  // Writes what there is room for now, and returns its number of bytes.
  size_t WriteSome(const char* data, size_t size) const;
  // Makes one system call. If the result is below 0, errno has the reason.
  ssize_t WriteOnce(const char* data, size_t size) const;

  const int given_;
  // A second descriptor of the file, opened so that writing does not block. -1
  // if the file was not opened again.
  const int own_;
  const bool is_socket_;
  std::string rest_;  // the end of a line that is written in part
  int64_t num_lost_ = 0;
};

// Makes a StderrSink the default logger, and ignores SIGPIPE. Call it before
// any other thread starts.
void LogToStderr(const std::string& program);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_STDERR_LOG_H_
