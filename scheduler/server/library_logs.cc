#include "scheduler/server/library_logs.h"

#include <string>

#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include "scheduler/server/rate_limited_warning.h"
#include "scheduler/server/wire.h"

namespace blockmgr {
namespace {

// Parts of it come from peers.
std::string Line(const char* library, const std::string& message) {
  return absl::StrCat(library, ": ",
                      absl::Utf8SafeCHexEscape(Shorten(message)));
}

void LogGrpc(gpr_log_func_args* args) {
  static RateLimitedWarning* const errors = new RateLimitedWarning;
  const std::string line = Line("grpc", args->message);
  // Its last words: GPR_ASSERT aborts after them.
  if (absl::StartsWith(args->message, "assertion failed")) {
    spdlog::critical("{} ({}:{})", line, args->file, args->line);
    return;
  }
  spdlog::debug(line);
  if (args->severity == GPR_LOG_SEVERITY_ERROR) errors->Warn(line);
}

void LogProtobuf(google::protobuf::LogLevel level, const char* file, int number,
                 const std::string& message) {
  static RateLimitedWarning* const errors = new RateLimitedWarning;
  const std::string line = Line("protobuf", message);
  if (level == google::protobuf::LOGLEVEL_FATAL) {
    spdlog::critical("{} ({}:{})", line, file, number);
    return;
  }
  spdlog::debug(line);
  if (level == google::protobuf::LOGLEVEL_ERROR) errors->Warn(line);
}

}  // namespace

void RouteLibraryLogs() {
  gpr_set_log_function(&LogGrpc);
  google::protobuf::SetLogHandler(&LogProtobuf);
}

}  // namespace blockmgr
