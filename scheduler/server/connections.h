// Connections on their way from the listener into gRPC, and what their calls
// know of who is at the other end.
//
// What gRPC calls a peer is the name that a client has bound its socket to, and
// says nothing of him. So connections come in by two doors, and a call knows by
// which one: credentials of the door are in the call's authentication context,
// which no peer can write to.
#ifndef SCHEDULER_SERVER_CONNECTIONS_H_
#define SCHEDULER_SERVER_CONNECTIONS_H_

#include <grpcpp/grpcpp.h>

#include "scheduler/server/listener.h"

namespace blockmgr {

// Makes the doors, before the server is built. What it returns hands
// connections to that server, and closes them when there is none.
Listener::Take AddConnections(grpc::ServerBuilder* builder);

// Whether the caller is the daemon's own user, or root, on its unix socket: one
// who could end the daemon. Nobody over TCP. Thread-safe.
bool IsOwner(const grpc::CallbackServerContext& context);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CONNECTIONS_H_
