// WorldEngine: the engine of a World, its lives, its answers, and strangers
// that claim to be it.
//
// The engine is a CanaryEngine that hears of plans late, computes late and
// answers late. Its client may lose an answer, send it twice or let others
// overtake it. Plans keep their order. They may be held up for long, and be
// lost with a stream before anybody knows that it is broken.
#ifndef TESTS_SIM_WORLD_ENGINE_H_
#define TESTS_SIM_WORLD_ENGINE_H_

#include <cstdint>
#include <memory>

#include "blockmgr/step_plan.h"
#include "scheduler/server/commands.h"
#include "tests/sim/answer_spoiler.h"
#include "tests/sim/world_core.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr::sim {

class WorldEngine {
 public:
  // Borrows it.
  explicit WorldEngine(WorldCore* core);

  const CanaryEngine& canary() const { return canary_; }
  // Begins a new life, which attaches after `delay`.
  void Start(int64_t delay);
  void Crash();
  // Holds up the plans on their way, or breaks the stream.
  void HoldPlans();
  // Opens the steps of an attachment that is not the last.
  void StaleOpen();
  // Attaches an engine of another layout.
  void WrongAttach();
  void LoseBlocks();
  // Makes an answer to come wrong, or something go wrong on its way.
  void SpoilAnswer();
  // From now on answers are right.
  void Heal();
  // From now on the core may refuse an attachment, since it has closed.
  void Quiesce() { is_quiescing_ = true; }
  // Checks that an attached engine has a step to do if requests wait.
  void CheckBusy() const;

 private:
  // WireFault is an accident of an answer on its way.
  enum class WireFault : uint8_t { kNone, kLost, kTwice, kOvertaken };
  class StepSink;

  void Attach(uint64_t life);
  void OpenSteps(uint64_t life, const Attachment& attachment);
  // Begins a new life if the engine behind the sink lives.
  void CutOff(StepSink* sink);
  // Has both sides find out, after a while, that the connection is broken.
  void BreakLater(const std::shared_ptr<StepSink>& sink);
  void ReceivePlan(const std::shared_ptr<StepSink>& sink, const StepPlan& plan);
  void ExecuteNext(const std::shared_ptr<StepSink>& sink);
  void SendAnswer(const std::shared_ptr<StepSink>& sink, StepResult result);

  WorldCore& core_;
  const SimOptions& options_;
  Report* const report_;
  Random& random_;
  CanaryEngine canary_;
  AnswerSpoiler spoiler_;
  WireFault wire_fault_ = WireFault::kNone;  // of an answer to come
  std::shared_ptr<StepSink> sink_;           // of the present life, if open
  uint64_t life_ = 0;
  Attachment last_attachment_;  // strangers know it
  bool is_quiescing_ = false;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_WORLD_ENGINE_H_
