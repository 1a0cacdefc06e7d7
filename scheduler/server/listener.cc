#include "scheduler/server/listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>
#include <spdlog/spdlog.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Descriptors that the process needs besides connections.
constexpr int64_t kOtherDescriptors = 64;
// The time between two searches for connections that have ended. A search takes
// a system call per connection, and is made only if the number of connections
// is at its limit.
constexpr std::chrono::milliseconds kEndedInterval{10};
// The pause after a connection could not be accepted, for example because the
// system had no descriptor left.
constexpr std::chrono::milliseconds kPause{100};
// The most connections that are accepted from one socket before the next
// socket.
constexpr int kMaxBurst = 64;
// The most trials to find a port that is free in both families of localhost.
constexpr int kMaxPortTrials = 16;

absl::Status CannotListen(const std::string& target, int error) {
  return absl::UnavailableError(
      absl::StrCat("listen: cannot listen on ", target, ": ",
                   std::generic_category().message(error)));
}

void SetOption(int socket, int level, int option) {
  const int on = 1;
  // A failure costs at most speed, or a minute after a restart.
  (void)setsockopt(socket, level, option, &on, sizeof(on));
}

int32_t LimitConnections(int32_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return wanted;
  }
  const int64_t room = std::max<int64_t>(
      static_cast<int64_t>(limit.rlim_cur) - kOtherDescriptors, 1);
  if (wanted <= room) return wanted;
  spdlog::warn(
      "max_connections: {} do not fit into {} descriptors (ulimit -n): {} may "
      "be open at a time",
      wanted, limit.rlim_cur, room);
  return static_cast<int32_t>(room);
}

// Returns a listening socket, or -1 and sets errno.
int ListenOn(int family, const sockaddr* address, socklen_t length) {
  const int listening =
      socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listening < 0) return -1;
  if (family != AF_UNIX) {
    SetOption(listening, SOL_SOCKET, SO_REUSEADDR);
    // Connections inherit the option.
    SetOption(listening, IPPROTO_TCP, TCP_NODELAY);
  }
  if (family == AF_INET6) SetOption(listening, IPPROTO_IPV6, IPV6_V6ONLY);
  if (bind(listening, address, length) == 0 &&
      listen(listening, SOMAXCONN) == 0) {
    return listening;
  }
  const int error = errno;
  close(listening);
  errno = error;
  return -1;
}

uint16_t PortOf(int listening) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  BM_CHECK(getsockname(listening, reinterpret_cast<sockaddr*>(&address),
                       &length) == 0);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

ino_t InodeOf(int descriptor) {
  struct stat found {};
  return fstat(descriptor, &found) == 0 ? found.st_ino : 0;
}

// Returns the user at the other end of a unix socket. Returns nothing for TCP,
// because the system does not know the user.
std::optional<uid_t> PeerUid(int connection) {
  int domain = AF_UNSPEC;
  socklen_t length = sizeof(domain);
  ucred peer{};
  socklen_t peer_length = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 ||
      domain != AF_UNIX ||
      getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &peer_length) !=
          0) {
    return std::nullopt;
  }
  return peer.uid;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(
    const ListenAddress& address, int32_t max_connections) {
  // If Open fails, the destructor closes the sockets that are open.
  std::unique_ptr<Listener> listener(
      new Listener(LimitConnections(max_connections)));
  if (!address.path.empty()) {
    BM_ASSIGN_OR_RETURN(listener->lock_, SocketLock::Take(address));
    BM_RETURN_IF_ERROR(RemoveStaleSocket(address));
  }
  listener->wake_ = eventfd(0, EFD_CLOEXEC);
  if (listener->wake_ < 0) return CannotListen(address.target, errno);
  BM_RETURN_IF_ERROR(address.path.empty() ? listener->ListenTcp(address)
                                          : listener->ListenUnix(address));
  return listener;
}

absl::Status Listener::ListenUnix(const ListenAddress& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  BM_CHECK(address.path.size() < sizeof(name.sun_path));
  std::memcpy(name.sun_path, address.path.c_str(), address.path.size() + 1);
  const mode_t mask = umask(0117);
  const int listening =
      ListenOn(AF_UNIX, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  const int error = errno;
  umask(mask);
  if (listening < 0) return CannotListen(address.target, error);
  sockets_.push_back(listening);
  address_ = address.target;
  path_ = address.path;
  struct stat found {};
  if (lstat(path_.c_str(), &found) == 0) path_inode_ = found.st_ino;
  return absl::OkStatus();
}

absl::Status Listener::ListenTcp(const ListenAddress& address) {
  BM_ASSIGN_OR_RETURN(const HostPort wanted,
                      ParseHostPort("listen", "HOST:PORT", address.target));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(wanted.host.c_str(), nullptr, &hints, &found);
  if (failure != 0) {
    return absl::UnavailableError(absl::StrCat("listen: cannot listen on ",
                                               address.target, ": ",
                                               gai_strerror(failure)));
  }
  std::vector<SocketAddress> addresses = DistinctAddresses(found);
  freeaddrinfo(found);
  auto port = static_cast<uint16_t>(wanted.port);
  int error = EADDRNOTAVAIL;
  for (int trial = 0; trial < kMaxPortTrials; ++trial) {
    for (SocketAddress& at : addresses) {
      SetPort(port, &at);
      const int listening =
          ListenOn(at.address.ss_family,
                   reinterpret_cast<const sockaddr*>(&at.address), at.length);
      if (listening >= 0) {
        sockets_.push_back(listening);
        port = PortOf(listening);
      } else {
        error = errno;
        // The port must be free in every family, or another process would get a
        // part of the connections. A family that the system lacks is left out.
        if (error == EADDRINUSE) break;
      }
    }
    const bool taken = error == EADDRINUSE;
    if (!taken && !sockets_.empty()) {
      address_ = absl::StrCat(
          address.target.substr(0, address.target.rfind(':') + 1), port);
      return absl::OkStatus();
    }
    for (const int listening : sockets_) close(listening);
    sockets_.clear();
    if (wanted.port != 0 || !taken) break;
    port = 0;
    error = EADDRNOTAVAIL;
  }
  return CannotListen(address.target, error);
}

Listener::~Listener() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

void Listener::Start(Take take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  // The path is removed first, so that a new client finds no daemon instead of
  // one that ends. If another process has put a socket at the path, that socket
  // stays.
  struct stat found {};
  if (!path_.empty() && lstat(path_.c_str(), &found) == 0 &&
      found.st_ino == path_inode_) {
    unlink(path_.c_str());
  }
  path_.clear();
  if (thread_.joinable()) {
    const uint64_t one = 1;
    BM_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  for (const int listening : sockets_) close(listening);
  sockets_.clear();
  lock_ = SocketLock();
}

void Listener::Run() {
  std::vector<pollfd> waits = {{wake_, POLLIN, 0}};
  for (const int listening : sockets_) waits.push_back({listening, POLLIN, 0});
  while (true) {
    const auto pause = std::chrono::ceil<std::chrono::milliseconds>(
        paused_until_ - Clock::now());
    const bool paused = pause.count() > 0;
    const int ready =
        poll(waits.data(), paused ? 1 : static_cast<nfds_t>(waits.size()),
             paused ? static_cast<int>(pause.count()) : -1);
    // The pause may be over, or a signal may have come.
    if (ready <= 0) continue;
    if (waits[0].revents != 0) return;
    for (size_t i = 1; i < waits.size(); ++i) {
      for (int n = 0; n < kMaxBurst && waits[i].revents != 0; ++n) {
        if (!Accept(waits[i].fd)) break;
      }
    }
  }
}

bool Listener::Accept(int listening) {
  const int connection =
      accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection < 0) {
    const int error = errno;
    if (error == EAGAIN) return false;
    // The client may have closed the connection again, or a signal has come.
    if (error == ECONNABORTED || error == EINTR) return true;
    failures_.Warn("cannot accept a connection: " +
                   std::generic_category().message(error));
    paused_until_ = Clock::now() + kPause;
    return false;
  }
  if (!HasRoom()) {
    close(connection);
    refusals_.Warn(absl::StrCat("refused a connection: ", max_connections_,
                                " are open (max_connections)"));
    return true;
  }
  connections_.push_back({connection, InodeOf(connection)});
  take_({listening, connection, PeerUid(connection)});
  return true;
}

bool Listener::HasRoom() {
  const auto now = Clock::now();
  if (std::ssize(connections_) >= max_connections_ && now >= next_look_) {
    next_look_ = now + kEndedInterval;
    std::erase_if(connections_, [](const Connection& connection) {
      return InodeOf(connection.descriptor) != connection.inode;
    });
  }
  return std::ssize(connections_) < max_connections_;
}

}  // namespace blockmgr
