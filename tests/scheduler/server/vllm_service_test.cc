#include "scheduler/server/vllm_service.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "scheduler/server/sha256.h"
#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
namespace common = ::smg::grpc::common;
namespace engine = ::vllm::grpc::engine;

constexpr int kLongPrompt = 64;

engine::GenerateRequest MakeGenerate(const std::string& id, uint32_t max_tokens,
                                     bool stream) {
  engine::GenerateRequest request;
  request.set_request_id(id);
  for (uint32_t token = 1; token < 5; ++token) {
    request.mutable_tokenized()->add_input_ids(token);
  }
  request.mutable_sampling_params()->set_temperature(0);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.set_stream(stream);
  return request;
}

// A gateway with one call of Generate.
class Call {
 public:
  Call(VllmEngine::Stub* stub, const engine::GenerateRequest& request,
       const std::string& options = "") {
    if (!options.empty()) context_.AddMetadata("blockmgr-options", options);
    reader_ = stub->Generate(&context_, request);
  }
  ~Call() {
    context_.TryCancel();
    if (!is_over_) Finish();
  }
  bool Read() { return reader_->Read(&response); }
  // Reads to the end.
  grpc::Status Finish() {
    is_over_ = true;
    while (Read()) {
      if (response.has_chunk()) {
        const engine::GenerateStreamChunk& chunk = response.chunk();
        for (const uint32_t token : chunk.token_ids()) {
          streamed[chunk.index()].push_back(token);
        }
        EXPECT_EQ(chunk.completion_tokens(), streamed[chunk.index()].size());
        EXPECT_THAT(chunk.prompt_tokens(), AnyOf(4, kLongPrompt));
      } else {
        EXPECT_TRUE(
            complete.emplace(response.complete().index(), response.complete())
                .second);
      }
    }
    return reader_->Finish();
  }

  engine::GenerateResponse response;
  std::map<uint32_t, std::vector<uint32_t>> streamed;  // by answer
  std::map<uint32_t, engine::GenerateComplete> complete;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<engine::GenerateResponse>> reader_;
  bool is_over_ = false;
};

// A stream that nobody reads any more.
template <typename Message>
struct OpenStream {
  ~OpenStream() { context.TryCancel(); }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<Message>> reader;
};

// `open(&context)` opens streams: as many as may be, and one that is refused.
template <typename Message, typename Open>
void ExpectMostStreams(int most, const char* method, Open open) {
  std::vector<std::unique_ptr<OpenStream<Message>>> streams;
  Message message;
  for (int i = 0; i <= most; ++i) {
    streams.push_back(std::make_unique<OpenStream<Message>>());
    streams.back()->reader = open(&streams.back()->context);
    EXPECT_EQ(streams.back()->reader->Read(&message), i < most) << i;
  }
  EXPECT_THAT(streams.back()->reader->Finish(),
              GrpcError(grpc::RESOURCE_EXHAUSTED, method));
}

class VllmServiceTest : public ServerTest {
 protected:
  void Connect() {
    channel_ = blockmgr::Connect(address());
    stub_ = VllmEngine::NewStub(channel_);
  }
  void StartAnswers() {
    Connect();
    engine_ = StartEngine();
    engine_->StartAnswers();
  }
  grpc::Status Error(const engine::GenerateRequest& request,
                     const std::string& options = "") {
    return Call(stub_.get(), request, options).Finish();
  }
  grpc::Status Abort(const std::vector<std::string>& ids) {
    grpc::ClientContext context;
    engine::AbortRequest request;
    for (const std::string& id : ids) request.add_request_ids(id);
    engine::AbortResponse response;
    return stub_->Abort(&context, request, &response);
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<VllmEngine::Stub> stub_;
  std::unique_ptr<FakeEngine> engine_;
};

TEST_F(VllmServiceTest, TellsTheWholeAnswerAtTheEndBehindItsStream) {
  StartAnswers();
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    Call call(stub_.get(), MakeGenerate("r", 20, stream));
    EXPECT_TRUE(call.Finish().ok());
    if (stream) {
      EXPECT_THAT(call.streamed[0], SizeIs(20));
      EXPECT_THAT(call.streamed[0], Each(42u));
    } else {
      EXPECT_THAT(call.streamed, IsEmpty());
    }
    ASSERT_THAT(call.complete, SizeIs(1));
    const engine::GenerateComplete& complete = call.complete[0];
    EXPECT_EQ(complete.output_ids_size(), 20);
    EXPECT_THAT(complete.output_ids(), Each(42u));
    EXPECT_EQ(complete.finish_reason(), "length");
    EXPECT_EQ(complete.prompt_tokens(), 4u);
    EXPECT_EQ(complete.completion_tokens(), 20u);
    EXPECT_FALSE(complete.has_matched_token_id());
  }
}

TEST_F(VllmServiceTest, AnswersAreForksOfTheFirst) {
  Start(ServerOptions(), &Scheduler::Create);
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, true);
  for (int i = 4; i < kLongPrompt; ++i) {
    request.mutable_tokenized()->add_input_ids(1);
  }
  request.mutable_sampling_params()->set_n(3);
  Call call(stub_.get(), request);
  EXPECT_TRUE(call.Finish().ok());
  ASSERT_THAT(call.complete, SizeIs(3));
  for (const auto& [index, complete] : call.complete) {
    EXPECT_EQ(complete.output_ids_size(), 5) << index;
    EXPECT_EQ(call.streamed[index].size(), 5u) << index;
    EXPECT_EQ(complete.cached_tokens(), 0u);
  }
  // Their prompt is computed once, but for its last page.
  EXPECT_GE(Stats().num_cached_tokens(), 2u * 48);
}

TEST_F(VllmServiceTest, StopTokensEndTheAnswerAndAreNamed) {
  Start(ServerOptions(), &Scheduler::Create);
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, false);
  request.mutable_sampling_params()->add_stop_token_ids(42);
  Call call(stub_.get(), request);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.complete[0].finish_reason(), "stop");
  EXPECT_EQ(call.complete[0].matched_token_id(), 42u);
  EXPECT_THAT(call.complete[0].output_ids(), ElementsAre(42u));
}

TEST_F(VllmServiceTest, StopStringsEndEveryAnswerAndAreNamed) {
  Start(ServerOptions(), &Scheduler::Create);
  Connect();
  v1::AttachRequest attach = AttachRequestFor(SmallLayout());
  attach.add_sampling_fields(v1::SAMPLING_FIELD_STOP);
  attach.add_sampling_fields(v1::SAMPLING_FIELD_MIN_TOKENS);
  engine_ = StartEngine(attach);
  engine_->finds_stops = true;
  engine_->StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 9, true);
  engine::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_n(2);
  sampling.set_min_tokens(2);
  sampling.add_stop("one");
  sampling.add_stop("two");
  sampling.add_stop_token_ids(41);
  Call call(stub_.get(), request);
  const grpc::Status status = call.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_THAT(call.complete, SizeIs(2));
  for (const auto& [index, complete] : call.complete) {
    EXPECT_EQ(complete.finish_reason(), "stop");
    EXPECT_EQ(complete.matched_stop_str(), "two");
    EXPECT_EQ(complete.completion_tokens(), 3u);
    EXPECT_THAT(call.streamed[index], ElementsAre(42u, 42u, 42u));
  }
  sampling.add_stop(std::string(257, 'x'));
  EXPECT_THAT(Error(request),
              GrpcError(grpc::INVALID_ARGUMENT,
                        "sampling_params.stop[2]: expected 1 to 256 bytes"));
}

// The gateway cuts the text.
TEST_F(VllmServiceTest, AnEngineThatFindsNoStopStringsGoesOn) {
  Start(ServerOptions(), &Scheduler::Create);
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, true);
  request.mutable_sampling_params()->add_stop("one");
  Call call(stub_.get(), request);
  EXPECT_TRUE(call.Finish().ok());
  ASSERT_EQ(call.complete.size(), 1u);
  EXPECT_EQ(call.complete[0].finish_reason(), "length");
  EXPECT_EQ(call.complete[0].completion_tokens(), 5u);
}

TEST_F(VllmServiceTest, ARequestWithoutALimitMayFillThePool) {
  Start(ServerOptions(), &Scheduler::Create);
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, false);
  request.mutable_sampling_params()->clear_max_tokens();
  Call call(stub_.get(), request);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.complete[0].finish_reason(), "length");
  // 63 blocks of 16 tokens, all but a few.
  EXPECT_GT(call.complete[0].output_ids_size(), 900);
}

TEST_F(VllmServiceTest, AbortEndsAllAnswersOfACall) {
  Connect();
  const auto engine = StartEngine();
  engine::GenerateRequest request = MakeGenerate("r", 5, true);
  request.mutable_sampling_params()->set_n(2);
  Call call(stub_.get(), request);
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 2; }));
  EXPECT_TRUE(Abort({"other", "r", "r"}).ok());
  EXPECT_TRUE(call.Finish().ok());
  ASSERT_THAT(call.complete, SizeIs(2));
  EXPECT_EQ(call.complete[0].finish_reason(), "abort");
  EXPECT_EQ(call.complete[1].finish_reason(), "abort");
  EXPECT_EQ(Stats().num_running(), 0);
  EXPECT_TRUE(Abort({"r"}).ok());
  EXPECT_TRUE(Abort(std::vector<std::string>(1024, "r")).ok());
  EXPECT_THAT(Abort(std::vector<std::string>(1025, "r")),
              GrpcError(grpc::INVALID_ARGUMENT, "request_ids: expected"));
}

TEST_F(VllmServiceTest, TheEndOfACallCancelsItsRequests) {
  Connect();
  const auto engine = StartEngine();
  engine::GenerateRequest request = MakeGenerate("r", 5, true);
  request.mutable_sampling_params()->set_n(2);
  {
    const Call call(stub_.get(), request);
    ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 2; }));
  }
  EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
  // The id is free again.
  const Call again(stub_.get(), request);
  EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 2; }));
}

TEST_F(VllmServiceTest, ADeadlineCancels) {
  Connect();
  const auto engine = StartEngine();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(200));
  const auto reader = stub_->Generate(&context, MakeGenerate("r", 5, true));
  engine::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
}

TEST_F(VllmServiceTest, TwoCallsOfOneIdAreRefused) {
  Connect();
  const auto engine = StartEngine();
  const Call call(stub_.get(), MakeGenerate("r", 5, true));
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 1; }));
  EXPECT_THAT(Error(MakeGenerate("r", 5, true)),
              GrpcError(grpc::ALREADY_EXISTS, "request_id"));
  // A fork that is refused takes its parent with it.
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("s#1", 5).ok());
  engine::GenerateRequest request = MakeGenerate("s", 5, true);
  request.mutable_sampling_params()->set_n(2);
  EXPECT_THAT(Error(request), GrpcError(grpc::ALREADY_EXISTS, "request_id"));
  EXPECT_EQ(Stats().num_running(), 2);
}

TEST_F(VllmServiceTest, RefusesWithoutAnEngine) {
  Connect();
  EXPECT_THAT(Error(MakeGenerate("r", 5, true)),
              GrpcError(grpc::UNAVAILABLE, "no engine"));
  grpc::ClientContext context;
  engine::GetModelInfoResponse info;
  EXPECT_THAT(
      stub_->GetModelInfo(&context, engine::GetModelInfoRequest(), &info),
      GrpcError(grpc::UNAVAILABLE, "no engine"));
  grpc::ClientContext health_context;
  engine::HealthCheckResponse health;
  ASSERT_TRUE(
      stub_->HealthCheck(&health_context, engine::HealthCheckRequest(), &health)
          .ok());
  EXPECT_FALSE(health.healthy());
  EXPECT_THAT(health.message(), HasSubstr("no engine"));
}

TEST_F(VllmServiceTest, NamesTheFieldsThatTheSchedulerRefuses) {
  Start(ServerOptions(), &Scheduler::Create);
  Connect();
  v1::AttachRequest attach = AttachRequestFor(SmallLayout());
  attach.set_vocabulary_size(100);
  attach.mutable_model()->set_context_tokens(9);
  const auto fake = StartEngine(attach);
  const auto refused =
      [this](const std::function<void(engine::GenerateRequest*)>& spoil,
             const char* text) {
        engine::GenerateRequest request = MakeGenerate("r", 5, true);
        spoil(&request);
        EXPECT_THAT(Error(request), GrpcError(grpc::INVALID_ARGUMENT, text));
      };
  const auto sampling =
      [&refused](const std::function<void(engine::SamplingParams*)>& spoil,
                 const char* text) {
        refused([&spoil](auto* r) { spoil(r->mutable_sampling_params()); },
                text);
      };
  sampling([](auto* s) { s->set_top_p(1.5); },
           "sampling_params.top_p: expected");
  sampling([](auto* s) { s->set_max_tokens(6); },
           "sampling_params.max_tokens: expected at most 5");
  sampling([](auto* s) { s->add_stop_token_ids(100); },
           "sampling_params.stop_token_ids[0]: expected");
  sampling(
      [](auto* s) {
        (*s->mutable_logit_bias())[7] = 1;
        (*s->mutable_logit_bias())[70] = 101;
      },
      "sampling_params.logit_bias[70]: expected -100 to 100");
  sampling([](auto* s) { (*s->mutable_logit_bias())[100] = 1; },
           "sampling_params.logit_bias[100]: expected a token id below 100");
  refused([](auto* r) { r->mutable_tokenized()->set_input_ids(2, 100); },
          "tokenized.input_ids[2]: expected a token id below 100");
  refused(
      [](auto* r) {
        for (int i = 0; i < 5; ++i) r->mutable_tokenized()->add_input_ids(1);
      },
      "tokenized.input_ids: expected at most 8");
}

TEST_F(VllmServiceTest, AQuotaLimitsWhatARequestWithoutALimitMayTake) {
  ServerOptions options;
  options.scheduler.tenants["t"].max_blocks = 10;
  Start(options, &Scheduler::Create);
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, false);
  request.mutable_sampling_params()->clear_max_tokens();
  Call call(stub_.get(), request, R"({"blockmgr": {"tenant": "t"}})");
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_GT(call.complete[0].output_ids_size(), 7 * 16);
  EXPECT_LE(call.complete[0].output_ids_size(), 10 * 16);
}

// As many of the smallest ids take the most memory for their bytes.
TEST_F(VllmServiceTest, TakesAPromptOfTheLongestSequence) {
  constexpr int kNumTokens = 400'000;
  ServerOptions options;
  options.scheduler.max_model_len = kNumTokens + 5;
  Start(options);
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, false);
  request.mutable_tokenized()->mutable_input_ids()->Resize(kNumTokens, 1);
  const grpc::Status status = Error(request);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(VllmServiceTest, RefusesMessagesThatAreNone) {
  StartAnswers();
  engine::GenerateRequest request = MakeGenerate("r", 5, true);
  request.mutable_tokenized()->set_original_text(
      std::string(size_t{4} << 20, 'x'));
  EXPECT_THAT(Error(request),
              GrpcError(grpc::RESOURCE_EXHAUSTED, "GenerateRequest"));
  EXPECT_THAT(Error(MakeGenerate("r", 5, true), "{"),
              GrpcError(grpc::INVALID_ARGUMENT, "blockmgr-options"));
}

// The transport must take what the daemon promises, and more, so that the
// error is the daemon's.
TEST_F(VllmServiceTest, MetadataHasRoomForTheLongestOptions) {
  StartAnswers();
  const auto ask = [this](size_t bytes) {
    std::string json = R"({"blockmgr": {}})";
    json.insert(json.size() - 2, bytes - json.size(), ' ');
    return Error(MakeGenerate("r", 1, true), json);
  };
  const grpc::Status longest = ask(16384);
  EXPECT_TRUE(longest.ok()) << longest.error_message();
  for (const size_t bytes : {16385, 20000}) {
    EXPECT_THAT(ask(bytes),
                GrpcError(grpc::INVALID_ARGUMENT,
                          absl::StrCat("blockmgr-options: expected at most "
                                       "16384 bytes, got ",
                                       bytes)));
  }
  EXPECT_THAT(ask(size_t{64} << 10),
              GrpcError(grpc::RESOURCE_EXHAUSTED, "metadata size exceeds"));
}

TEST_F(VllmServiceTest, TellsTheModelTheServerAndTheLoad) {
  Connect();
  v1::AttachRequest attach = AttachRequestFor(SmallLayout());
  attach.set_vocabulary_size(100);
  attach.add_end_token_ids(2);
  attach.mutable_model()->set_name("m");
  attach.mutable_model()->set_model_type("llama");
  attach.mutable_model()->set_context_tokens(512);
  const auto fake = StartEngine(attach);

  grpc::ClientContext model_context;
  engine::GetModelInfoResponse model;
  ASSERT_TRUE(
      stub_->GetModelInfo(&model_context, engine::GetModelInfoRequest(), &model)
          .ok());
  EXPECT_EQ(model.served_model_name(), "m");
  EXPECT_EQ(model.model_type(), "llama");
  EXPECT_TRUE(model.is_generation());
  EXPECT_EQ(model.max_context_length(), 512u);
  EXPECT_EQ(model.vocab_size(), 100u);
  EXPECT_THAT(model.eos_token_ids(), ElementsAre(2));

  const Call call(stub_.get(), MakeGenerate("r", 5, true));
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 1; }));
  grpc::ClientContext server_context;
  engine::GetServerInfoResponse server;
  ASSERT_TRUE(stub_
                  ->GetServerInfo(&server_context,
                                  engine::GetServerInfoRequest(), &server)
                  .ok());
  EXPECT_EQ(server.server_type(), "vllm-grpc");
  EXPECT_EQ(server.active_requests(), 1u);
  EXPECT_EQ(server.block_size(), 16);
  grpc::ClientContext loads_context;
  engine::GetLoadsResponse loads;
  ASSERT_TRUE(
      stub_->GetLoads(&loads_context, engine::GetLoadsRequest(), &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 1);
  EXPECT_EQ(loads.loads(0).num_used_tokens(), 160);  // 10 blocks
  EXPECT_EQ(loads.loads(0).max_total_num_tokens(), 63 * 16);
  EXPECT_DOUBLE_EQ(loads.loads(0).token_usage(), 10.0 / 63);
}

TEST_F(VllmServiceTest, FewReadTheTokenizerAtATime) {
  Connect();
  v1::AttachRequest attach = AttachRequestFor(SmallLayout());
  const std::string zip =
      "PK\x03\x04" + std::string((size_t{1} << 20) + 5, 'z');
  attach.mutable_model()->set_tokenizer_zip(zip);
  const auto fake = StartEngine(attach);
  grpc::ClientContext context;
  const auto reader =
      stub_->GetTokenizer(&context, common::GetTokenizerRequest());
  std::vector<std::string> digests;
  std::string bytes;
  common::GetTokenizerChunk chunk;
  while (reader->Read(&chunk)) {
    bytes += chunk.data();
    digests.push_back(chunk.sha256());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(bytes == zip);
  ASSERT_THAT(digests, SizeIs(5));
  EXPECT_EQ(digests[3], "");
  EXPECT_EQ(digests[4], Sha256Hex(zip));

  ExpectMostStreams<common::GetTokenizerChunk>(
      16, "GetTokenizer", [this](grpc::ClientContext* of_stream) {
        return stub_->GetTokenizer(of_stream, common::GetTokenizerRequest());
      });
}

TEST_F(VllmServiceTest, FlushCacheWaitsForRequests) {
  Connect();
  const auto engine = StartEngine();
  const auto flush = [this](float timeout_s) {
    grpc::ClientContext context;
    common::FlushCacheRequest request;
    request.set_timeout_s(timeout_s);
    common::FlushCacheResponse response;
    const grpc::Status status = stub_->FlushCache(&context, request, &response);
    return status.ok() ? absl::StrCat(response.success())
                       : status.error_message();
  };
  EXPECT_EQ(flush(0), "1");
  EXPECT_THAT(flush(-1), HasSubstr("timeout_s"));
  auto call = std::make_unique<Call>(stub_.get(), MakeGenerate("r", 5, true));
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 1; }));
  EXPECT_EQ(flush(0), "0");
  EXPECT_EQ(flush(0.05F), "0");
  std::thread ends([&call] { call.reset(); });
  EXPECT_EQ(flush(60), "1");
  ends.join();
}

TEST_F(VllmServiceTest, FewCallsWaitToFlushAndNoneThatIsCancelled) {
  Connect();
  const auto engine = StartEngine();
  const Call call(stub_.get(), MakeGenerate("r", 5, true));
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 1; }));
  const auto flush = [this](grpc::ClientContext* context, float timeout_s) {
    common::FlushCacheRequest request;
    request.set_timeout_s(timeout_s);
    common::FlushCacheResponse response;
    return stub_->FlushCache(context, request, &response);
  };
  const auto code_now = [&flush] {
    grpc::ClientContext context;
    return flush(&context, 0).error_code();
  };
  // One more than may wait. Whichever comes last is refused.
  std::vector<grpc::ClientContext> contexts(17);
  std::atomic<int> num_refused = 0;
  std::vector<std::thread> callers;
  callers.reserve(contexts.size());
  for (grpc::ClientContext& context : contexts) {
    callers.emplace_back([&context, &flush, &num_refused] {
      const grpc::StatusCode code = flush(&context, 500).error_code();
      if (code == grpc::RESOURCE_EXHAUSTED) {
        ++num_refused;
      } else {
        EXPECT_EQ(code, grpc::CANCELLED);
      }
    });
  }
  EXPECT_TRUE(WaitUntil([&] { return num_refused == 1; }));
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_refused, 1);
  EXPECT_TRUE(WaitUntil([&] { return code_now() == grpc::OK; }));
}

TEST_F(VllmServiceTest, FewSubscribe) {
  StartAnswers();
  ExpectMostStreams<common::KvEventBatch>(
      8, "SubscribeKvEvents", [this](grpc::ClientContext* of_stream) {
        return stub_->SubscribeKvEvents(of_stream,
                                        common::SubscribeKvEventsRequest());
      });
}

TEST_F(VllmServiceTest, MethodsThatAreNotThereAreUnimplemented) {
  Connect();
  grpc::ClientContext context;
  engine::EmbedResponse response;
  EXPECT_EQ(
      stub_->Embed(&context, engine::EmbedRequest(), &response).error_code(),
      grpc::UNIMPLEMENTED);
}

}  // namespace
}  // namespace blockmgr
