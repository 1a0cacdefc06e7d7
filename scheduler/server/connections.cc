#include "scheduler/server/connections.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <unistd.h>

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/server_credentials.h>

namespace blockmgr {
namespace {

using Door = grpc::experimental::ExternalConnectionAcceptor;

// The value in the auth context for LocalServerCredentials. Other connections
// have "insecure".
constexpr char kOwnerSecurity[] = "local";

std::shared_ptr<Door> AddDoor(
    grpc::ServerBuilder* builder,
    std::shared_ptr<grpc::ServerCredentials> credentials) {
  return builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      std::move(credentials));
}

bool IsOwnerUid(std::optional<uid_t> uid) {
  return uid.has_value() && (*uid == geteuid() || *uid == 0);
}

}  // namespace

Listener::Take AddConnections(grpc::ServerBuilder* builder) {
  const std::shared_ptr<Door> owners =
      AddDoor(builder, grpc::experimental::LocalServerCredentials(UDS));
  const std::shared_ptr<Door> others =
      AddDoor(builder, grpc::InsecureServerCredentials());
  return [owners, others](const Listener::Accepted& accepted) {
    Door::NewConnectionParameters parameters;
    parameters.listener_fd = accepted.listening;
    parameters.fd = accepted.connection;
    (IsOwnerUid(accepted.uid) ? owners : others)
        ->HandleNewConnection(&parameters);
  };
}

bool IsOwner(const grpc::CallbackServerContext& context) {
  const std::vector<grpc::string_ref> security =
      context.auth_context()->FindPropertyValues(
          GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return std::ranges::find(security, kOwnerSecurity) != security.end();
}

}  // namespace blockmgr
