// Peers whose end overtakes their beginning: what opens a stream waits in the
// core's queue when that is full, and what ends one goes round it.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

// Holds the core thread in a look at how many requests run.
struct Hold {
  std::atomic<bool> wanted{false};
  std::atomic<bool> reached{false};
  std::atomic<bool> over{false};
};

class HeldScheduler final : public FakeScheduler {
 public:
  HeldScheduler(const ModelLayout& layout, const SchedulerOptions& options,
                Hold* hold)
      : FakeScheduler(layout, options), hold_(hold) {}

  int32_t num_running() const override {
    if (hold_->wanted.exchange(false)) {
      hold_->reached = true;
      while (!hold_->over) std::this_thread::yield();
    }
    return FakeScheduler::num_running();
  }

 private:
  Hold* const hold_;
};

class OvertakingTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.queue_capacity = 1;
    options.listen = "unix:" + folder_.path() + "/s.sock";
    ASSERT_OK_AND_ASSIGN(
        server_,
        Server::Start(
            options,
            [this](const ModelLayout& layout, const SchedulerOptions& scheduler)
                -> absl::StatusOr<std::unique_ptr<Scheduler>> {
              return std::make_unique<HeldScheduler>(layout, scheduler, &hold_);
            }));
  }

  void HoldCore() {
    hold_.wanted = true;
    stats_ = std::thread([this] {
      while (!IsAttached().has_value()) std::this_thread::yield();
    });
    ASSERT_TRUE(WaitUntil([this] { return hold_.reached.load(); }));
  }
  void ReleaseCore() {
    hold_.over = true;
    stats_.join();
  }
  // Others' threads bring their commands to the queue. Where they are slower
  // than that, nothing is overtaken, and the test shows nothing.
  static void LetThemPost() {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  // Empty: the queue was full.
  std::optional<bool> IsAttached() {
    const auto stub = v1::AdminService::NewStub(Connect(address()));
    grpc::ClientContext context;
    v1::GetStatsResponse response;
    const grpc::Status status =
        stub->GetStats(&context, v1::GetStatsRequest(), &response);
    if (!status.ok()) return std::nullopt;
    return response.engine_attached();
  }

  Hold hold_;
  std::thread stats_;
};

TEST_F(OvertakingTest, AnEngineThatHungUpBeforeItWasOpenedIsGone) {
  FakeEngine engine(address());
  ASSERT_TRUE(engine.Attach(SmallLayout()).ok());
  HoldCore();
  engine.OpenStream();
  LetThemPost();
  engine.Break();
  LetThemPost();
  ReleaseCore();
  EXPECT_TRUE(WaitUntil([this] { return IsAttached() == false; }));
  FakeEngine next(address());
  EXPECT_TRUE(WaitUntil([&] { return next.Attach(SmallLayout()).ok(); }));
}

TEST_F(OvertakingTest, AClientThatHungUpBeforeItWasOpenedIsGone) {
  // Not StartEngine: a question and the stream's beginning may each find that
  // the other one fills the queue.
  std::optional<FakeEngine> engine;
  ASSERT_TRUE(WaitUntil([&] {
    engine.emplace(address());
    if (!engine->Attach(SmallLayout()).ok()) return false;
    engine->OpenStream();
    LetThemPost();
    if (IsAttached() == true) return true;
    engine->Break();
    return false;
  }));
  HoldCore();
  const auto stub = v1::RequestService::NewStub(Connect(address()));
  v1::StreamTokensRequest request;
  request.set_client_session("a");
  v1::TokenBatch batch;
  {
    grpc::ClientContext context;
    const auto reader = stub->StreamTokens(&context, request);
    LetThemPost();
    context.TryCancel();
    while (reader->Read(&batch)) {
    }
    reader->Finish();
  }
  LetThemPost();
  ReleaseCore();
  // The session may be opened again.
  EXPECT_TRUE(WaitUntil([&] {
    grpc::ClientContext context;
    const auto reader = stub->StreamTokens(&context, request);
    const bool is_open = reader->Read(&batch);
    context.TryCancel();
    while (reader->Read(&batch)) {
    }
    reader->Finish();
    return is_open;
  }));
}

}  // namespace
}  // namespace blockmgr
