// The address at which a daemon listens by default, and at which its clients
// and engines look for it: blockmgr.sock in the first of these folders,
//
//   $XDG_RUNTIME_DIR, if this user owns it and nobody else may write to it;
//   /run/blockmgr, if this user owns it (the installed service);
//   blockmgr-<user id>, of mode 0700, in the folder for temporary files.
//
// If a client's user has no socket there, the client looks into /run/blockmgr.
//
// A client tells its prompts to whoever owns the socket. The checks here make
// sure that the socket's owner is this user, root, or the user to whom root has
// given /run/blockmgr.
#ifndef SCHEDULER_SERVER_DEFAULT_ADDRESS_H_
#define SCHEDULER_SERVER_DEFAULT_ADDRESS_H_

#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace blockmgr {

// The folders where a default socket may be. Tests use folders of their own.
struct SocketPlaces {
  std::string runtime;  // $XDG_RUNTIME_DIR, or empty if it is not set
  std::string service = "/run/blockmgr";
  std::string temporary;
};
// Returns the folders of this process. Thread-compatible: reads the
// environment.
SocketPlaces UsualSocketPlaces();

// Returns the address of this user's daemon, a gRPC target, for help texts.
// Checks nothing and creates nothing.
std::string DefaultAddress(const SocketPlaces& places = UsualSocketPlaces());

// Returns the address that a daemon should listen at, after creating its folder
// if necessary and checking that only this user can write to it.
// FailedPrecondition names what is in the way.
absl::StatusOr<std::string> DefaultListenAddress(
    const SocketPlaces& places = UsualSocketPlaces());

// Returns the address that a client should connect to, whether or not a daemon
// listens there now. FailedPrecondition if the folder or the socket may belong
// to somebody else.
absl::StatusOr<std::string> DefaultDaemonAddress(
    const SocketPlaces& places = UsualSocketPlaces());

// Checks an address that a user gave to a client: unix:PATH, or HOST:PORT with
// a port of 1 to 65535. InvalidArgument says what was expected and what came.
// Without this check, gRPC looks for a wrong address until its time is over.
absl::Status CheckDaemonAddress(const std::string& address);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_DEFAULT_ADDRESS_H_
