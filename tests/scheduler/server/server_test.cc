#include "scheduler/server/server.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/captured_log.h"
#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ServerTest, TokensArriveInOrderWithWhatTheEngineSaysOfThem) {
  const auto engine = StartEngine();
  engine->token_data = "-0.5";
  engine->StartAnswers();
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("r", 20).ok());
  ASSERT_TRUE(frontend.Submit("s", 3).ok());
  const v1::TokenChunk s = frontend.ReadRequest("s");
  EXPECT_EQ(s.tokens_size(), 3);
  EXPECT_EQ(s.finish_reason(), v1::FINISH_REASON_LENGTH);
  const v1::TokenChunk r = frontend.ReadRequest("r");
  EXPECT_EQ(r.tokens_size(), 20);
  EXPECT_THAT(r.tokens(), Each(42u));
  ASSERT_EQ(r.token_data_size(), 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(r.token_data(i).index(), i);
    EXPECT_EQ(r.token_data(i).data(), "-0.5");
  }
}

TEST_F(ServerTest, TheEngineIsToldWhatToRun) {
  const auto engine = StartEngine();
  FakeFrontend frontend(address(), "a");
  v1::SubmitRequest request = MakeSubmit("a", "r", 3);
  request.set_lora("adapter");
  request.set_engine_data("temperature 0.7");
  ASSERT_TRUE(frontend.Submit(request).ok());
  v1::StepPlan plan;
  ASSERT_TRUE(engine->ReadPlan(&plan));
  ASSERT_EQ(plan.starts_size(), 1);
  EXPECT_EQ(plan.starts(0).info().request_id(), "r");
  EXPECT_EQ(plan.starts(0).info().lora(), "adapter");
  EXPECT_EQ(plan.starts(0).info().engine_data(), "temperature 0.7");
}

TEST_F(ServerTest, WarnsOfSharedPrefixesThatObserveQueries) {
  const CapturedLog log;
  const auto engine = StartEngine();
  FakeFrontend frontend(address(), "a");
  v1::SubmitRequest request = MakeSubmit("a", "keydiff", 3);
  v1::RequestEviction* eviction = request.mutable_eviction();
  eviction->set_mode(v1::EVICTION_MODE_AFTER_PREFILL);
  eviction->mutable_policy()->mutable_keydiff();
  eviction->mutable_target()->set_tokens_per_head(4);
  eviction->set_share_prefix(true);
  ASSERT_TRUE(frontend.Submit(request).ok());
  EXPECT_THAT(log.text(), Not(HasSubstr("share_prefix")));
  request.set_request_id("snapkv");
  eviction->mutable_policy()->mutable_snapkv()->set_window(16);
  ASSERT_TRUE(frontend.Submit(request).ok());
  EXPECT_THAT(log.text(),
              HasSubstr("keeps what the last 16 tokens of a prefix attend to"));
}

TEST_F(ServerTest, AStopStringEndsARequestAndIsNamed) {
  Start(ServerOptions(), &Scheduler::Create);
  v1::AttachRequest attach = AttachRequestFor(SmallLayout());
  attach.add_sampling_fields(v1::SAMPLING_FIELD_STOP);
  attach.add_sampling_fields(v1::SAMPLING_FIELD_MIN_TOKENS);
  const auto engine = StartEngine(attach);
  engine->finds_stops = true;
  engine->StartAnswers();
  FakeFrontend frontend(address(), "a");
  v1::SubmitRequest submit = MakeSubmit("a", "r", 20);
  submit.mutable_sampling()->set_temperature(0);
  submit.mutable_sampling()->set_min_tokens(4);
  submit.mutable_sampling()->add_stop("one");
  submit.mutable_sampling()->add_stop("two");
  ASSERT_TRUE(frontend.Submit(submit).ok());
  const v1::TokenChunk r = frontend.ReadRequest("r");
  EXPECT_EQ(r.tokens_size(), 5);
  EXPECT_EQ(r.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(r.stop(), 1);
  // Others end as before.
  submit.set_request_id("s");
  submit.clear_sampling();
  submit.add_stop_token_ids(42);
  ASSERT_TRUE(frontend.Submit(submit).ok());
  const v1::TokenChunk s = frontend.ReadRequest("s");
  EXPECT_EQ(s.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_FALSE(s.has_stop());
}

TEST_F(ServerTest, AnotherEngineTakesThePlaceOfOneThatHangs) {
  const auto hung = StartEngine();
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("r", 2).ok());
  FakeEngine next(address());
  EXPECT_EQ(next.Attach(SmallLayout()).error_code(), grpc::ALREADY_EXISTS);
  ASSERT_TRUE(next.Attach(SmallLayout(), true).ok());
  // Not before it is there.
  EXPECT_TRUE(Stats().engine_attached());
  next.OpenStream();
  v1::StepPlan plan;
  ASSERT_TRUE(next.ReadPlan(&plan));
  EXPECT_THAT(hung->Finish(), GrpcError(grpc::ABORTED, "taken its place"));
  next.Answer(plan);
  next.StartAnswers();
  EXPECT_EQ(frontend.ReadRequest("r").tokens_size(), 2);
}

TEST_F(ServerTest, NeedsAnEngine) {
  FakeFrontend frontend(address(), "a");
  EXPECT_THAT(frontend.Submit("r", 1),
              GrpcError(grpc::UNAVAILABLE, "no engine attached"));
  EXPECT_THAT(frontend.Cancel("r"), GrpcError(grpc::NOT_FOUND, "request_id"));
}

TEST_F(ServerTest, RefusesBadGeometry) {
  FakeEngine engine(address());
  ModelLayout layout = SmallLayout();
  layout.num_blocks = 0;
  EXPECT_THAT(engine.Attach(layout),
              GrpcError(grpc::INVALID_ARGUMENT, "num_blocks"));
  v1::AttachRequest request = AttachRequestFor(SmallLayout());
  request.mutable_layout()->clear_dtype();
  EXPECT_THAT(engine.Attach(request),
              GrpcError(grpc::INVALID_ARGUMENT, "layout.dtype"));
}

TEST_F(ServerTest, AttachTellsTheLimits) {
  ServerOptions options;
  options.scheduler.max_num_seqs = 12;
  options.scheduler.max_num_batched_tokens = 345;
  options.scheduler.max_steps_in_flight = 3;
  options.scheduler.num_speculative_tokens = 4;
  Start(options);
  FakeEngine engine(address());
  ASSERT_TRUE(engine.Attach(SmallLayout()).ok());
  EXPECT_EQ(engine.attached.num_speculative_tokens(), 4);
  EXPECT_EQ(engine.attached.max_num_seqs(), 12);
  EXPECT_EQ(engine.attached.max_num_batched_tokens(), 345);
  EXPECT_EQ(engine.attached.max_steps_in_flight(), 3);
  EXPECT_NE(engine.attached.epoch(), 0u);
}

TEST_F(ServerTest, OnlyATokenizerMakesAnAttachmentLarge) {
  FakeEngine engine(address());
  v1::AttachRequest request = AttachRequestFor(SmallLayout());
  request.mutable_model()->set_tokenizer_zip("PK\x03\x04" +
                                             std::string(100'000, 'z'));
  request.set_engine_name(std::string(256, 'x'));
  EXPECT_TRUE(engine.Attach(request).ok());
  v1::AttachRequest large = request;
  large.set_engine_name(std::string(257, 'x'));
  EXPECT_THAT(engine.Attach(large),
              GrpcError(grpc::INVALID_ARGUMENT,
                        "engine_name: expected at most 256 bytes, got 257"));
  large = request;
  (*large.mutable_query_stats())["x"] = std::string(70'000, 'x');
  EXPECT_THAT(engine.Attach(large),
              GrpcError(grpc::RESOURCE_EXHAUSTED, "tokenizer_zip"));
}

TEST_F(ServerTest, RefusesMalformedRequests) {
  const auto engine = StartEngine();
  FakeFrontend frontend(address(), "a");
  v1::SubmitRequest bad;
  const auto refused = [&](const v1::SubmitRequest& request,
                           const char* field) {
    EXPECT_THAT(frontend.Submit(request),
                GrpcError(grpc::INVALID_ARGUMENT, field));
  };
  const std::vector<
      std::pair<const char*, std::function<void(v1::SubmitRequest*)>>>
      cases = {
          {"prompt_token_ids", [](auto* r) { r->clear_prompt_token_ids(); }},
          {"prompt_token_ids[2]",
           [](auto* r) { r->set_prompt_token_ids(2, 1u << 31); }},
          {"max_tokens", [](auto* r) { r->set_max_tokens(0); }},
          {"request_id",
           [](auto* r) { r->set_request_id(std::string(129, 'x')); }},
          {"client_session", [](auto* r) { r->clear_client_session(); }},
      };
  for (const auto& [field, spoil] : cases) {
    bad = MakeSubmit("a", "r", 1);
    spoil(&bad);
    refused(bad, field);
  }
  bad = MakeSubmit("a", "r", 1);
  bad.mutable_eviction()->set_mode(v1::EVICTION_MODE_AFTER_PREFILL);
  refused(bad, "policy");
  bad.mutable_eviction()->mutable_policy()->mutable_streaming()->set_sinks(4);
  refused(bad, "target");
  bad.mutable_eviction()->mutable_target()->set_keep_ratio("1.5");
  refused(bad, "target.keep_ratio");
  bad.mutable_eviction()->mutable_target()->set_keep_ratio("0.5");
  EXPECT_TRUE(frontend.Submit(bad).ok());

  EXPECT_THAT(frontend.Submit(bad), GrpcError(grpc::ALREADY_EXISTS, ""));
  bad.set_client_session("b");
  EXPECT_THAT(frontend.Submit(bad),
              GrpcError(grpc::FAILED_PRECONDITION, "client_session"));
}

TEST_F(ServerTest, APromptLongerThanTheModelsContextIsRefused) {
  v1::AttachRequest attach = AttachRequestFor(SmallLayout());
  attach.mutable_model()->set_context_tokens(3);
  const auto engine = StartEngine(attach);
  FakeFrontend frontend(address(), "a");
  EXPECT_THAT(frontend.Submit(MakeSubmit("a", "r", 1)),
              GrpcError(grpc::INVALID_ARGUMENT,
                        "prompt_token_ids: expected at most 2 tokens"));
}

TEST_F(ServerTest, SecondStreamOfASessionIsRefused) {
  FakeFrontend frontend(address(), "a");
  const auto stub = v1::RequestService::NewStub(Connect(address()));
  for (const std::string& session : {std::string("a"), std::string()}) {
    grpc::ClientContext context;
    v1::StreamTokensRequest request;
    request.set_client_session(session);
    const auto reader = stub->StreamTokens(&context, request);
    v1::TokenBatch batch;
    EXPECT_FALSE(reader->Read(&batch));
    EXPECT_THAT(reader->Finish(),
                GrpcError(session.empty() ? grpc::INVALID_ARGUMENT
                                          : grpc::ALREADY_EXISTS,
                          "client_session"));
  }
}

TEST_F(ServerTest, RefusesStaleEpochs) {
  FakeEngine engine(address());
  ASSERT_TRUE(engine.Attach(SmallLayout()).ok());
  engine.attached.set_epoch(engine.attached.epoch() + 1);
  engine.OpenStream();
  v1::StepPlan plan;
  EXPECT_FALSE(engine.ReadPlan(&plan));
  EXPECT_THAT(engine.Finish(),
              GrpcError(grpc::FAILED_PRECONDITION, "STALE_EPOCH"));
  EXPECT_FALSE(Stats().engine_attached());
}

TEST_F(ServerTest, AWrongResultEndsTheStreamAndHasNoEffect) {
  struct Case {
    std::function<void(v1::EngineMessage*)> spoil;
    grpc::StatusCode code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {[](auto* m) { m->set_session(m->session() + 1); },
       grpc::FAILED_PRECONDITION, "STALE_EPOCH"},
      {[](auto* m) { m->mutable_result()->set_step(99); },
       grpc::INVALID_ARGUMENT, "step"},
      // An engine that thinks its text is UTF-8 should not seem to have
      // detached.
      {[](auto* m) { m->mutable_result()->add_evictions()->set_error("\xFF"); },
       grpc::INVALID_ARGUMENT, "EngineMessage: expected"}};
  FakeFrontend frontend(address(), "a");
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto engine = StartEngine();
    frontend.Submit("r", 2);  // once; it waits for the next engine then
    v1::StepPlan plan;
    ASSERT_TRUE(engine->ReadPlan(&plan));
    v1::EngineMessage message;
    message.set_epoch(engine->attached.epoch());
    message.set_session(engine->attached.session());
    message.mutable_result()->set_step(plan.step());
    message.mutable_result()->add_sampled(42);
    c.spoil(&message);
    engine->Send(message);
    EXPECT_THAT(engine->Finish(), GrpcError(c.code, c.text));
    const v1::GetStatsResponse stats = Stats();
    EXPECT_EQ(stats.num_steps(), 0u);
    EXPECT_EQ(stats.num_running(), 1);
  }
}

TEST_F(ServerTest, RefusedEvictionsAreALineOfTheLogWhateverTheEngineSays) {
  const CapturedLog log;
  for (int i = 0; i < 3; ++i) {
    const auto engine = StartEngine();
    v1::EngineMessage message;
    message.set_epoch(engine->attached.epoch());
    message.set_session(engine->attached.session());
    for (int j = 0; j < 2; ++j) {
      message.mutable_result()->add_evictions()->set_error(
          absl::StrCat("no\nroom \x1b[2J", std::string(100'000, 'x')));
    }
    engine->Send(message);  // of no step: the stream ends
    EXPECT_FALSE(engine->Finish().ok());
  }
  const std::string text = log.text();
  const size_t first = text.find(
      "refused an eviction in step 0: no\\nroom "
      "\\x1b[2Jxxx");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("refused an eviction", first + 1), std::string::npos);
  EXPECT_LT(text.size(), 20'000);
}

TEST_F(ServerTest, CancelEndsTheRequest) {
  const auto engine = StartEngine();
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("r", 3).ok());
  EXPECT_TRUE(frontend.Cancel("r").ok());
  EXPECT_EQ(frontend.ReadRequest("r").finish_reason(),
            v1::FINISH_REASON_CANCELLED);
  EXPECT_THAT(frontend.Cancel("r"), GrpcError(grpc::NOT_FOUND, ""));
  for (const std::string& id : {std::string(), std::string(10'000, 'x')}) {
    EXPECT_THAT(frontend.Cancel(id),
                GrpcError(grpc::INVALID_ARGUMENT, "request_id"));
  }
}

TEST_F(ServerTest, DisconnectCancelsTheClientsRequests) {
  const auto engine = StartEngine();
  FakeFrontend stays(address(), "stays");
  ASSERT_TRUE(stays.Submit("s", 3).ok());
  {
    FakeFrontend leaves(address(), "leaves");
    ASSERT_TRUE(leaves.Submit("r1", 3).ok());
    ASSERT_TRUE(leaves.Submit("r2", 3).ok());
    EXPECT_EQ(Stats().num_running(), 3);
  }
  EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 1; }));
}

TEST_F(ServerTest, CutsOffAClientThatDoesNotRead) {
  ServerOptions options;
  options.max_pending_token_bytes = 64 << 10;
  Start(options);
  const auto engine = StartEngine();
  engine->StartAnswers();
  FakeFrontend slow(address(), "slow");
  // It may be cut off before the last of them.
  ASSERT_TRUE(slow.Submit(std::string(100, 'x'), 1 << 30).ok());
  for (int i = 0; i < 50; ++i) {
    const std::string id = absl::StrCat(std::string(100, 'x'), i);
    if (!slow.Submit(id, 1 << 30).ok()) break;
  }
  // Meanwhile others are served.
  FakeFrontend quick(address(), "quick");
  ASSERT_TRUE(quick.Submit("q", 200).ok());
  EXPECT_EQ(quick.ReadRequest("q").tokens_size(), 200);
  EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
  EXPECT_THAT(slow.Drain(), GrpcError(grpc::RESOURCE_EXHAUSTED, "tokens"));
}

TEST_F(ServerTest, CoalescesTokensOfASlowReader) {
  const auto engine = StartEngine();
  engine->StartAnswers();
  FakeFrontend frontend(address(), "a");
  constexpr int kTokens = 5000;  // more than the transport takes
  ASSERT_TRUE(frontend.Submit("r", kTokens).ok());
  ASSERT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
  const v1::TokenChunk chunk = frontend.ReadRequest("r");
  EXPECT_EQ(chunk.tokens_size(), kTokens);
  EXPECT_EQ(chunk.finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ServerTest, ReportsStats) {
  EXPECT_FALSE(Stats().has_layout());
  const auto engine = StartEngine();
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("r", 1).ok());
  const v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(stats.engine_name(), "fake");
  EXPECT_EQ(stats.epoch(), engine->attached.epoch());
  EXPECT_EQ(stats.layout().num_blocks(), 64);
  EXPECT_EQ(stats.num_running(), 1);
  EXPECT_EQ(stats.max_running(), 1);
  EXPECT_EQ(stats.used_blocks(), 10);
  EXPECT_EQ(stats.metadata_bytes(), 64000);
  ASSERT_EQ(stats.tenants_size(), 1);
  EXPECT_EQ(stats.tenants(0).name(), "*");
  EXPECT_EQ(stats.tenants(0).num_requests(), 1);
  EXPECT_EQ(stats.tenants(0).queued_tokens(), 7);
  EXPECT_EQ(stats.tenants(0).reserved_blocks(), 8);
  EXPECT_GT(stats.clock_seconds(), stats.running_request_seconds());
  EXPECT_GT(ResetPrefixCache().in_use_blocks(), 0);
}

TEST_F(ServerTest, AnEngineThatDoesNotAnswerIsLost) {
  ServerOptions options;
  options.step_timeout_s = 0.05;
  Start(options);
  FakeFrontend frontend(address(), "a");
  for (const bool drains : {false, true}) {
    const auto engine = StartEngine();
    if (drains) {
      server_->BeginDrain();
    } else {
      ASSERT_TRUE(frontend.Submit("r", 3).ok());
    }
    EXPECT_TRUE(WaitUpdating([&] { return !Stats().engine_attached(); }));
    EXPECT_THAT(engine->Finish(),
                GrpcError(grpc::DEADLINE_EXCEEDED, "--step-timeout"));
  }
}

TEST(ServerOptionsTest, LimitsAreChecked) {
  ServerOptions options;
  EXPECT_OK(options.Validate());
  options.step_timeout_s = -1;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "step_timeout_s: expected 0 to 1e+09, got -1"));
  options = {};
  options.max_score_bytes = (int64_t{1} << 30) + 1;
  EXPECT_THAT(options.Validate(), IsInvalid("max_score_bytes"));
  options.max_score_bytes = int64_t{1} << 30;
  EXPECT_OK(options.Validate());
}

}  // namespace
}  // namespace blockmgr
