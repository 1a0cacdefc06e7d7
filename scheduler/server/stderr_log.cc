#include "scheduler/server/stderr_log.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>
#include <spdlog/spdlog.h>

namespace blockmgr {
namespace {

// Opens the descriptor's pipe or terminal once more, without blocking. The flag
// must not be set on the given descriptor, which other processes share. Returns
// -1 if this cannot help: a file always has room, a socket takes the flag with
// every call, and without /proc WriteOnce must do.
int OpenAgain(int descriptor) {
  struct stat found {};
  if (fstat(descriptor, &found) != 0 ||
      !(S_ISFIFO(found.st_mode) || S_ISCHR(found.st_mode))) {
    return -1;
  }
  return open(absl::StrCat("/proc/self/fd/", descriptor).c_str(),
              O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

bool IsSocket(int descriptor) {
  struct stat found {};
  return fstat(descriptor, &found) == 0 && S_ISSOCK(found.st_mode);
}

}  // namespace

StderrSink::StderrSink(int descriptor)
    : given_(descriptor),
      own_(OpenAgain(descriptor)),
      is_socket_(IsSocket(descriptor)) {}

StderrSink::~StderrSink() {
  if (own_ >= 0) close(own_);
}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  if (num_lost_ > 0) {
    const std::string lost = absl::StrCat(
        num_lost_, " lines of the log are lost: nobody has read it in time\n");
    if (!Write(lost)) {
      ++num_lost_;
      return;
    }
    num_lost_ = 0;
  }
  if (!Write(std::string(formatted.data(), formatted.size()))) ++num_lost_;
}

bool StderrSink::Write(const std::string& line) {
  rest_.erase(0, WriteSome(rest_.data(), rest_.size()));
  if (!rest_.empty()) return false;
  const size_t written = WriteSome(line.data(), line.size());
  if (written > 0) rest_ = line.substr(written);
  return written > 0;
}

size_t StderrSink::WriteSome(const char* data, size_t size) const {
  size_t written = 0;
  while (written < size) {
    const ssize_t more = WriteOnce(data + written, size - written);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) break;
    written += static_cast<size_t>(more);
  }
  return written;
}

ssize_t StderrSink::WriteOnce(const char* data, size_t size) const {
  if (own_ >= 0) return write(own_, data, size);
  if (is_socket_) return send(given_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  pollfd room{given_, POLLOUT, 0};
  if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) {
    errno = EAGAIN;
    return -1;
  }
  // If poll reports room in a pipe, the pipe has room for PIPE_BUF bytes.
  return write(given_, data, std::min<size_t>(size, PIPE_BUF));
}

void LogToStderr(const std::string& program) {
  std::signal(SIGPIPE, SIG_IGN);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      program, std::make_shared<StderrSink>(STDERR_FILENO)));
}

}  // namespace blockmgr
