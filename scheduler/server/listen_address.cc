#include "scheduler/server/listen_address.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <arpa/inet.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Another try is needed only if a daemon ends between two calls.
constexpr int32_t kMaxLockTries = 100;

std::string ErrorText(int error) {
  return std::generic_category().message(error);
}

absl::StatusOr<ListenAddress> ParseUnix(const std::string& text) {
  absl::string_view path = text;
  absl::ConsumePrefix(&path, "unix:");
  if (absl::StartsWith(path, "///")) path.remove_prefix(2);  // unix:///path
  constexpr size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path.size() > kMaxPath) {
    return Invalid("listen: expected a socket path of 1..", kMaxPath,
                   " bytes, got ", path.size(), " in \"", text, "\"");
  }
  return ListenAddress{absl::StrCat("unix:", path), std::string(path)};
}

// Returns whether `path` names the file that is open.
bool IsNamed(int descriptor, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr ipv4{};
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) {
    return (ntohl(ipv4.s_addr) >> 24) == 127;
  }
  in6_addr ipv6{};
  return inet_pton(AF_INET6, host.c_str(), &ipv6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&ipv6);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view field,
                                       absl::string_view expected,
                                       const std::string& text) {
  const size_t colon = text.rfind(':');
  int32_t port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return Invalid(field, ": expected ", expected,
                   " with a port of 0 to 65535, got \"", text, "\"");
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return HostPort{std::move(host), port};
}

absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text) {
  if (absl::StartsWith(text, "unix:")) return ParseUnix(text);
  BM_ASSIGN_OR_RETURN(const HostPort address,
                      ParseHostPort("listen", "unix:PATH or HOST:PORT", text));
  if (!IsLoopback(address.host)) {
    return Invalid(
        "listen: expected a loopback host (127.0.0.1, ::1, localhost), because "
        "the connection is neither encrypted nor authenticated, got \"",
        address.host, "\"");
  }
  return ListenAddress{text, ""};
}

void SetPort(uint16_t port, SocketAddress* address) {
  if (address->address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address->address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address->address)->sin_port = htons(port);
  }
}

std::vector<SocketAddress> DistinctAddresses(const addrinfo* found) {
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    SocketAddress next{.length = at->ai_addrlen};
    BM_CHECK(next.length <= sizeof(next.address));
    std::memcpy(&next.address, at->ai_addr, next.length);
    SetPort(0, &next);
    const bool is_new =
        std::none_of(addresses.begin(), addresses.end(),
                     [&next](const SocketAddress& other) {
                       return std::memcmp(&other.address, &next.address,
                                          sizeof(next.address)) == 0;
                     });
    if (is_new) addresses.push_back(next);
  }
  return addresses;
}

absl::StatusOr<SocketLock> SocketLock::Take(const ListenAddress& address) {
  const std::string path = absl::StrCat(address.path, ".lock");
  const auto error = [&path](const char* what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "listen: cannot ", what, " ", path, ": ", ErrorText(errno)));
  };
  for (int32_t i = 0; i < kMaxLockTries; ++i) {
    const int descriptor =
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("listen: expected a folder in which this user can make ",
                       path, ", got: ", ErrorText(errno)));
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const absl::Status status =
          errno == EWOULDBLOCK
              ? absl::AlreadyExistsError(absl::StrCat(
                    "listen: another daemon is running on ", address.target))
              : error("lock");
      close(descriptor);
      return status;
    }
    if (IsNamed(descriptor, path)) return SocketLock(path, descriptor);
    // The last holder of the lock has just removed this file.
    close(descriptor);
  }
  return absl::UnavailableError(absl::StrCat("listen: ", path, " was removed ",
                                             kMaxLockTries,
                                             " times while it was opened"));
}

SocketLock::~SocketLock() {
  if (descriptor_ < 0) return;
  // The file is removed while it is locked. A process that gets the lock later
  // checks whether the path still names the file.
  if (IsNamed(descriptor_, path_)) unlink(path_.c_str());
  close(descriptor_);
}

SocketLock::SocketLock(SocketLock&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

SocketLock& SocketLock::operator=(SocketLock&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

absl::Status RemoveStaleSocket(const ListenAddress& address) {
  if (address.path.empty()) return absl::OkStatus();
  struct stat found {};
  if (lstat(address.path.c_str(), &found) != 0) return absl::OkStatus();
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen: ", address.path, " exists and is not a socket"));
  }
  sockaddr_un peer{};
  peer.sun_family = AF_UNIX;
  std::memcpy(peer.sun_path, address.path.c_str(), address.path.size() + 1);
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen: cannot make a socket: ", ErrorText(errno)));
  }
  const bool connected =
      connect(probe, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) ==
      0;
  const int error = errno;
  close(probe);
  if (connected) {
    return absl::AlreadyExistsError(
        absl::StrCat("listen: another daemon is running on ", address.target));
  }
  if (error != ECONNREFUSED) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen: cannot tell whether a daemon is running on ",
                     address.target, ": ", ErrorText(error)));
  }
  if (unlink(address.path.c_str()) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen: cannot remove the stale socket ", address.path,
                     ": ", ErrorText(errno)));
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
