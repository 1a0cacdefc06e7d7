#include "engine/reference/client.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ModelLayout kLayout{.num_layers = 1,
                              .num_heads = 1,
                              .num_q_heads = 1,
                              .head_dim = 16,
                              .page_size = 16,
                              .dtype = DType::kFloat32,
                              .num_blocks = 8};

// A daemon that sends each stream `num_plans` plans at once, collects the
// answers, and ends the stream, or leaves it open.
class FakeDaemon final : public v1::EngineService::Service {
 public:
  explicit FakeDaemon(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeDaemon() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  grpc::Status Attach(grpc::ServerContext*, const v1::AttachRequest* request,
                      v1::AttachResponse* response) override {
    if (refusals-- > 0) return refusal;
    if (request->layout().num_blocks() != kLayout.num_blocks) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "num_blocks differs"};
    }
    response->set_epoch(11);
    response->set_session(++num_sessions);
    response->set_max_steps_in_flight(2);
    return grpc::Status::OK;
  }

  grpc::Status RunSteps(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::StepPlan, v1::EngineMessage>* stream)
      override {
    v1::EngineMessage message;
    if (!stream->Read(&message) || message.has_result() ||
        message.epoch() != 11 || message.session() != num_sessions) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "bad first message"};
    }
    for (uint64_t step = 1; step <= 3; ++step) {
      v1::StepPlan plan;
      plan.set_step(step);
      if (bad_policy) plan.add_evictions();
      stream->Write(plan);
    }
    for (int i = 0; i < 3 && stream->Read(&message); ++i) {
      answered.push_back(message.result().step());
    }
    while (hold && stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

  std::atomic<int> refusals = 0;
  grpc::Status refusal{grpc::StatusCode::ALREADY_EXISTS,
                       "another engine is attached"};
  std::atomic<uint64_t> num_sessions = 0;
  bool hold = false;
  bool bad_policy = false;
  std::vector<uint64_t> answered;  // of the streams that have ended

 private:
  std::unique_ptr<grpc::Server> server_;
};

class EngineClientTest : public ::testing::Test {
 protected:
  EngineClientTest() {
    std::string folder =
        (std::filesystem::temp_directory_path() / "engine_test.XXXXXX")
            .string();
    folder_ = mkdtemp(folder.data());
    options_.address = "unix:" + folder_ + "/daemon.sock";
    options_.first_backoff = std::chrono::milliseconds(5);
    options_.last_backoff = std::chrono::milliseconds(20);
    handlers_.reset = [this] { ++num_resets_; };
    handlers_.run = [](const StepPlan& plan, StepResult* result) {
      result->id = plan.id;
      return absl::OkStatus();
    };
  }
  ~EngineClientTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  EngineClientOptions options_;
  EngineHandlers handlers_;
  int num_resets_ = 0;
};

TEST_F(EngineClientTest, AnswersPlansInOrderUntilTheDaemonEnds) {
  FakeDaemon daemon(options_.address);
  EngineClient client(options_);
  EXPECT_OK(client.Serve(kLayout, handlers_));
  EXPECT_THAT(daemon.answered, ElementsAre(1, 2, 3));
  EXPECT_EQ(num_resets_, 1);
}

TEST_F(EngineClientTest, WaitsForADaemonThatComesLater) {
  EngineClient client(options_);
  absl::Status status;
  std::thread serving([&] { status = client.Serve(kLayout, handlers_); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  FakeDaemon daemon(options_.address);
  serving.join();
  EXPECT_OK(status);
  EXPECT_THAT(daemon.answered, ElementsAre(1, 2, 3));
}

TEST_F(EngineClientTest, RetriesWhileAnotherEngineIsAttached) {
  FakeDaemon daemon(options_.address);
  daemon.refusals = 2;
  EngineClient client(options_);
  EXPECT_OK(client.Serve(kLayout, handlers_));
  EXPECT_LT(daemon.refusals, 0);
}

TEST_F(EngineClientTest, ReportsARefusalThatStays) {
  FakeDaemon daemon(options_.address);
  EngineClient client(options_);
  ModelLayout other = kLayout;
  other.num_blocks = 9;
  EXPECT_THAT(client.Serve(other, handlers_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("num_blocks differs")));
  EXPECT_EQ(num_resets_, 0);
}

TEST_F(EngineClientTest, DoesNotRepeatAMessageThatIsTooLarge) {
  FakeDaemon daemon(options_.address);
  daemon.refusals = 1;
  daemon.refusal = {grpc::StatusCode::RESOURCE_EXHAUSTED, "at most 8 bytes"};
  EngineClient client(options_);
  EXPECT_THAT(client.Serve(kLayout, handlers_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("at most 8 bytes")));
}

TEST_F(EngineClientTest, GivesUpAfterTheAttachTimeout) {
  options_.attach_timeout = std::chrono::milliseconds(50);
  EngineClient client(options_);
  EXPECT_THAT(client.Serve(kLayout, handlers_),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(EngineClientTest, ReattachesWithEmptyTablesWhenAskedTo) {
  FakeDaemon daemon(options_.address);
  options_.reconnect = true;
  EngineClient client(options_);
  handlers_.reset = [&] {
    if (++num_resets_ == 3) client.Stop();
  };
  EXPECT_OK(client.Serve(kLayout, handlers_));
  EXPECT_EQ(num_resets_, 3);
}

TEST_F(EngineClientTest, StopsWhileTheStreamIsIdle) {
  FakeDaemon daemon(options_.address);
  daemon.hold = true;
  EngineClient client(options_);
  handlers_.run = [&](const StepPlan& plan, StepResult* result) {
    result->id = plan.id;
    if (plan.id == StepId{3}) client.Stop();
    return absl::OkStatus();
  };
  EXPECT_OK(client.Serve(kLayout, handlers_));
}

TEST_F(EngineClientTest, StopsWhileAStepTakesItsTime) {
  FakeDaemon daemon(options_.address);
  daemon.hold = true;
  EngineClient client(options_);
  std::thread stopper;
  handlers_.run = [&](const StepPlan&, StepResult*) -> absl::Status {
    const auto now = std::chrono::steady_clock::now();
    EXPECT_TRUE(client.WaitUntil(now + std::chrono::milliseconds(1)));
    EXPECT_GE(std::chrono::steady_clock::now() - now,
              std::chrono::milliseconds(1));
    stopper = std::thread([&client] { client.Stop(); });
    EXPECT_FALSE(client.WaitUntil(now + std::chrono::hours(24)));
    return absl::CancelledError("stopped");
  };
  EXPECT_OK(client.Serve(kLayout, handlers_));
  stopper.join();
}

TEST_F(EngineClientTest, StopsWhileThereIsNoDaemon) {
  EngineClient client(options_);
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    client.Stop();
  });
  EXPECT_OK(client.Serve(kLayout, handlers_));
  stopper.join();
}

TEST_F(EngineClientTest, EndsWithTheEnginesOwnError) {
  FakeDaemon daemon(options_.address);
  daemon.hold = true;
  EngineClient client(options_);
  handlers_.run = [](const StepPlan&, StepResult*) {
    return absl::InvalidArgumentError("no such slot");
  };
  EXPECT_THAT(client.Serve(kLayout, handlers_), IsInvalid("no such slot"));
}

TEST_F(EngineClientTest, ThrowsOnWhatTheEngineThrows) {
  FakeDaemon daemon(options_.address);
  daemon.hold = true;
  options_.reconnect = true;
  EngineClient client(options_);
  handlers_.run = [](const StepPlan&, StepResult*) -> absl::Status {
    throw std::bad_alloc();
  };
  EXPECT_THROW((void)client.Serve(kLayout, handlers_), std::bad_alloc);
}

TEST_F(EngineClientTest, EndsWithAPlanThatCannotBeRead) {
  FakeDaemon daemon(options_.address);
  daemon.hold = true;
  daemon.bad_policy = true;
  EngineClient client(options_);
  EXPECT_THAT(client.Serve(kLayout, handlers_),
              IsInvalid("evictions[0]: policy: scorer"));
}

}  // namespace
}  // namespace blockmgr
