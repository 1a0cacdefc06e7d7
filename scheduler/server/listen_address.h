// ListenAddress: an address at which the daemon may listen, unix:PATH, or
// HOST:PORT on the loopback.
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
  std::string target;  // the address that clients connect to
  // The path of the unix socket. Empty for TCP.
  std::string path;
};

struct HostPort {
  // The host. An IPv6 address has no brackets here.
  std::string host;
  int32_t port = 0;
};

// Parses HOST:PORT, as in 127.0.0.1:9464, [::1]:9464 or localhost:0.
// InvalidArgument names `field` and says that `expected` was expected.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view field,
                                       absl::string_view expected,
                                       const std::string& text);

// Returns whether `host` names this machine only: localhost, 127.x.x.x or ::1.
bool IsLoopback(const std::string& host);

// InvalidArgument if `text` is not an address, if the path is too long for a
// socket, or for TCP beyond the loopback, where anyone could read prompts.
absl::StatusOr<ListenAddress> ParseListenAddress(const std::string& text);

struct SocketAddress {
  sockaddr_storage address = {};
  socklen_t length = 0;
};

// Returns the addresses that getaddrinfo has found, each once, whatever its
// port. (A name that stands twice in /etc/hosts has its addresses twice.)
std::vector<SocketAddress> DistinctAddresses(const addrinfo* found);
// REQUIRES: an IPv4 or IPv6 address.
void SetPort(uint16_t port, SocketAddress* address);

// The right to listen at a unix socket's path. One process at a time has it:
// the process that holds a lock of the file PATH.lock. The holder removes the
// file when it gives the lock back. The kernel releases the lock when a process
// ends, in whatever way. Thread-compatible.
class SocketLock {
 public:
  // AlreadyExists if another process has the lock. FailedPrecondition if the
  // file cannot be made. REQUIRES: the address has a path.
  static absl::StatusOr<SocketLock> Take(const ListenAddress& address);

  SocketLock() = default;  // holds no lock
  // Gives the lock back.
  ~SocketLock();
  SocketLock(SocketLock&& other) noexcept;
  SocketLock& operator=(SocketLock&& other) noexcept;

 private:
  SocketLock(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  std::string path_;  // the path of the lock's file
  int descriptor_ = -1;
};

// Removes a socket that nobody listens on any more, to make way for a new one.
// Does nothing for TCP. AlreadyExists if a daemon answers there.
// FailedPrecondition if something else than a socket is in the way, or the
// socket cannot be removed. REQUIRES: the caller holds the SocketLock. Without
// it, two daemons that start may both think that the path is theirs.
absl::Status RemoveStaleSocket(const ListenAddress& address);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_LISTEN_ADDRESS_H_
