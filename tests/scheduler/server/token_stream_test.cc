#include "scheduler/server/token_stream.h"

#include <chrono>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "proto/vllm/grpc/engine.grpc.pb.h"
#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

namespace engine = ::vllm::grpc::engine;

constexpr int32_t kMaxModelLen = 1 << 28;
// Far more than what may be pending.
constexpr uint32_t kManyTokens = 800'000;

engine::GenerateRequest MakeRequest(uint32_t max_tokens, bool stream) {
  engine::GenerateRequest request;
  request.set_request_id(std::string(100, 'x'));
  request.mutable_tokenized()->add_input_ids(1);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.set_stream(stream);
  return request;
}

// What is held back until the end counts as what a client does not read.
TEST_F(ServerTest, CutsOffCallsOfWhichTooMuchWaits) {
  ServerOptions options;
  options.scheduler.max_model_len = kMaxModelLen;
  options.max_pending_token_bytes = 64 << 10;
  Start(options);
  const auto fake = StartEngine();
  fake->StartAnswers();
  const auto stub = engine::VllmEngine::NewStub(Connect(address()));
  for (const bool stream : {false, true}) {
    grpc::ClientContext context;
    const auto reader =
        stub->Generate(&context, MakeRequest(kManyTokens, stream));
    // With a stream, until the transport takes no more.
    EXPECT_TRUE(WaitUntil([this] { return Stats().num_finished() > 0; }));
    EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
    engine::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_THAT(reader->Finish(),
                GrpcError(grpc::RESOURCE_EXHAUSTED, "bytes of tokens wait"));
  }
}

// Its entries would take more than what may be pending.
TEST_F(ServerTest, ALongAnswerAtTheEndNeedsLittleMemory) {
  constexpr int kNumTokens = 6000;
  ServerOptions options;
  options.max_pending_token_bytes = 512 << 10;
  Start(options);
  const auto fake = StartEngine();
  fake->StartAnswers();
  const auto stub = engine::VllmEngine::NewStub(Connect(address()));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, MakeRequest(kNumTokens, false));
  engine::GenerateResponse response;
  EXPECT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.complete().output_ids_size(), kNumTokens);
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServerTest, AStoppedDaemonHasNotAnswered) {
  const auto fake = StartEngine();
  const auto stub = engine::VllmEngine::NewStub(Connect(address()));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, MakeRequest(5, false));
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 1; }));
  server_->Shutdown(std::chrono::seconds(20));
  engine::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_THAT(reader->Finish(),
              GrpcError(grpc::UNAVAILABLE, "the daemon is shutting down"));
}

}  // namespace
}  // namespace blockmgr
