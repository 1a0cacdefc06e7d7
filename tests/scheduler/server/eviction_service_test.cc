#include "scheduler/server/eviction_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// 2 layers x 2 heads x 16 positions.
constexpr int kCut = 16;
constexpr int kScores = 2 * 2 * kCut;

class EvictionServiceTest : public ServerTest {
 protected:
  virtual ServerOptions Options() const {
    ServerOptions options;
    options.max_score_bytes = int64_t{2} * kScores * 4 - 4;  // one call's
    return options;
  }
  void SetUp() override {
    Start(Options());
    engine_ = StartEngine();
    frontend_ = std::make_unique<FakeFrontend>(address(), "a");
    const grpc::Status status = frontend_->Submit("r", 1 << 30);
    ASSERT_TRUE(status.ok()) << status.error_message();
    stub_ = v1::EvictionService::NewStub(Connect(address()));
  }

  static v1::EvictRequest Header() {
    v1::EvictRequest header;
    header.set_request_id("r");
    header.mutable_policy()->mutable_external_scores();
    header.mutable_target()->set_tokens_per_head(4);
    header.set_cut(kCut);
    return header;
  }

  static v1::EvictByScoresRequest Scores(int count) {
    v1::EvictByScoresRequest message;
    for (int i = 0; i < count; ++i) {
      message.add_scores(static_cast<float>(i));
    }
    return message;
  }

  grpc::Status Upload(const std::vector<v1::EvictByScoresRequest>& messages) {
    grpc::ClientContext context;
    response_.Clear();
    const auto writer = stub_->EvictByScores(&context, &response_);
    for (const auto& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }

  static v1::EvictByScoresRequest First(const v1::EvictRequest& header) {
    v1::EvictByScoresRequest message;
    *message.mutable_header() = header;
    return message;
  }

  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<FakeFrontend> frontend_;
  std::unique_ptr<v1::EvictionService::Stub> stub_;
  v1::EvictResponse response_;
};

TEST_F(EvictionServiceTest, EvictAnswersWhatWasFreed) {
  engine_->StartAnswers();
  v1::EvictRequest request = Header();
  request.mutable_policy()->mutable_streaming()->set_sinks(2);
  grpc::ClientContext context;
  const grpc::Status status = stub_->Evict(&context, request, &response_);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.cut(), kCut);
  EXPECT_EQ(response_.freed_blocks(), 3);
  EXPECT_THAT(response_.kept_entries(), ElementsAre(1, 1, 1, 1));
}

TEST_F(EvictionServiceTest, EvictRefusesMistakes) {
  const auto refused = [this](const v1::EvictRequest& request,
                              grpc::StatusCode code, const std::string& text) {
    grpc::ClientContext context;
    EXPECT_THAT(stub_->Evict(&context, request, &response_),
                GrpcError(code, text));
  };
  refused(Header(), grpc::INVALID_ARGUMENT, "EvictByScores");
  v1::EvictRequest request = Header();
  request.mutable_policy()->mutable_streaming();
  request.set_request_id("unknown");
  refused(request, grpc::NOT_FOUND, "request_id");
  request.set_request_id("r");
  request.set_cut(-1);
  refused(request, grpc::INVALID_ARGUMENT, "cut");
  request.set_cut(kCut);
  request.add_budgets(3);
  refused(request, grpc::INVALID_ARGUMENT, "budgets");
  request.mutable_policy()->mutable_snapkv()->set_window(32);
  request.mutable_policy()->mutable_snapkv()->set_kernel(4);
  request.clear_budgets();
  refused(request, grpc::INVALID_ARGUMENT, "kernel");
}

TEST_F(EvictionServiceTest, ScoresReachTheEngine) {
  std::thread reader([this] {
    v1::StepPlan plan;
    while (engine_->ReadPlan(&plan) && plan.evictions().empty()) {
      engine_->Answer(plan);
    }
    ASSERT_EQ(plan.evictions_size(), 1);
    ASSERT_EQ(plan.evictions(0).scores_size(), kScores);
    EXPECT_EQ(plan.evictions(0).scores(kScores - 1), kScores - 11);
    EXPECT_TRUE(plan.evictions(0).policy().has_external_scores());
    engine_->Answer(plan);
    engine_->AnswerAll();
  });
  const std::vector<v1::EvictByScoresRequest> messages = {
      First(Header()), Scores(10), Scores(kScores - 10)};
  // Twice: the first call has given its bytes back.
  const grpc::Status first = Upload(messages);
  EXPECT_TRUE(first.ok()) << first.error_message();
  EXPECT_TRUE(WaitUntil([&] { return Upload(messages).ok(); }));
  EXPECT_THAT(response_.kept_entries(), ElementsAre(1, 1, 1, 1));
  engine_->Break();
  reader.join();
}

TEST_F(EvictionServiceTest, CountsScores) {
  const auto refused = GrpcError(grpc::INVALID_ARGUMENT,
                                 "expected layers x heads x cut = 64 values");
  EXPECT_THAT(Upload({First(Header()), Scores(kScores - 1)}), refused);
  EXPECT_THAT(Upload({First(Header()), Scores(kScores), Scores(1)}), refused);
  EXPECT_THAT(Upload({First(Header())}), refused);
}

TEST_F(EvictionServiceTest, LimitsScores) {
  v1::EvictRequest header = Header();
  for (const int32_t cut : {2 * kCut, 2147483647}) {
    header.set_cut(cut);
    EXPECT_THAT(Upload({First(header)}),
                GrpcError(grpc::RESOURCE_EXHAUSTED, "scores"));
  }
  EXPECT_THAT(Upload({First(Header()), Scores((1 << 18) + 1)}),
              GrpcError(grpc::INVALID_ARGUMENT, "262144 in a message"));
}

TEST_F(EvictionServiceTest, TakesOneHeaderAndItFirst) {
  const auto no_header = GrpcError(grpc::INVALID_ARGUMENT, "header");
  EXPECT_THAT(Upload({}), no_header);
  EXPECT_THAT(Upload({Scores(kScores)}), no_header);
  EXPECT_THAT(Upload({First(Header()), First(Header())}), no_header);
  v1::EvictRequest header = Header();
  header.mutable_policy()->mutable_streaming();
  EXPECT_THAT(Upload({First(header)}),
              GrpcError(grpc::INVALID_ARGUMENT, "external_scores"));
  header = Header();
  header.set_cut(0);
  EXPECT_THAT(Upload({First(header)}),
              GrpcError(grpc::INVALID_ARGUMENT, "cut"));
  header = Header();
  header.set_request_id("unknown");
  EXPECT_THAT(Upload({First(header), Scores(kScores)}),
              GrpcError(grpc::NOT_FOUND, "request_id"));
}

TEST_F(EvictionServiceTest, MistakesAreKnownBeforeThereAreScores) {
  v1::EvictRequest header = Header();
  header.set_request_id("unknown");
  grpc::ClientContext context;
  const auto writer = stub_->EvictByScores(&context, &response_);
  writer->Write(First(header));
  EXPECT_EQ(writer->Finish().error_code(), grpc::NOT_FOUND);
}

TEST_F(EvictionServiceTest, ACancelledCallEvictsNothing) {
  grpc::ClientContext context;
  const auto writer = stub_->EvictByScores(&context, &response_);
  ASSERT_TRUE(writer->Write(First(Header())));
  ASSERT_TRUE(writer->Write(Scores(kScores)));
  context.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::CANCELLED);
  // Without a step, only a call that has ended leaves room for another.
  EXPECT_TRUE(WaitUntil([this] {
    return Upload({First(Header())}).error_code() == grpc::INVALID_ARGUMENT;
  }));
  engine_->StartAnswers();
  const grpc::Status status = Upload({First(Header()), Scores(kScores)});
  EXPECT_TRUE(status.ok()) << status.error_message();
  engine_->Break();
  engine_->JoinAnswers();
  EXPECT_EQ(engine_->num_evictions, 1);
}

class StalledUploadTest : public EvictionServiceTest {
 protected:
  ServerOptions Options() const override {
    ServerOptions options = EvictionServiceTest::Options();
    options.score_timeout_s = 0.05;
    return options;
  }
};

TEST_F(StalledUploadTest, ScoresThatDoNotComeLoseTheirRoom) {
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    const auto writer = stub_->EvictByScores(&context, &response_);
    ASSERT_TRUE(writer->Write(First(Header())));
    writer->Write(Scores(3));
    EXPECT_THAT(writer->Finish(),
                GrpcError(grpc::DEADLINE_EXCEEDED,
                          "expected all 64 within 50ms, got "));
  }
}

TEST_F(EvictionServiceTest, EndOfTheRequestAborts) {
  v1::EvictRequest request = Header();
  request.mutable_policy()->mutable_streaming();
  grpc::Status status;
  std::thread caller([&] {
    grpc::ClientContext context;
    status = stub_->Evict(&context, request, &response_);
  });
  v1::StepPlan plan;
  while (engine_->ReadPlan(&plan) && plan.evictions().empty()) {
    engine_->Answer(plan);
  }
  EXPECT_TRUE(frontend_->Cancel("r").ok());
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::ABORTED);
}

}  // namespace
}  // namespace blockmgr
