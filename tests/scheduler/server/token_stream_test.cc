#include "scheduler/server/token_stream.h"

#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "proto/vllm/grpc/engine.grpc.pb.h"
#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

namespace engine = ::vllm::grpc::engine;

engine::GenerateRequest EndlessRequest(bool stream) {
  engine::GenerateRequest request;
  request.set_request_id(std::string(100, 'x'));
  request.mutable_tokenized()->add_input_ids(1);
  request.mutable_sampling_params()->set_max_tokens(1 << 30);
  request.set_stream(stream);
  return request;
}

// What is held back until the end counts as what a client does not read.
TEST_F(ServerTest, CutsOffCallsOfWhichTooMuchWaits) {
  ServerOptions options;
  options.max_pending_token_bytes = 64 << 10;
  Start(options);
  const auto fake = StartEngine(SmallLayout());
  std::thread answers([&fake] { fake->AnswerAll(); });
  const auto stub = engine::VllmEngine::NewStub(Connect(address()));
  for (const bool stream : {false, true}) {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, EndlessRequest(stream));
    // With a stream, until the transport takes no more.
    EXPECT_TRUE(WaitUntil([this] { return Stats().num_finished() > 0; }));
    EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
    engine::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_THAT(reader->Finish(),
                GrpcError(grpc::RESOURCE_EXHAUSTED, "bytes of tokens wait"));
  }
  fake->Break();
  answers.join();
}

}  // namespace
}  // namespace blockmgr
