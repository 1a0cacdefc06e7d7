#include "scheduler/server/vllm_generate.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/vllm/grpc/engine.grpc.pb.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
namespace engine = ::vllm::grpc::engine;

// An engine whose log-probabilities tell where they belong: of the token behind
// position p, -p, and one more token, 1000 + p, beside it. It samples 42.
class LogProbsEngine {
 public:
  explicit LogProbsEngine(const std::string& address)
      : stub_(v1::EngineService::NewStub(Connect(address))) {
    v1::AttachRequest attach = AttachRequestFor(SmallLayout());
    for (int field = 1; field <= kNumSamplingFields; ++field) {
      attach.add_sampling_fields(static_cast<v1::SamplingField>(field));
    }
    v1::AttachResponse attached;
    grpc::ClientContext context;
    EXPECT_TRUE(stub_->Attach(&context, attach, &attached).ok());
    stream_ = stub_->RunSteps(&context_);
    message_.set_epoch(attached.epoch());
    message_.set_session(attached.session());
    stream_->Write(message_);
    thread_ = std::thread([this] { Run(); });
  }
  ~LogProbsEngine() {
    context_.TryCancel();
    thread_.join();
  }

 private:
  static void AddRow(uint32_t token, int32_t position,
                     v1::TokenLogProbs* rows) {
    rows->set_num_top(1);
    rows->add_token_ids(token);
    rows->add_token_ids(1000 + static_cast<uint32_t>(position));
    rows->add_logprobs(static_cast<float>(-position));
    rows->add_logprobs(0.0F);
  }
  void Run() {
    v1::StepPlan plan;
    std::vector<uint32_t> prompt;
    while (stream_->Read(&plan)) {
      v1::StepResult& result = *message_.mutable_result();
      result.Clear();
      result.set_step(plan.step());
      for (const v1::SequenceStart& start : plan.starts()) {
        prompt.assign(plan.start_tokens().begin() + start.token_begin(),
                      plan.start_tokens().end());
      }
      for (int i = 0; i < plan.slots_size(); ++i) {
        const bool samples = plan.samples()[static_cast<size_t>(i)] != 0;
        result.add_sampled(samples ? 42 : -1);
        v1::RunLogProbs& rows = *result.add_logprobs();
        rows.set_run(i);
        const int32_t end = plan.positions(i) + plan.num_tokens(i);
        for (int32_t p = plan.positions(i); p < end; ++p) {
          const auto next = static_cast<size_t>(p) + 1;
          if (next >= prompt.size()) break;
          AddRow(prompt[next], p, rows.mutable_prompt());
        }
        if (samples) AddRow(42, end - 1, rows.mutable_outputs());
      }
      stream_->Write(message_);
    }
    stream_->Finish();
  }

  std::unique_ptr<v1::EngineService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::EngineMessage, v1::StepPlan>>
      stream_;
  v1::EngineMessage message_;
  std::thread thread_;
};

class VllmGenerateTest : public ServerTest {
 protected:
  void SetUp() override { Start(ServerOptions(), &Scheduler::Create); }

  // The answers to a prompt of 7, 8, 9, of two tokens.
  std::vector<engine::GenerateResponse> Ask(bool stream, int32_t top) {
    const auto stub = engine::VllmEngine::NewStub(Connect(address()));
    engine::GenerateRequest request;
    request.set_request_id("r");
    request.set_stream(stream);
    for (const uint32_t token : {7, 8, 9}) {
      request.mutable_tokenized()->add_input_ids(token);
    }
    engine::SamplingParams& sampling = *request.mutable_sampling_params();
    sampling.set_max_tokens(2);
    sampling.set_logprobs(top);
    sampling.set_prompt_logprobs(top);
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    std::vector<engine::GenerateResponse> responses;
    engine::GenerateResponse response;
    while (reader->Read(&response)) responses.push_back(response);
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return responses;
  }
};

TEST_F(VllmGenerateTest, LogProbabilitiesComeWithTheirTokens) {
  const LogProbsEngine fake(address());
  ASSERT_TRUE(WaitUntil([this] { return Stats().engine_attached(); }));
  const std::vector<engine::GenerateResponse> responses = Ask(false, 1);
  ASSERT_THAT(responses, SizeIs(1));
  const engine::GenerateComplete& complete = responses[0].complete();
  const engine::OutputLogProbs& outputs = complete.output_logprobs();
  EXPECT_THAT(outputs.token_ids(), ElementsAre(42u, 42u));
  EXPECT_THAT(outputs.token_logprobs(), ElementsAre(-2.0F, -3.0F));
  ASSERT_EQ(outputs.top_logprobs_size(), 2);
  EXPECT_THAT(outputs.top_logprobs(1).token_ids(), ElementsAre(1003u));
  EXPECT_THAT(outputs.top_logprobs(1).values(), ElementsAre(0.0F));
  const engine::InputLogProbs& inputs = complete.input_logprobs();
  EXPECT_THAT(inputs.token_ids(), ElementsAre(7u, 8u, 9u));
  ASSERT_EQ(inputs.token_logprobs_size(), 3);
  EXPECT_FALSE(inputs.token_logprobs(0).has_value());
  EXPECT_EQ(inputs.token_logprobs(1).value(), 0.0F);
  EXPECT_EQ(inputs.token_logprobs(2).value(), -1.0F);
  ASSERT_EQ(inputs.top_logprobs_size(), 3);
  EXPECT_EQ(inputs.top_logprobs(0).values_size(), 0);
  EXPECT_THAT(inputs.top_logprobs(2).token_ids(), ElementsAre(1001u));
}

TEST_F(VllmGenerateTest, ChunksHaveTheirOwnLogProbabilities) {
  const LogProbsEngine fake(address());
  ASSERT_TRUE(WaitUntil([this] { return Stats().engine_attached(); }));
  std::vector<float> outputs;
  int num_inputs = 0;
  for (const engine::GenerateResponse& response : Ask(true, 1)) {
    if (response.has_complete()) {
      EXPECT_FALSE(response.complete().has_output_logprobs());
      EXPECT_FALSE(response.complete().has_input_logprobs());
      continue;
    }
    const engine::GenerateStreamChunk& chunk = response.chunk();
    EXPECT_EQ(chunk.output_logprobs().token_ids_size(), chunk.token_ids_size());
    outputs.insert(outputs.end(),
                   chunk.output_logprobs().token_logprobs().begin(),
                   chunk.output_logprobs().token_logprobs().end());
    num_inputs += chunk.input_logprobs().token_ids_size();
  }
  EXPECT_THAT(outputs, ElementsAre(-2.0F, -3.0F));
  EXPECT_EQ(num_inputs, 3);
}

}  // namespace
}  // namespace blockmgr
