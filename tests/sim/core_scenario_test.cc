// What the simulator found in the daemon's core, as scripts of commands.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/server/core.h"
#include "tests/sim/audited_scheduler.h"
#include "tests/sim/scripted.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr::sim {
namespace {

class QuietClient : public TokenSink {
 public:
  bool Deliver(std::span<const TokenItem>) override { return true; }
  void Close(const absl::Status&) override {}
};

class QueueingEngine : public EngineSink {
 public:
  explicit QueueingEngine(CanaryEngine* canary) : canary_(canary) {}
  void SendPlan(const StepPlan& plan) override {
    EXPECT_TRUE(canary_->Enqueue(plan).ok());
    has_orders.push_back(!plan.evictions.empty());
  }
  void ReadNext() override {}
  void Close(const absl::Status& status) override {
    ADD_FAILURE() << status.ToString();
  }
  std::vector<bool> has_orders;  // of the plans so far

 private:
  CanaryEngine* const canary_;
};

// A core with one client and one engine, two steps in flight.
class CoreScenarioTest : public testing::Test {
 protected:
  CoreScenarioTest()
      : layout_(ScriptLayout(1, 24, 1, 1)),
        canary_(layout_, 8, {.seed = 5, .vocabulary = 1000}),
        engine_(std::make_shared<QueueingEngine>(&canary_)) {
    CoreOptions options;
    options.scheduler = ScriptOptions(2);
    core_ = std::make_unique<Core>(
        std::move(options),
        [this](const ModelLayout& layout, const SchedulerOptions& scheduler)
            -> absl::StatusOr<std::unique_ptr<Scheduler>> {
          return std::make_unique<AuditedScheduler>(layout, scheduler, true,
                                                    &report_);
        });
    AttachEngine attach;
    attach.layout = layout_;
    std::optional<Attachment> attachment;
    attach.done = [&](absl::StatusOr<Attachment> answer) {
      attachment = *answer;
    };
    Pass(std::move(attach));
    OpenSteps open;
    open.epoch = attachment->epoch;
    open.session = attachment->session;
    open.sink = engine_;
    open.done = ExpectOk();
    Pass(std::move(open));
    Pass(OpenClient{"client", std::make_shared<QuietClient>(), ExpectOk()});
  }
  ~CoreScenarioTest() override {
    core_.reset();
    EXPECT_EQ(report_.message(), "");
  }

  static StatusReply ExpectOk() {
    return
        [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  }
  void Handle(Command command) { core_->Handle(&command); }
  void Pass(Command command) {
    core_->BeginPass(0);
    Handle(std::move(command));
    core_->EndPass();
  }
  void Submit(const std::string& name, int32_t num_prompt, int32_t max_tokens,
              int32_t topic) {
    Pass(SubmitCommand{"client",
                       MakeRequest(name, num_prompt, max_tokens, topic),
                       ExpectOk()});
  }
  // Its answer is put down under the next index of `evicted_`.
  Command Evict(const std::string& name, int32_t tokens) {
    EvictCommand command;
    command.request_id = name;
    command.eviction.policy = Eviction("after", 1).policy;
    command.eviction.target = Eviction("after", 1).target;
    command.eviction.target.tokens = tokens;
    const size_t index = evicted_.size();
    evicted_.emplace_back();
    command.done = [this, index](const absl::StatusOr<EvictionEffect>& effect) {
      EXPECT_FALSE(evicted_[index].has_value()) << "answered twice";
      evicted_[index] = effect.status();
    };
    return command;
  }
  // The engine's answer to its oldest step; lives until the next one.
  Command NextAnswer() {
    absl::StatusOr<StepResult> result = canary_.Execute();
    EXPECT_TRUE(result.ok()) << result.status();
    result_ = *std::move(result);
    ++num_answers_;
    return EngineResult{engine_, &result_};
  }
  // Whether the next answer tells the outcome of an eviction.
  bool NextHasOrder() const {
    return canary_.num_queued() > 0 && engine_->has_orders[num_answers_];
  }

  Report report_;
  const ModelLayout layout_;
  CanaryEngine canary_;
  std::shared_ptr<QueueingEngine> engine_;
  StepResult result_;
  size_t num_answers_ = 0;
  std::unique_ptr<Core> core_;
  std::vector<std::optional<absl::Status>> evicted_;
};

// An eviction ends and the next one is ordered before the pass is over.
TEST_F(CoreScenarioTest, EvictsAgainInThePassOfTheAnswer) {
  Submit("a", 8, 12, 1);
  Pass(NextAnswer());
  Pass(Evict("a", 2));
  while (canary_.num_queued() > 0 && !NextHasOrder()) Pass(NextAnswer());
  ASSERT_TRUE(NextHasOrder());
  core_->BeginPass(0);
  Handle(NextAnswer());
  Handle(Evict("a", 1));
  core_->EndPass();
  ASSERT_TRUE(evicted_[0].has_value());
  EXPECT_TRUE(evicted_[0]->ok()) << *evicted_[0];
  while (canary_.num_queued() > 0) Pass(NextAnswer());
  EXPECT_TRUE(evicted_[1].has_value());
}

}  // namespace
}  // namespace blockmgr::sim
