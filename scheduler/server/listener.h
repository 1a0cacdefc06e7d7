// Listener: accepts connections and hands their sockets on.
//
// The listener of gRPC 1.51 never accepts again once the process has been out
// of descriptors (CVE-2023-4785), and it knows no limit. This listener closes
// connections above its limit at once, so that a flood of connections takes no
// descriptors from anybody else. If the system has no descriptors, it waits.
//
// Threads: one of its own, from Start to Stop; the rest by one thread.
#ifndef SCHEDULER_SERVER_LISTENER_H_
#define SCHEDULER_SERVER_LISTENER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "scheduler/server/listen_address.h"
#include "scheduler/server/rate_limited_warning.h"

namespace blockmgr {

class Listener {
 public:
  struct Accepted {
    int listening = -1;
    int connection = -1;  // a descriptor that does not block
    // The effective user of the process that has connected, as the kernel says.
    // Unset for TCP.
    std::optional<uid_t> uid;
  };
  // Takes over the connection. The listener's thread calls it.
  using Take = std::function<void(const Accepted& accepted)>;

  // Listens at once; connections wait for Start. A unix socket is for its user
  // and group from the first moment. The limit is lower than max_connections if
  // the process may not have so many descriptors. Errors are those of
  // SocketLock and RemoveStaleSocket, and Unavailable if the address cannot be
  // listened at. REQUIRES: max_connections >= 1.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(
      const ListenAddress& address, int32_t max_connections);
  // Calls Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The address that clients connect to. For port 0, it has the port that was
  // found.
  const std::string& address() const { return address_; }
  int32_t max_connections() const { return max_connections_; }

  void Start(Take take);
  // Ends listening. Connections that were taken live on.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  // A connection that was handed on. Its receiver closes it without telling
  // the listener. Then the descriptor names no file or another one, so its
  // inode has changed.
  struct Connection {
    int descriptor = -1;
    ino_t inode = 0;
  };

  explicit Listener(int32_t max_connections)
      : max_connections_(max_connections) {}
  absl::Status ListenUnix(const ListenAddress& address);
  absl::Status ListenTcp(const ListenAddress& address);

  void Run();
  // Accepts one connection, and hands it on or closes it. Returns false if no
  // connection waits, or if none can be accepted now.
  bool Accept(int listening);
  // Returns whether one more connection may be open.
  bool HasRoom();

  // Constant after Open.
  const int32_t max_connections_;
  std::string address_;
  // The path of the unix socket. Empty for TCP.
  std::string path_;
  ino_t path_inode_ = 0;
  SocketLock lock_;  // the lock of path_, held until the socket is removed
  std::vector<int> sockets_;
  int wake_ = -1;

  // Used by the listener's thread only.
  Take take_;
  std::vector<Connection> connections_;
  Clock::time_point next_look_;     // the next look for closed connections
  Clock::time_point paused_until_;  // no connection is accepted before this
  RateLimitedWarning failures_;
  RateLimitedWarning refusals_;

  std::thread thread_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_LISTENER_H_
