#include "scheduler/server/library_logs.h"

#include <string>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include "scheduler/server/peer_text.h"
#include "scheduler/server/rate_limited_warning.h"

namespace blockmgr {
namespace {

void Log(const char* library, spdlog::level::level_enum level,
         const std::string& message, RateLimitedWarning* errors) {
  // Parts of the text come from peers.
  const std::string line = absl::StrCat(library, ": ", ForLog(message));
  if (level == spdlog::level::critical) {
    spdlog::critical(line);
    return;
  }
  spdlog::debug(line);
  if (level == spdlog::level::err) errors->Warn(line);
}

std::string At(const std::string& message, const char* file, int line) {
  return absl::StrCat(message, " (", file, ":", line, ")");
}

void LogGrpc(gpr_log_func_args* args) {
  static RateLimitedWarning* const errors = new RateLimitedWarning;
  // GPR_ASSERT aborts after this message.
  const bool is_last = absl::StartsWith(args->message, "assertion failed");
  const bool is_error = args->severity == GPR_LOG_SEVERITY_ERROR;
  Log("grpc",
      is_last    ? spdlog::level::critical
      : is_error ? spdlog::level::err
                 : spdlog::level::debug,
      At(args->message, args->file, args->line), errors);
}

void LogProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                 const std::string& message) {
  static RateLimitedWarning* const errors = new RateLimitedWarning;
  Log("protobuf",
      level == google::protobuf::LOGLEVEL_FATAL   ? spdlog::level::critical
      : level == google::protobuf::LOGLEVEL_ERROR ? spdlog::level::err
                                                  : spdlog::level::debug,
      At(message, file, line), errors);
}

}  // namespace

void RouteLibraryLogs() {
  gpr_set_log_function(&LogGrpc);
  google::protobuf::SetLogHandler(&LogProtobuf);
}

}  // namespace blockmgr
