// How a daemon says that it is well, and how it ends.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/server/server.h"
#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

TEST_F(ServerTest, HealthFollowsTheEngineAndTheDrain) {
  const std::string service = "blockmgr.v1.RequestService";
  const auto channel = Connect(address());
  EXPECT_EQ(AskHealth(channel, ""), 1);
  EXPECT_EQ(AskHealth(channel, service), 2);
  auto engine = StartEngine();
  EXPECT_EQ(AskHealth(channel, service), 1);
  engine->Break();
  EXPECT_TRUE(WaitUntil([&] { return AskHealth(channel, service) == 2; }));
  server_->UpdateHealth();
  EXPECT_EQ(AskHealth(channel, ""), 1);
  server_->BeginDrain();
  EXPECT_EQ(AskHealth(channel, ""), 2);
}

// A Scheduler whose stats take until they are released.
class StuckScheduler : public FakeScheduler {
 public:
  using FakeScheduler::FakeScheduler;
  SchedulerStats stats() const override {
    if (is_stuck != nullptr) is_stuck->wait(true);
    return FakeScheduler::stats();
  }
  inline static std::atomic<bool>* is_stuck = nullptr;
};

TEST_F(ServerTest, HealthTellsACoreThatIsStuck) {
  const std::string service = "blockmgr.v1.RequestService";
  Start(ServerOptions(),
        [](const ModelLayout& layout, const SchedulerOptions& options) {
          return std::make_unique<StuckScheduler>(layout, options);
        });
  const auto engine = StartEngine();
  const auto channel = Connect(address());
  std::atomic<bool> is_stuck{true};
  StuckScheduler::is_stuck = &is_stuck;
  std::thread asks([this] { Stats(); });
  EXPECT_TRUE(WaitUpdating([&] { return AskHealth(channel, "") == 2; }));
  EXPECT_EQ(AskHealth(channel, service), 2);
  is_stuck = false;
  is_stuck.notify_all();
  EXPECT_TRUE(WaitUpdating([&] { return AskHealth(channel, "") == 1; }));
  EXPECT_EQ(AskHealth(channel, service), 1);
  asks.join();
  StuckScheduler::is_stuck = nullptr;
}

TEST_F(ServerTest, DrainWaitsForAClientThatReadsLate) {
  const auto engine = StartEngine();
  engine->token_data.assign(1000, 'x');
  engine->StartAnswers();
  FakeFrontend late(address(), "late");
  // 1 MB, far more than what is sent ahead of it.
  constexpr int kRequests = 10;
  constexpr int kTokens = 100;
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(late.Submit(absl::StrCat("r", i), kTokens).ok());
  }
  EXPECT_TRUE(WaitUntil([this] { return Stats().num_running() == 0; }));
  server_->BeginDrain();
  server_->UpdateHealth();
  Stats();
  EXPECT_FALSE(server_->drained());
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_EQ(late.ReadRequest(absl::StrCat("r", i)).tokens_size(), kTokens);
  }
  EXPECT_TRUE(WaitUpdating([&] { return server_->drained(); }));
}

TEST_F(ServerTest, DrainFinishesRequestsAndRefusesOthers) {
  const auto engine = StartEngine();
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("r", 3).ok());
  server_->BeginDrain();
  EXPECT_TRUE(WaitUntil([&] {
    return frontend.Submit("s", 3).error_code() == grpc::UNAVAILABLE;
  }));
  EXPECT_FALSE(server_->drained());
  engine->StartAnswers();
  EXPECT_TRUE(WaitUpdating([&] { return server_->drained(); }));
  EXPECT_EQ(frontend.ReadRequest("r").tokens_size(), 3);
  server_->Shutdown(std::chrono::milliseconds(1000));
  EXPECT_THAT(frontend.Drain(), GrpcError(grpc::UNAVAILABLE, "shutting down"));
  engine->JoinAnswers();
  EXPECT_THAT(engine->Finish(), GrpcError(grpc::UNAVAILABLE, "shutting down"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/s.sock"));
}

TEST_F(ServerTest, ShutdownDoesNotWaitForSilentPeers) {
  const auto engine = StartEngine();  // never answers
  FakeFrontend frontend(address(), "a");
  ASSERT_TRUE(frontend.Submit("r", 3).ok());
  const auto start = std::chrono::steady_clock::now();
  server_->Shutdown(std::chrono::minutes(5));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(4));
  EXPECT_EQ(frontend.ReadRequest("r").finish_reason(),
            v1::FINISH_REASON_CANCELLED);
}

}  // namespace
}  // namespace blockmgr
