#ifndef TESTS_SCHEDULER_SERVER_CAPTURED_LOG_H_
#define TESTS_SCHEDULER_SERVER_CAPTURED_LOG_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <sstream>
#include <string>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

namespace blockmgr {

// Takes the place of the default logger as long as it lives.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::string text() const { return text_.str(); }
  std::ptrdiff_t num_lines() const {
    const std::string all = text();
    return std::count(all.begin(), all.end(), '\n');
  }

 private:
  const std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

}  // namespace blockmgr

#endif  // TESTS_SCHEDULER_SERVER_CAPTURED_LOG_H_
