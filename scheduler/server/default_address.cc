#include "scheduler/server/default_address.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <sys/stat.h>
#include <unistd.h>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

std::string SocketIn(const std::string& folder) {
  return absl::StrCat(folder, "/blockmgr.sock");
}

std::string TargetIn(const std::string& folder) {
  return absl::StrCat("unix:", SocketIn(folder));
}

// Does not follow symbolic links, because the owner of a link could make it
// name another folder later.
bool Look(const std::string& path, struct stat* found) {
  return lstat(path.c_str(), found) == 0;
}

std::string Describe(const struct stat& found) {
  return absl::StrFormat("%s of user %u, mode %04o",
                         S_ISDIR(found.st_mode)    ? "a folder"
                         : S_ISLNK(found.st_mode)  ? "a symbolic link"
                         : S_ISSOCK(found.st_mode) ? "a socket"
                                                   : "a file",
                         found.st_uid, found.st_mode & 07777);
}

// Returns whether only this user and root can have put files into the folder.
bool IsOurs(const struct stat& folder) {
  return S_ISDIR(folder.st_mode) && folder.st_uid == geteuid() &&
         (folder.st_mode & kOthersMayWrite) == 0;
}

bool IsOurs(const std::string& folder) {
  struct stat found {};
  return Look(folder, &found) && IsOurs(found);
}

std::string TemporaryFolder(const SocketPlaces& places) {
  return absl::StrCat(places.temporary, "/blockmgr-", geteuid());
}

std::string OwnFolder(const SocketPlaces& places) {
  // After su, the variable may be that of another user.
  if (absl::StartsWith(places.runtime, "/") && IsOurs(places.runtime)) {
    return places.runtime;
  }
  if (IsOurs(places.service)) return places.service;
  return TemporaryFolder(places);
}

// Makes the folder, if it is the temporary one, before anybody else does.
absl::StatusOr<std::string> SecureOwnFolder(const SocketPlaces& places) {
  std::string folder = OwnFolder(places);
  if (folder != TemporaryFolder(places)) return folder;
  struct stat found {};
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the folder ", folder, ": ",
                     std::generic_category().message(errno)));
  }
  if (!Look(folder, &found) || !IsOurs(found)) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": expected a folder of user ", geteuid(),
        " that nobody else may write to, got ", Describe(found),
        "; set XDG_RUNTIME_DIR to one, or say where the socket is to be"));
  }
  return folder;
}

// Returns OK if `owner` or root has bound the socket, or if there is no socket.
absl::Status CheckSocket(const std::string& path, uid_t owner) {
  struct stat found {};
  // Without a socket no daemon listens.
  if (!Look(path, &found)) return absl::OkStatus();
  if (S_ISSOCK(found.st_mode) && (found.st_uid == owner || found.st_uid == 0)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": expected a socket of user ", owner,
                   " or of root, got ", Describe(found)));
}

}  // namespace

SocketPlaces UsualSocketPlaces() {
  SocketPlaces places;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody here changes the environment
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr) places.runtime = runtime;
  std::error_code error;
  places.temporary = std::filesystem::temp_directory_path(error).string();
  if (error) places.temporary = "/tmp";
  return places;
}

std::string DefaultAddress(const SocketPlaces& places) {
  return TargetIn(OwnFolder(places));
}

absl::StatusOr<std::string> DefaultListenAddress(const SocketPlaces& places) {
  BM_ASSIGN_OR_RETURN(const std::string folder, SecureOwnFolder(places));
  return TargetIn(folder);
}

absl::StatusOr<std::string> DefaultDaemonAddress(const SocketPlaces& places) {
  const std::string own = OwnFolder(places);
  struct stat found {};
  struct stat service {};
  // Another user may have made this user's temporary folder. The client must
  // reach the service nevertheless.
  if ((IsOurs(own) && Look(SocketIn(own), &found)) ||
      !Look(SocketIn(places.service), &found) ||
      !Look(places.service, &service)) {
    BM_ASSIGN_OR_RETURN(const std::string folder, SecureOwnFolder(places));
    BM_RETURN_IF_ERROR(CheckSocket(SocketIn(folder), geteuid()));
    return TargetIn(folder);
  }
  // Only root can have made this folder. The folder's owner is the user of the
  // service.
  if (!S_ISDIR(service.st_mode) || (service.st_mode & kOthersMayWrite) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        places.service, ": expected a folder that its user alone may write to,",
        " got ", Describe(service)));
  }
  BM_RETURN_IF_ERROR(CheckSocket(SocketIn(places.service), service.st_uid));
  return TargetIn(places.service);
}

absl::Status CheckDaemonAddress(const std::string& address) {
  constexpr absl::string_view kUnix = "unix:";
  if (absl::StartsWith(address, kUnix)) {
    if (address.size() > kUnix.size()) return absl::OkStatus();
  } else {
    const size_t colon = address.rfind(':');
    int32_t port = 0;
    if (colon != std::string::npos && colon > 0 &&
        absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 1 &&
        port <= 65535) {
      return absl::OkStatus();
    }
  }
  return Invalid(
      "expected unix:PATH, or HOST:PORT with a port of 1 to 65535, got '",
      address, "'");
}

}  // namespace blockmgr
