#include "scheduler/server/vllm_generate.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
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
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace engine = ::vllm::grpc::engine;

constexpr uint32_t kLargestToken = std::numeric_limits<int32_t>::max();
// gRPC clients take messages of at most so many bytes, unless told otherwise.
constexpr size_t kMostBytes = size_t{4} << 20;

// An engine whose log-probabilities tell where they belong: of the token behind
// position p, -p, and other tokens beside it, from 1000 + p on, or the largest
// ids where there are many. It samples 42, and all its drafts are 42, too.
class LogProbsEngine {
 public:
  explicit LogProbsEngine(const std::string& address,
                          const ModelLayout& layout = SmallLayout(),
                          int omits_rows_of = 0)
      : engine_(address), omits_rows_of_(omits_rows_of) {
    v1::AttachRequest attach = AttachRequestFor(layout);
    for (int field = 1; field <= kNumSamplingFields; ++field) {
      attach.add_sampling_fields(static_cast<v1::SamplingField>(field));
    }
    EXPECT_TRUE(engine_.Attach(attach).ok());
    engine_.OpenStream();
    message_.set_epoch(engine_.attached.epoch());
    message_.set_session(engine_.attached.session());
    thread_ = std::thread([this] { Run(); });
  }
  ~LogProbsEngine() {
    engine_.Break();
    thread_.join();
  }

  int num_plans() const { return num_plans_; }

 private:
  static void AddRow(uint32_t token, int32_t position, int32_t num_top,
                     v1::TokenLogProbs* rows) {
    rows->set_num_top(num_top);
    rows->add_token_ids(token);
    rows->add_logprobs(static_cast<float>(-position));
    for (int32_t i = 0; i < num_top; ++i) {
      rows->add_token_ids(num_top > 1 ? kLargestToken - static_cast<uint32_t>(i)
                                      : 1000 + static_cast<uint32_t>(position));
      rows->add_logprobs(0.0F);
    }
  }
  void Run() {
    v1::StepPlan plan;
    std::vector<uint32_t> prompt;
    v1::SamplingParams sampling;
    while (engine_.ReadPlan(&plan)) {
      ++num_plans_;
      v1::StepResult& result = *message_.mutable_result();
      result.Clear();
      result.set_step(plan.step());
      for (const v1::SequenceStart& start : plan.starts()) {
        prompt.assign(plan.start_tokens().begin() + start.token_begin(),
                      plan.start_tokens().end());
        sampling = start.info().sampling();
      }
      for (int i = 0; i < plan.slots_size(); ++i) {
        const bool samples = plan.samples()[static_cast<size_t>(i)] != 0;
        result.add_sampled(samples ? 42 : -1);
        v1::RunLogProbs& rows = *result.add_logprobs();
        rows.set_run(i);
        const int32_t end = plan.positions(i) + plan.num_tokens(i);
        for (int32_t p = plan.positions(i);
             sampling.has_prompt_logprobs() && p < end; ++p) {
          const auto next = static_cast<size_t>(p) + 1;
          if (next >= prompt.size()) break;
          AddRow(prompt[next], p, sampling.prompt_logprobs(),
                 rows.mutable_prompt());
        }
        const int32_t num_drafts =
            plan.num_drafts().empty() ? 0 : plan.num_drafts(i);
        result.add_num_accepted(num_drafts);
        for (int32_t k = 0; k < num_drafts; ++k) result.add_accepted(42);
        result.add_num_drafts(
            samples ? engine_.attached.num_speculative_tokens() : 0);
        for (int32_t p = end - 1 - num_drafts;
             samples && sampling.has_logprobs() && p < end; ++p) {
          AddRow(42, p, sampling.logprobs(), rows.mutable_outputs());
        }
      }
      if (num_plans_ == omits_rows_of_) result.clear_logprobs();
      engine_.Send(message_);
    }
  }

  FakeEngine engine_;
  v1::EngineMessage message_;
  const int omits_rows_of_;  // a plan, from 1
  std::atomic<int> num_plans_{0};
  std::thread thread_;
};

class VllmGenerateTest : public ServerTest {
 protected:
  void SetUp() override { Start(ServerOptions(), &Scheduler::Create); }

  // For a prompt of 7, 8, 9 and two tokens.
  static engine::GenerateRequest MakeRequest(bool stream, int32_t top) {
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
    return request;
  }

  std::vector<engine::GenerateResponse> Ask(bool stream, int32_t top) {
    std::vector<engine::GenerateResponse> responses;
    const grpc::Status status = Ask(MakeRequest(stream, top), &responses);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return responses;
  }
  // A client with the default limits of gRPC. It begins to read when
  // `may_read` says so.
  grpc::Status Ask(
      const engine::GenerateRequest& request,
      std::vector<engine::GenerateResponse>* responses,
      const std::function<bool()>& may_read = [] { return true; }) {
    const auto stub = engine::VllmEngine::NewStub(Connect(address()));
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    EXPECT_TRUE(WaitUntil(may_read));
    engine::GenerateResponse response;
    while (reader->Read(&response)) responses->push_back(response);
    return reader->Finish();
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

TEST_F(VllmGenerateTest, RowsAreNotTakenForThoseOfOtherTokens) {
  const LogProbsEngine fake(address(), SmallLayout(), /*omits_rows_of=*/2);
  ASSERT_TRUE(WaitUntil([this] { return Stats().engine_attached(); }));
  engine::GenerateRequest request = MakeRequest(false, 1);
  request.mutable_sampling_params()->set_max_tokens(3);
  std::vector<engine::GenerateResponse> responses;
  EXPECT_THAT(Ask(request, &responses),
              GrpcError(grpc::INTERNAL, "has left out log-probabilities"));
  EXPECT_THAT(responses, IsEmpty());
  // The engine leaves out no more.
  EXPECT_TRUE(Ask(request, &responses).ok());
  EXPECT_THAT(responses, SizeIs(1));
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

// Clients read the log-probabilities of the prompt from one message.
TEST_F(VllmGenerateTest, TheLongestPromptWithLogProbabilitiesFitsAMessage) {
  constexpr int kMostTokens = 21'069;
  ModelLayout layout = SmallLayout();
  layout.num_blocks = 2 * kMostTokens / layout.page_size;
  const LogProbsEngine fake(address(), layout);
  ASSERT_TRUE(WaitUntil([this] { return Stats().engine_attached(); }));
  for (const bool stream : {false, true}) {
    engine::GenerateRequest request = MakeRequest(stream, 20);
    request.mutable_tokenized()->mutable_input_ids()->Resize(kMostTokens,
                                                             kLargestToken);
    std::vector<engine::GenerateResponse> responses;
    const grpc::Status status = Ask(request, &responses);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const engine::GenerateResponse& first = responses[0];
    EXPECT_EQ((stream ? first.chunk().input_logprobs()
                      : first.complete().input_logprobs())
                  .top_logprobs_size(),
              kMostTokens);
    EXPECT_LE(first.ByteSizeLong(), kMostBytes);
    EXPECT_GT(first.ByteSizeLong(), kMostBytes - (2 << 10));

    const int num_plans = fake.num_plans();
    request.mutable_tokenized()->add_input_ids(1);
    request.mutable_tokenized()->add_input_ids(1);
    EXPECT_THAT(Ask(request, &responses),
                GrpcError(grpc::INVALID_ARGUMENT,
                          "tokenized.input_ids: expected at most"));
    EXPECT_EQ(fake.num_plans(), num_plans);
  }
}

// A client that comes late finds more than fits into a message.
TEST_F(VllmGenerateTest, ChunksThatWaitFitMessages) {
  constexpr int kNumTokens = 25'000;
  ServerOptions options;
  options.scheduler.num_speculative_tokens = 63;  // so many tokens a step
  Start(options, &Scheduler::Create);
  ModelLayout layout = SmallLayout();
  layout.num_blocks = 2 * kNumTokens / layout.page_size;
  const LogProbsEngine fake(address(), layout);
  ASSERT_TRUE(WaitUntil([this] { return Stats().engine_attached(); }));
  engine::GenerateRequest request = MakeRequest(true, 20);
  request.mutable_sampling_params()->set_max_tokens(kNumTokens);
  request.mutable_sampling_params()->clear_prompt_logprobs();
  std::vector<engine::GenerateResponse> responses;
  const grpc::Status status =
      Ask(request, &responses, [this] { return Stats().num_finished() == 1; });
  EXPECT_TRUE(status.ok()) << status.error_message();
  int num_rows = 0;
  for (const engine::GenerateResponse& response : responses) {
    EXPECT_LE(response.ByteSizeLong(), kMostBytes);
    const engine::GenerateStreamChunk& chunk = response.chunk();
    EXPECT_EQ(chunk.output_logprobs().token_ids_size(), chunk.token_ids_size());
    for (const float value : chunk.output_logprobs().token_logprobs()) {
      ASSERT_EQ(value, static_cast<float>(-2 - num_rows));
      ++num_rows;
    }
  }
  EXPECT_EQ(num_rows, kNumTokens);
  EXPECT_EQ(responses.back().complete().output_ids_size(), kNumTokens);
}

}  // namespace
}  // namespace blockmgr
