// The ends of the streams that the core writes to. Internal to World.
#ifndef TESTS_SIM_WORLD_SINKS_H_
#define TESTS_SIM_WORLD_SINKS_H_

#include <deque>
#include <memory>
#include <span>

#include "scheduler/server/commands.h"
#include "tests/sim/world.h"

namespace blockmgr::sim {

class World::ClientSink : public TokenSink {
 public:
  ClientSink(World* world, int32_t client) : world_(world), client_(client) {}
  bool Deliver(std::span<const TokenItem> items) override;
  void Close(const absl::Status& status) override;

 private:
  World* const world_;
  const int32_t client_;
};

class World::StepSink : public EngineSink,
                        public std::enable_shared_from_this<StepSink> {
 public:
  explicit StepSink(World* world) : world_(world) {}
  void SendPlan(const StepPlan& plan) override;
  void ReadNext() override;
  void Close(const absl::Status& status) override;

  // An answer has crossed the wire: passed on when the core wants it.
  void Receive(StepResult result);
  void PassOn();

  Transport::Channel to_engine = 0;
  Transport::Channel to_core = 0;
  bool alive = true;         // the engine behind it
  bool loses_plans = false;  // nobody has noticed yet

 private:
  World* const world_;
  bool wanted_ = true;
  std::deque<StepResult> arrived_;
  StepResult current_;  // the core's until ReadNext
};

// A reply that must come exactly once, however the run ends.
class World::OnceReply {
 public:
  OnceReply(Report* report, const char* what) : report_(report), what_(what) {}
  OnceReply(const OnceReply&) = delete;
  OnceReply& operator=(const OnceReply&) = delete;
  ~OnceReply() {
    if (count_ != 1) {
      report_->Fail(what_, " was answered ", count_, " times");
    }
  }
  void Came(const absl::Status& status) {
    ++count_;
    report_->Mix(static_cast<uint64_t>(status.code()));
  }

 private:
  Report* const report_;
  const char* const what_;
  int32_t count_ = 0;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_WORLD_SINKS_H_
