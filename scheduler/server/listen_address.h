// Where the daemon may listen: unix:PATH, or HOST:PORT on the loopback.
#ifndef SCHEDULER_SERVER_LISTEN_ADDRESS_H_
#define SCHEDULER_SERVER_LISTEN_ADDRESS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <netdb.h>
#include <sys/socket.h>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

struct ListenAddress {
  std::string target;  // what clients connect to
  std::string path;    // of the unix socket; empty: TCP
};

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  int32_t port = 0;
};

// HOST:PORT, as in 127.0.0.1:9464, [::1]:9464 or localhost:0. InvalidArgument
// names `field` and says that `expected` was.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view field,
                                       absl::string_view expected,
                                       const std::string& text);

// InvalidArgument: not an address, a path too long for a socket, or TCP beyond
// the loopback, where anyone could read prompts.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

struct SocketAddress {
  sockaddr_storage address = {};
  socklen_t length = 0;
};

// What getaddrinfo has found, each address once, ports aside: a name that is
// given twice in /etc/hosts has its addresses twice.
std::vector<SocketAddress> DistinctAddresses(const addrinfo* found);
// REQUIRES: of IPv4 or IPv6.
void SetPort(uint16_t port, SocketAddress* address);

// The right to listen at a unix socket's path. One process at a time has it:
// the process that holds a lock of the file PATH.lock. The holder removes the
// file when it gives the lock back. The kernel releases the lock when a process
// ends, in whatever way. Thread-compatible.
class SocketLock {
 public:
  // AlreadyExists: another has it. FailedPrecondition: there can be no such
  // file. REQUIRES: a path.
  static absl::StatusOr<SocketLock> Take(const ListenAddress& address);

  SocketLock() = default;  // of nothing
  ~SocketLock();           // gives it back
  SocketLock(SocketLock&& other) noexcept;
  SocketLock& operator=(SocketLock&& other) noexcept;

 private:
  SocketLock(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;  // of the lock's file
  int descriptor_ = -1;
};

// Makes way for a new socket: removes one that nobody listens on any more.
// REQUIRES: its SocketLock is held, or two that start may both think so.
// AlreadyExists: a daemon answers there; FailedPrecondition: something that is
// not a socket is in the way, or it cannot be removed. Nothing to do for TCP.
absl::Status RemoveStaleSocket(const ListenAddress& address);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_LISTEN_ADDRESS_H_
