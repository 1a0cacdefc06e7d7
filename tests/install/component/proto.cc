#include <memory>

#include <grpcpp/grpcpp.h>

#include <blockmgr/scheduler/server/default_address.h>
#include <blockmgr/v1/engine.grpc.pb.h>

int main() {
  const std::unique_ptr<blockmgr::v1::EngineService::Stub> stub =
      blockmgr::v1::EngineService::NewStub(grpc::CreateChannel(
          blockmgr::DefaultAddress(), grpc::InsecureChannelCredentials()));
  return stub != nullptr ? 0 : 1;
}
