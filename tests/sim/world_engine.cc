#include "tests/sim/world_engine.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

namespace blockmgr::sim {

// StepSink is the engine's end of a step stream, which the core writes to.
class WorldEngine::StepSink : public EngineSink,
                              public std::enable_shared_from_this<StepSink> {
 public:
  explicit StepSink(WorldEngine* owner) : owner_(*owner) {}

  void SendPlan(const StepPlan& plan) override {
    owner_.ReceivePlan(shared_from_this(), plan);
  }
  void ReadNext() override {
    if (wanted_) owner_.report_->Fail("an answer is wanted twice");
    wanted_ = true;
    owner_.core_.Send(0, [self = shared_from_this()] { self->PassOn(); });
  }
  void Close(const absl::Status& status) override {
    owner_.report_->Note("  step stream closed: ", status.ToString());
    owner_.CutOff(this);
  }

  // Takes an answer that has crossed the wire. The core gets it when it wants
  // the next one.
  void Receive(StepResult result) {
    arrived_.push_back(std::move(result));
    PassOn();
  }

  Transport::Channel to_engine = 0;
  Transport::Channel to_core = 0;
  bool alive = true;  // whether the engine behind the sink lives
  // Whether the stream is broken, and nobody has noticed yet.
  bool loses_plans = false;

 private:
  void PassOn() {
    if (!wanted_ || arrived_.empty()) return;
    wanted_ = false;
    current_ = std::move(arrived_.front());
    arrived_.pop_front();
    owner_.core_.Post(EngineResult{shared_from_this(), &current_});
  }

  WorldEngine& owner_;
  bool wanted_ = true;
  std::deque<StepResult> arrived_;
  StepResult current_;  // the core's until ReadNext
};

WorldEngine::WorldEngine(WorldCore* core)
    : core_(*core),
      options_(core->options()),
      report_(core->report()),
      random_(core->random()),
      canary_(options_.Layout(), options_.max_num_seqs, options_.Canary()),
      spoiler_(options_, &random_) {}

void WorldEngine::CheckBusy() const {
  const AuditedScheduler* const scheduler = core_.scheduler();
  if (scheduler == nullptr || sink_ == nullptr || !sink_->alive) return;
  if (scheduler->num_steps_in_flight() == 0 &&
      scheduler->has_unfinished_requests()) {
    report_->Fail(
        "an engine is attached, requests wait, and no step is issued");
  }
}

void WorldEngine::SpoilAnswer() {
  if (random_.OneIn(4)) {
    wire_fault_ = static_cast<WireFault>(random_.Between(1, 3));
  } else {
    spoiler_.Draw();
  }
}

void WorldEngine::Heal() {
  spoiler_.Stop();
  wire_fault_ = WireFault::kNone;
}

void WorldEngine::Start(int64_t delay) {
  const uint64_t life = ++life_;
  sink_ = nullptr;
  canary_.Restart();
  core_.Send(delay, [this, life] { Attach(life); });
}

void WorldEngine::Attach(uint64_t life) {
  if (life != life_) return;
  const auto reply = core_.Expect("AttachEngine");
  AttachEngine command;
  command.layout = options_.Layout();
  command.name = "canary";
  command.abilities = options_.Scheduler().engine;
  command.done = [this, life, reply](absl::StatusOr<Attachment> attachment) {
    reply->Came(attachment.status());
    // The core may not know yet that the life before is over.
    const int64_t later = 1 + core_.Delay(5);
    if (!attachment.ok()) {
      // The core has closed at the end of the run. Any other refusal of this
      // kind is reported below.
      if (is_quiescing_ && absl::IsUnavailable(attachment.status())) return;
      if (!absl::IsAlreadyExists(attachment.status())) {
        report_->Fail("AttachEngine: ", attachment.status().ToString());
      }
      core_.Send(later, [this, life] { Attach(life); });
      return;
    }
    last_attachment_ = *attachment;
    core_.Send(core_.Delay(2), [this, life, attachment = *attachment] {
      OpenSteps(life, attachment);
    });
  };
  core_.Post(std::move(command));
}

void WorldEngine::OpenSteps(uint64_t life, const Attachment& attachment) {
  if (life != life_) return;
  const auto sink = std::make_shared<StepSink>(this);
  const auto reply = core_.Expect("OpenSteps");
  // Plans come as soon as the pass ends, with or without the answer.
  blockmgr::OpenSteps command;
  command.epoch = attachment.epoch;
  command.session = attachment.session;
  command.sink = sink;
  command.done = [this, life, reply, sink](const absl::Status& status) {
    reply->Came(status);
    if (status.ok()) {
      sink_ = sink;
      return;
    }
    // A stranger may have attached in between.
    if (!absl::IsFailedPrecondition(status)) {
      report_->Fail("OpenSteps: ", status.ToString());
    }
    core_.Send(1 + core_.Delay(5), [this, life] { Attach(life); });
  };
  core_.Post(std::move(command));
}

void WorldEngine::Crash() {
  if (sink_ == nullptr) return;
  const std::shared_ptr<StepSink> sink = sink_;
  sink->alive = false;
  // Answers on their way still arrive, some of them after the news.
  const auto report = [this, sink] { core_.Post(EngineLost{sink}); };
  core_.Send(core_.Delay(8), report);
  if (random_.OneIn(3)) core_.Send(core_.Delay(16), report);
  Start(core_.Delay(10));
}

void WorldEngine::CutOff(StepSink* sink) {
  if (!sink->alive) return;
  sink->alive = false;
  Start(1 + core_.Delay(5));
}

void WorldEngine::BreakLater(const std::shared_ptr<StepSink>& sink) {
  core_.Send(20 + core_.Delay(20), [this, sink] {
    if (!sink->alive) return;
    CutOff(sink.get());
    core_.Post(EngineLost{sink});
  });
}

void WorldEngine::HoldPlans() {
  if (sink_ == nullptr || !sink_->alive) return;
  if (random_.OneIn(3)) {
    // The plans before still run, and are answered.
    sink_->loses_plans = true;
    return BreakLater(sink_);
  }
  ++report_->counts().held_streams;
  sink_->to_engine =
      std::max(sink_->to_engine, core_.now() + random_.Between(10, 40));
}

void WorldEngine::StaleOpen() {
  core_.Call([this] {
    const auto reply = core_.Expect("OpenSteps");
    blockmgr::OpenSteps command;
    command.epoch = last_attachment_.epoch;
    command.session = last_attachment_.session;
    if (random_.OneIn(2)) {
      ++command.epoch;
    } else {
      command.session -= 1;
    }
    command.sink = std::make_shared<StepSink>(this);
    command.done = [this, reply](const absl::Status& status) {
      reply->Came(status);
      if (!absl::IsFailedPrecondition(status)) {
        report_->Fail("a stale OpenSteps: ", status.ToString());
      }
    };
    core_.Post(std::move(command));
  });
}

void WorldEngine::WrongAttach() {
  core_.Call([this] {
    // A stranger is welcome when no request is left.
    const AuditedScheduler* const scheduler = core_.scheduler();
    if (scheduler == nullptr || !scheduler->has_unfinished_requests()) return;
    const auto reply = core_.Expect("AttachEngine");
    AttachEngine command;
    command.layout = options_.Layout();
    ++command.layout.num_blocks;
    command.name = "stranger";
    command.done = [this, reply](absl::StatusOr<Attachment> attachment) {
      reply->Came(attachment.status());
      // All requests may have ended earlier in this pass.
      if (attachment.ok() && core_.scheduler()->has_unfinished_requests()) {
        report_->Fail("a stranger was attached");
      }
      if (attachment.ok()) last_attachment_ = *attachment;
    };
    core_.Post(std::move(command));
  });
}

void WorldEngine::ReceivePlan(const std::shared_ptr<StepSink>& sink,
                              const StepPlan& plan) {
  if (!sink->alive) return;
  if (sink->loses_plans) {
    ++report_->counts().lost_plans;
    return;
  }
  const absl::Status status = canary_.Enqueue(plan);
  if (!status.ok()) report_->Fail(status.ToString());
  const int64_t delay = core_.Delay(options_.engine_delay);
  core_.SendInOrder(&sink->to_engine, delay,
                    [this, sink] { ExecuteNext(sink); });
}

void WorldEngine::ExecuteNext(const std::shared_ptr<StepSink>& sink) {
  if (!sink->alive || !report_->ok()) return;
  const std::vector<EvictionOrder> orders = canary_.next().evictions;
  absl::StatusOr<StepResult> result = canary_.Execute();
  if (!result.ok()) return report_->Fail(result.status().ToString());
  for (const int32_t token : result->sampled) report_->Mix(token);
  for (const int32_t token : result->accepted) report_->Mix(token);
  spoiler_.Spoil(orders, &*result);
  SendAnswer(sink, *std::move(result));
}

void WorldEngine::SendAnswer(const std::shared_ptr<StepSink>& sink,
                             StepResult result) {
  const int64_t delay = core_.Delay(options_.result_delay);
  const Transport::Delivery receive = [sink, result = std::move(result)] {
    sink->Receive(result);
  };
  WireFault fault = std::exchange(wire_fault_, WireFault::kNone);
  if (core_.has_faults() && random_.OneIn(options_.answer_fault_one_in)) {
    fault = static_cast<WireFault>(random_.Between(1, 3));
  }
  if (fault != WireFault::kNone) {
    ++report_->counts().wire_faults;
    report_->Note("  wire fault ", static_cast<int>(fault));
  }
  switch (fault) {
    case WireFault::kLost:
      // If no later answer shows the loss, the connection does in the end.
      return BreakLater(sink);
    case WireFault::kOvertaken:
      core_.Send(delay + random_.Between(1, 10), receive);
      return;
    case WireFault::kTwice:
      core_.SendInOrder(&sink->to_core, delay, receive);
      break;
    case WireFault::kNone:
      break;
  }
  core_.SendInOrder(&sink->to_core, delay, receive);
}

void WorldEngine::LoseBlocks() {
  std::vector<BlockId> blocks;
  for (int32_t i = random_.Between(1, 3); i > 0; --i) {
    blocks.push_back(BlockId{random_.Between(1, options_.num_blocks - 1)});
  }
  canary_.LoseBlocks(blocks);
  if (options_.num_host_blocks == 0 || !random_.OneIn(2)) return;
  canary_.LoseHostBlocks(
      {HostBlockId{random_.Between(0, options_.num_host_blocks - 1)}});
}

}  // namespace blockmgr::sim
