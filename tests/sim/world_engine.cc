// The engine: its lives, its answers, and strangers that claim to be it.

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "tests/sim/world.h"
#include "tests/sim/world_sinks.h"

namespace blockmgr::sim {

void World::StepSink::SendPlan(const StepPlan& plan) {
  world_->ReceivePlan(shared_from_this(), plan);
}

void World::StepSink::ReadNext() {
  if (wanted_) world_->report_->Fail("an answer is wanted twice");
  wanted_ = true;
  world_->transport_.Send(0, [self = shared_from_this()] { self->PassOn(); });
}

void World::StepSink::Close(const absl::Status& status) {
  world_->report_->Note("  step stream closed: ", status.ToString());
  world_->EngineIsCutOff(this);
}

void World::StepSink::Receive(StepResult result) {
  arrived_.push_back(std::move(result));
  PassOn();
}

void World::StepSink::PassOn() {
  if (!wanted_ || arrived_.empty()) return;
  wanted_ = false;
  current_ = std::move(arrived_.front());
  arrived_.pop_front();
  world_->Post(EngineResult{shared_from_this(), &current_});
}

void World::StartEngine(int64_t delay) {
  const uint64_t life = ++engine_life_;
  sink_ = nullptr;
  canary_.Restart();
  transport_.Send(delay, [this, life] { Attach(life); });
}

void World::Attach(uint64_t life) {
  if (life != engine_life_) return;
  const auto reply = Expect("AttachEngine");
  AttachEngine command;
  command.layout = options_.Layout();
  command.name = "canary";
  command.abilities = options_.Scheduler().engine;
  command.done = [this, life, reply](absl::StatusOr<Attachment> attachment) {
    reply->Came(attachment.status());
    // The core may not know yet that the life before is over.
    const int64_t later = 1 + Delay(5);
    if (!attachment.ok()) {
      // The end of the run; else it would be reported below.
      if (quiescing_ && absl::IsUnavailable(attachment.status())) return;
      if (!absl::IsAlreadyExists(attachment.status())) {
        report_->Fail("AttachEngine: ", attachment.status().ToString());
      }
      transport_.Send(later, [this, life] { Attach(life); });
      return;
    }
    last_attachment_ = *attachment;
    transport_.Send(Delay(2), [this, life, attachment = *attachment] {
      OpenSteps(life, attachment);
    });
  };
  Post(std::move(command));
}

void World::OpenSteps(uint64_t life, const Attachment& attachment) {
  if (life != engine_life_) return;
  const auto sink = std::make_shared<StepSink>(this);
  const auto reply = Expect("OpenSteps");
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
    // Somebody else has attached in between.
    if (!absl::IsFailedPrecondition(status)) {
      report_->Fail("OpenSteps: ", status.ToString());
    }
    transport_.Send(1 + Delay(5), [this, life] { Attach(life); });
  };
  Post(std::move(command));
}

void World::Crash() {
  if (sink_ == nullptr) return;
  const std::shared_ptr<StepSink> sink = sink_;
  sink->alive = false;
  // Answers on their way still arrive, some of them after the news.
  transport_.Send(Delay(8), [this, sink] { Post(EngineLost{sink}); });
  if (random_.OneIn(3)) {
    transport_.Send(Delay(16), [this, sink] { Post(EngineLost{sink}); });
  }
  StartEngine(Delay(10));
}

void World::EngineIsCutOff(StepSink* sink) {
  if (!sink->alive) return;
  sink->alive = false;
  StartEngine(1 + Delay(5));
}

void World::BreakLater(const std::shared_ptr<StepSink>& sink) {
  transport_.Send(20 + Delay(20), [this, sink] {
    if (!sink->alive) return;
    EngineIsCutOff(sink.get());
    Post(EngineLost{sink});
  });
}

void World::HoldPlans() {
  if (sink_ == nullptr || !sink_->alive) return;
  if (random_.OneIn(3)) {
    // Those before still run, and are answered.
    sink_->loses_plans = true;
    return BreakLater(sink_);
  }
  ++report_->counts().held_streams;
  sink_->to_engine =
      std::max(sink_->to_engine, transport_.now() + random_.Between(10, 40));
}

void World::StaleOpen() {
  Call([this] {
    const auto reply = Expect("OpenSteps");
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
    Post(std::move(command));
  });
}

void World::WrongAttach() {
  Call([this] {
    // Alone it would be welcome.
    if (scheduler_ == nullptr || !scheduler_->has_unfinished_requests()) return;
    const auto reply = Expect("AttachEngine");
    AttachEngine command;
    command.layout = options_.Layout();
    ++command.layout.num_blocks;
    command.name = "stranger";
    command.done = [this, reply](absl::StatusOr<Attachment> attachment) {
      reply->Came(attachment.status());
      // Its requests may have ended earlier in this pass.
      if (attachment.ok() && scheduler_->has_unfinished_requests()) {
        report_->Fail("a stranger was attached");
      }
      if (attachment.ok()) last_attachment_ = *attachment;
    };
    Post(std::move(command));
  });
}

void World::ReceivePlan(const std::shared_ptr<StepSink>& sink,
                        const StepPlan& plan) {
  if (!sink->alive) return;
  if (sink->loses_plans) {
    ++report_->counts().lost_plans;
    return;
  }
  const absl::Status status = canary_.Enqueue(plan);
  if (!status.ok()) report_->Fail(status.ToString());
  const int64_t delay = Delay(options_.engine_delay);
  transport_.SendInOrder(&sink->to_engine, delay,
                         [this, sink] { ExecuteNext(sink); });
}

void World::ExecuteNext(const std::shared_ptr<StepSink>& sink) {
  if (!sink->alive || !report_->ok()) return;
  const std::vector<EvictionOrder> orders = canary_.next().evictions;
  absl::StatusOr<StepResult> result = canary_.Execute();
  if (!result.ok()) return report_->Fail(result.status().ToString());
  for (const int32_t token : result->sampled) report_->Mix(token);
  for (const int32_t token : result->accepted) report_->Mix(token);
  Corrupt(orders, &*result);
  SendAnswer(sink, *std::move(result));
}

void World::SendAnswer(const std::shared_ptr<StepSink>& sink,
                       StepResult result) {
  const int64_t delay = Delay(options_.result_delay);
  const Transport::Delivery receive = [sink, result = std::move(result)] {
    sink->Receive(result);
  };
  WireFault fault = std::exchange(wire_fault_, WireFault::kNone);
  if (faults_ && random_.OneIn(options_.answer_fault_one_in)) {
    fault = static_cast<WireFault>(random_.Between(1, 3));
  }
  if (fault != WireFault::kNone) {
    ++report_->counts().wire_faults;
    report_->Note("  wire fault ", static_cast<int>(fault));
  }
  switch (fault) {
    case WireFault::kLost:
      // If no later answer tells, the connection does in the end.
      return BreakLater(sink);
    case WireFault::kOvertaken:
      transport_.Send(delay + random_.Between(1, 10), receive);
      return;
    case WireFault::kTwice:
      transport_.SendInOrder(&sink->to_core, delay, receive);
      break;
    case WireFault::kNone:
      break;
  }
  transport_.SendInOrder(&sink->to_core, delay, receive);
}

void World::LoseBlocks() {
  std::vector<BlockId> blocks;
  for (int32_t i = random_.Between(1, 3); i > 0; --i) {
    blocks.push_back(BlockId{random_.Between(1, options_.num_blocks - 1)});
  }
  canary_.LoseBlocks(blocks);
  if (options_.num_host_blocks == 0 || !random_.OneIn(2)) return;
  canary_.LoseHostBlocks(
      {HostBlockId{random_.Between(0, options_.num_host_blocks - 1)}});
}

void World::CorruptDrafts(StepResult* result) {
  const size_t num_runs = result->sampled.size();
  const auto run = static_cast<size_t>(random_.Next() % num_runs);
  switch (random_.Between(0, 3)) {
    case 0:
      result->num_accepted.resize(num_runs);
      result->num_accepted[run] += random_.OneIn(2) ? 21 : -21;
      return;
    case 1:
      result->accepted.push_back(1);
      return;
    case 2:
      result->num_accepted.push_back(0);
      result->num_accepted.resize(num_runs + 1);
      return;
    default:
      result->num_drafts.assign(num_runs, 0);
      result->num_drafts[run] = result->sampled[run] < 0 ? 1 : -1;
      return;
  }
}

// Whatever comes out is wrong: the reference model says which answers are
// right, and disagrees with a scheduler that takes this one.
void World::Corrupt(std::span<const EvictionOrder> orders, StepResult* result) {
  const bool has_counts =
      !result->evictions.empty() && !result->evictions[0].counts.empty();
  const bool wants_counts =
      corruption_ == Corruption::kCounts || corruption_ == Corruption::kLayout;
  if (corruption_ == Corruption::kNone || (wants_counts && !has_counts)) return;
  const Corruption corruption = std::exchange(corruption_, Corruption::kNone);
  int32_t& token = result->sampled[random_.Next() % result->sampled.size()];
  switch (corruption) {
    case Corruption::kNone:
      return;
    case Corruption::kLaterStep:
      result->id = StepId{Index(result->id) + random_.Between(1, 3)};
      return;
    case Corruption::kEarlierStep:
      // Before all in flight: the answer to one of those may have been lost.
      result->id = StepId{Index(result->id) - options_.max_steps_in_flight};
      return;
    case Corruption::kToken:
      token = token < 0 ? 1 : -1;
      return;
    case Corruption::kMoreTokens:
      result->sampled.push_back(1);
      return;
    case Corruption::kFewerTokens:
      result->sampled.pop_back();
      return;
    case Corruption::kMoreOutcomes:
      result->evictions.emplace_back();
      return;
    case Corruption::kLostBlock:
      if (random_.OneIn(2)) {
        result->lost_host_blocks.push_back(
            HostBlockId{random_.OneIn(2) ? -1 : options_.num_host_blocks});
        return;
      }
      result->lost_blocks.push_back(
          BlockId{random_.OneIn(2) ? 0 : options_.num_blocks});
      return;
    case Corruption::kDrafts:
      return CorruptDrafts(result);
    case Corruption::kCounts:
    case Corruption::kLayout:
      break;
  }
  // May be right after all, if the request is gone: then nobody reads it.
  EvictionOutcome& outcome = result->evictions[0];
  std::vector<int32_t> counts = outcome.counts;
  CorruptCounts(orders[0], &counts);
  if (corruption == Corruption::kCounts) {
    outcome.counts = std::move(counts);
  } else {
    *outcome.layout_checksum ^= uint64_t{1} << Index(result->id) % 64;
  }
}

void World::CorruptCounts(const EvictionOrder& order,
                          std::vector<int32_t>* counts) {
  if (options_.num_shards > 1 && OverfillShard(order, counts)) return;
  int32_t& count = (*counts)[random_.Next() % counts->size()];
  count = random_.OneIn(2) ? -1 : count + options_.page_size * 64;
  if (random_.OneIn(3)) counts->pop_back();
}

bool World::OverfillShard(const EvictionOrder& order,
                          std::vector<int32_t>* counts) const {
  const int32_t num_heads = options_.num_heads;
  const int32_t own_heads = num_heads / options_.num_shards;
  std::vector<int32_t> moved = *counts;
  int64_t num_pages = 0;
  for (int32_t i = 0; i < options_.num_layers * own_heads; ++i) {
    const int32_t from = i / own_heads * num_heads + i % own_heads;
    const int32_t to = from + num_heads - own_heads;
    moved[to] += moved[from];
    moved[from] = 0;
    num_pages += CeilDiv(moved[to], options_.page_size);
  }
  if (num_pages <= order.page_total_of(options_.num_shards - 1)) return false;
  *counts = std::move(moved);
  return true;
}

}  // namespace blockmgr::sim
