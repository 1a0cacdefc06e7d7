// Functions that hand connections from the listener to gRPC, and that tell a
// call whether its caller is the owner of the daemon.
//
// gRPC's name of a peer is the name that the client has bound its socket to. A
// client can choose that name, so it proves nothing. Therefore connections of
// the daemon's owner enter the gRPC server with other credentials than all
// others. The credentials put a property into the authentication context of
// every call. No peer can write to this context.
#ifndef SCHEDULER_SERVER_CONNECTIONS_H_
#define SCHEDULER_SERVER_CONNECTIONS_H_

#include <grpcpp/grpcpp.h>

#include "scheduler/server/listener.h"

namespace blockmgr {

// Adds both kinds of credentials to the server, before it is built. The result
// hands connections to that server. It closes them if the server was not built
// or is gone.
Listener::Take AddConnections(grpc::ServerBuilder* builder);

// Returns whether the caller is the daemon's own user, or root, on the unix
// socket. These users could also end the daemon. Returns false for every caller
// over TCP. Thread-safe.
bool IsOwner(const grpc::CallbackServerContext& context);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CONNECTIONS_H_
