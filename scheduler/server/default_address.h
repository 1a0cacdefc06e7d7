// Where a daemon listens, and where its clients and engines look for it, when
// nobody says otherwise: blockmgr.sock in the first of these folders,
//
//   $XDG_RUNTIME_DIR, where it is this user's and nobody else may write to it;
//   /run/blockmgr, where it is this user's: the installed service;
//   blockmgr-<user id>, of mode 0700, in the folder for temporary files.
//
// A client of a user who has no socket there looks into /run/blockmgr.
//
// Whoever connects tells prompts: nobody but this user, root and the user that
// root has given /run/blockmgr to can have put a socket where it is found.
#ifndef SCHEDULER_SERVER_DEFAULT_ADDRESS_H_
#define SCHEDULER_SERVER_DEFAULT_ADDRESS_H_

#include <string>

#include <absl/status/statusor.h>

namespace blockmgr {

// Folders; tests have their own.
struct SocketPlaces {
  std::string runtime;  // $XDG_RUNTIME_DIR; empty: not set
  std::string service = "/run/blockmgr";
  std::string temporary;
};
// Thread-compatible: reads the environment.
SocketPlaces UsualSocketPlaces();

// The address of this user's daemon, a gRPC target. Looks only: for texts.
std::string DefaultAddress(const SocketPlaces& places = UsualSocketPlaces());

// The same for a daemon: its folder is there, and this user's alone.
// FailedPrecondition names what is in the way.
absl::StatusOr<std::string> DefaultListenAddress(
    const SocketPlaces& places = UsualSocketPlaces());

// For a client, whether or not a daemon listens there now. FailedPrecondition:
// the folder or the socket may be somebody else's.
absl::StatusOr<std::string> DefaultDaemonAddress(
    const SocketPlaces& places = UsualSocketPlaces());

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_DEFAULT_ADDRESS_H_
