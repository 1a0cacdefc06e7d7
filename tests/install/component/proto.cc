#include <memory>

#include <grpcpp/grpcpp.h>

#include "proto/blockmgr/v1/engine.grpc.pb.h"
#include "scheduler/server/default_address.h"

int main() {
  const std::unique_ptr<blockmgr::v1::EngineService::Stub> stub =
      blockmgr::v1::EngineService::NewStub(
          grpc::CreateChannel(blockmgr::DefaultAddress(),
                              grpc::InsecureChannelCredentials()));
  return stub != nullptr ? 0 : 1;
}
