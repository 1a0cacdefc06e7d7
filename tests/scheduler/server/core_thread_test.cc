#include "scheduler/server/core_thread.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/fake_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

CoreThreadOptions Options(int32_t queue_capacity, int32_t spin_us) {
  CoreThreadOptions options;
  options.core.epoch = 5;
  options.queue_capacity = queue_capacity;
  options.spin_us = spin_us;
  return options;
}

// Passes do not end by time, however slow the machine is.
CoreThreadOptions UntimedOptions(int32_t queue_capacity) {
  CoreThreadOptions options = Options(queue_capacity, 0);
  options.max_pass_s = std::numeric_limits<double>::infinity();
  return options;
}

// Counts finished requests of one client.
struct CountingTokens : TokenSink {
  bool Deliver(std::span<const TokenItem> items) override {
    for (const TokenItem& item : items) {
      if (item.finish != nullptr) num_finished.fetch_add(1);
    }
    return true;
  }
  void Close(const absl::Status& /*status*/) override {}

  std::atomic<int> num_finished{0};
};

// Answers plans from a thread of its own, as a stream's reader does.
class AnsweringEngine : public EngineSink,
                        public std::enable_shared_from_this<AnsweringEngine> {
 public:
  explicit AnsweringEngine(CoreThread* core)
      : core_(core), thread_([this] { Run(); }) {}
  ~AnsweringEngine() override { StopAnswering(); }

  void SendPlan(const StepPlan& plan) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    plans_.push_back(plan);
    wake_.notify_all();
  }
  void ReadNext() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    may_post_ = true;
    wake_.notify_all();
  }
  void Close(const absl::Status& /*status*/) override {}

  void StopAnswering() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
      wake_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock,
                 [this] { return stopped_ || (may_post_ && !plans_.empty()); });
      if (stopped_) return;
      may_post_ = false;
      result_.id = plans_.front().id;
      result_.sampled.assign(plans_.front().slots.size(), 3);
      plans_.pop_front();
      lock.unlock();
      core_->Post(EngineResult{shared_from_this(), &result_});
      lock.lock();
    }
  }

  CoreThread* const core_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<StepPlan> plans_;
  bool may_post_ = true;
  bool stopped_ = false;
  StepResult result_;
  std::thread thread_;
};

// Posts the command that `make` makes of a reply, and waits for that.
template <typename Result, typename Make>
Result Ask(CoreThread* core, Make make) {
  std::promise<Result> reply;
  core->Post(
      make([&reply](Result result) { reply.set_value(std::move(result)); }));
  return reply.get_future().get();
}

void AttachEngineTo(CoreThread* core, const std::shared_ptr<EngineSink>& sink) {
  const auto attachment = Ask<absl::StatusOr<Attachment>>(core, [](auto reply) {
    return AttachEngine{SmallLayout(), "test", std::move(reply)};
  });
  ASSERT_OK(attachment);
  EXPECT_OK(Ask<absl::Status>(core, [&](auto reply) {
    return OpenSteps{attachment->epoch, attachment->session, sink,
                     std::move(reply)};
  }));
}

std::shared_ptr<AnsweringEngine> AttachEngineTo(CoreThread* core) {
  auto engine = std::make_shared<AnsweringEngine>(core);
  AttachEngineTo(core, engine);
  return engine;
}

std::shared_ptr<CountingTokens> OpenStream(CoreThread* core,
                                           const std::string& session) {
  auto tokens = std::make_shared<CountingTokens>();
  EXPECT_OK(Ask<absl::Status>(core, [&](auto reply) {
    return OpenClient{session, tokens, std::move(reply)};
  }));
  return tokens;
}

SubmitCommand MakeSubmit(const std::string& session, const std::string& id,
                         StatusReply done) {
  Request request;
  request.id = id;
  request.prompt = {1};
  request.max_tokens = 2;
  return SubmitCommand{session, std::move(request), std::move(done)};
}

void RunManyProducers(int32_t queue_capacity, int32_t spin_us) {
  constexpr int kProducers = 4;
  constexpr int kRequests = 500;
  CoreThread core(Options(queue_capacity, spin_us), FakeScheduler::Make);
  const auto engine = AttachEngineTo(&core);
  std::vector<std::shared_ptr<CountingTokens>> streams;
  streams.reserve(kProducers);
  for (int p = 0; p < kProducers; ++p) {
    streams.push_back(OpenStream(&core, absl::StrCat("client", p)));
  }
  std::atomic<int> accepted{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> producers;
  producers.reserve(kProducers);
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int r = 0; r < kRequests; ++r) {
        core.Post(MakeSubmit(
            absl::StrCat("client", p), absl::StrCat(p, "-", r),
            [&accepted, &refused](const absl::Status& status) {
              EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status))
                  << status;
              (status.ok() ? accepted : refused).fetch_add(1);
            }));
      }
    });
  }
  for (std::thread& producer : producers) producer.join();
  // A Drain that goes round a full queue would overtake submissions.
  while (accepted + refused < kProducers * kRequests) {
    std::this_thread::yield();
  }
  EXPECT_OK(Ask<absl::Status>(
      &core, [](auto reply) { return Drain{std::move(reply)}; }));
  core.Stop();
  EXPECT_EQ(accepted + refused, kProducers * kRequests);
  int finished = 0;
  for (const auto& stream : streams) finished += stream->num_finished;
  EXPECT_EQ(finished, accepted);
  engine->StopAnswering();
}

TEST(CoreThreadTest, AnswersManyProducersOnceEach) {
  RunManyProducers(4096, 50);
}

TEST(CoreThreadTest, LosesNothingWhenTheQueueIsTiny) { RunManyProducers(2, 0); }

// Asks when the version has changed, and else never.
TEST(CoreThreadTest, AReaderOfThePrefixCacheMissesNothing) {
  constexpr int32_t kRequests = 60;
  CoreThread core(Options(4096, 0), FakeScheduler::Make);
  const auto engine = AttachEngineTo(&core);
  const auto tokens = OpenStream(&core, "client");
  std::thread frontend([&core] {
    for (int32_t i = 0; i < kRequests; ++i) {
      SubmitCommand submit =
          MakeSubmit("client", absl::StrCat(i),
                     [](const absl::Status& status) { EXPECT_OK(status); });
      submit.request.prompt.assign(16, i);
      core.Post(std::move(submit));
    }
  });
  PrefixCacheCursor cursor;
  int32_t num_blocks = 0;
  bool current = false;
  uint64_t version = 0;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (num_blocks < kRequests &&
         std::chrono::steady_clock::now() < deadline) {
    if (current && core.prefix_cache_version() == version) {
      std::this_thread::yield();
      continue;
    }
    version = core.prefix_cache_version();
    using Answer = absl::StatusOr<PrefixCacheReading>;
    ASSERT_OK_AND_ASSIGN(
        const PrefixCacheReading reading, Ask<Answer>(&core, [&](auto reply) {
          return ReadPrefixCache{cursor, 7, 7 * 16, std::move(reply)};
        }));
    cursor = reading.cursor;
    current = reading.delta.current;
    num_blocks += static_cast<int32_t>(reading.delta.blocks.size());
  }
  EXPECT_EQ(num_blocks, kRequests);
  frontend.join();
  core.Stop();
  engine->StopAnswering();
}

// Holds the core thread inside a reply until released.
class Obstacle {
 public:
  explicit Obstacle(CoreThread* core) {
    // The reply owns its ends: it may outlive the obstacle by a moment.
    auto entered = std::make_shared<std::promise<void>>();
    core->Post(
        GetStats{false, [entered, released = released_.get_future().share()](
                            const absl::StatusOr<CoreStats>&) {
                   entered->set_value();
                   released.wait();
                 }});
    entered->get_future().wait();
  }
  void Release() { released_.set_value(); }

 private:
  std::promise<void> released_;
};

TEST(CoreThreadTest, FullQueueRefusesAtOnceAndOnlyWhatIsTooMuch) {
  CoreThread core(Options(3, 0), FakeScheduler::Make);
  Obstacle obstacle(&core);
  std::atomic<int> answered{0};
  std::vector<absl::Status> replies(5, absl::UnknownError("no reply"));
  for (absl::Status& reply : replies) {
    core.Post(CancelCommand{"r", [&reply, &answered](absl::Status status) {
                              reply = std::move(status);
                              answered.fetch_add(1);
                            }});
  }
  EXPECT_EQ(answered, 2);  // the thread is held: these two were refused here
  EXPECT_THAT(replies[3], StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(replies[4], StatusIs(absl::StatusCode::kResourceExhausted));
  // An engine tries again only if its message is not what is too large.
  absl::StatusOr<Attachment> attached = absl::UnknownError("no reply");
  core.Post(AttachEngine{SmallLayout(), "test",
                         [&attached](absl::StatusOr<Attachment> reply) {
                           attached = std::move(reply);
                         }});
  EXPECT_THAT(attached, StatusIs(absl::StatusCode::kUnavailable));
  std::promise<absl::Status> drained;  // goes round the full queue
  core.Post(
      Drain{[&drained](absl::Status s) { drained.set_value(std::move(s)); }});
  obstacle.Release();
  EXPECT_OK(drained.get_future().get());
  core.Stop();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(replies[i], StatusIs(absl::StatusCode::kNotFound));
  }
}

// Counts the sequences of each plan.
struct CountingEngine : EngineSink {
  void SendPlan(const StepPlan& plan) override {
    const std::lock_guard<std::mutex> lock(mutex);
    counts.push_back(plan.slots.size());
  }
  void ReadNext() override {}
  void Close(const absl::Status& /*status*/) override {}

  std::mutex mutex;
  std::vector<size_t> counts;
};

// Returns the sequences of each plan, when three commands that `make` makes of
// a number and a reply are in the queue before the first is handled. The engine
// answers none of the two plans that it may have.
template <typename Make>
std::vector<size_t> PlansOfThree(const CoreThreadOptions& options, Make make) {
  CoreThread core(options, FakeScheduler::Make);
  const auto engine = std::make_shared<CountingEngine>();
  AttachEngineTo(&core, engine);
  const auto tokens = OpenStream(&core, "s");
  Obstacle obstacle(&core);
  std::promise<absl::Status> last;
  for (int i = 0; i < 3; ++i) {
    core.Post(make(absl::StrCat(i), [i, &last](absl::Status status) {
      EXPECT_OK(status);
      if (i == 2) last.set_value(std::move(status));
    }));
  }
  obstacle.Release();
  EXPECT_OK(last.get_future().get());
  core.Stop();
  const std::lock_guard<std::mutex> lock(engine->mutex);
  return engine->counts;
}

TEST(CoreThreadTest, AnAnswerOfACallCountsAsACommandOfItsPass) {
  const auto generate = [](const std::string& id, StatusReply done) {
    Request request;
    request.id = id;
    request.prompt = {1};
    return GenerateCommand{id, std::make_shared<CountingTokens>(), request, 128,
                           std::move(done)};
  };
  EXPECT_EQ(PlansOfThree(UntimedOptions(16), generate),
            (std::vector<size_t>{256, 128}));
}

TEST(CoreThreadTest, APassBeginsNoCommandAfterItsTime) {
  const auto submit = [](const std::string& id, StatusReply done) {
    return MakeSubmit("s", id, std::move(done));
  };
  EXPECT_EQ(PlansOfThree(UntimedOptions(16), submit), (std::vector<size_t>{3}));
  CoreThreadOptions options = Options(16, 0);
  options.max_pass_s = 0;
  EXPECT_EQ(PlansOfThree(options, submit), (std::vector<size_t>{1, 1}));
}

TEST(CoreThreadTest, ProbeTellsAStuckThread) {
  CoreThread core(Options(16, 0), FakeScheduler::Make);
  EXPECT_TRUE(core.Probe());
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!core.Probe()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  Obstacle obstacle(&core);
  core.Probe();
  EXPECT_FALSE(core.Probe());
  obstacle.Release();
}

TEST(CoreThreadTest, EveryCommandIsAnsweredAcrossStop) {
  constexpr int kRounds = 50;
  constexpr int kProducers = 3;
  constexpr int kCommands = 40;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> answered{0};
    CoreThread core(Options(8, round % 2 == 0 ? 0 : 20), FakeScheduler::Make);
    std::atomic<int> ready{0};
    std::vector<std::thread> producers;
    producers.reserve(kProducers);
    for (int p = 0; p < kProducers; ++p) {
      producers.emplace_back([&core, &answered, &ready] {
        ready.fetch_add(1);
        for (int c = 0; c < kCommands; ++c) {
          core.Post(CancelCommand{"r", [&answered](const absl::Status& status) {
                                    EXPECT_FALSE(status.ok());
                                    answered.fetch_add(1);
                                  }});
        }
      });
    }
    while (ready < kProducers) std::this_thread::yield();
    core.Stop();
    for (std::thread& producer : producers) producer.join();
    EXPECT_EQ(answered, kProducers * kCommands);
  }
}

TEST(CoreThreadTest, StopAbortsWaitingReplies) {
  std::promise<absl::Status> drained;
  {
    CoreThread core(Options(16, 0), FakeScheduler::Make);
    const auto engine = AttachEngineTo(&core);
    engine->StopAnswering();
    const auto tokens = OpenStream(&core, "a");
    EXPECT_OK(Ask<absl::Status>(&core, [](auto reply) {
      return MakeSubmit("a", "r", std::move(reply));
    }));
    core.Post(
        Drain{[&drained](absl::Status s) { drained.set_value(std::move(s)); }});
  }
  EXPECT_THAT(drained.get_future().get(),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace blockmgr
