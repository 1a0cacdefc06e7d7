// SchedulerDriver: a scheduler and a canary engine, joined for tests.
//
// Every call goes through here, is followed by a full audit, and is compared
// with what a request run alone would have given. Whatever is wrong is a test
// failure (and stops the driver: ok() is false).
#ifndef TESTS_SCHEDULER_SCHEDULER_DRIVER_H_
#define TESTS_SCHEDULER_SCHEDULER_DRIVER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "scheduler/scheduler_impl.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr {

// What became of a request.
struct Served {
  Request request;
  std::vector<int32_t> outputs;
  std::optional<FinishEffect> finish;
  std::vector<EvictionEffect> evictions;
  // Evictions that took effect for good, which a recomputation must replay.
  std::vector<CanaryEviction> recorded;
  std::vector<CanaryEviction> issued;  // since its last start
  int64_t page_total = 0;              // of the last of them
  bool kept_less = false;  // an eviction kept fewer pages than it might
};

class SchedulerDriver {
 public:
  SchedulerDriver(const ModelLayout& layout, const SchedulerOptions& options,
                  const CanaryOptions& canary = {});

  SchedulerImpl& scheduler() { return scheduler_; }
  CanaryEngine& engine() { return engine_; }
  const Served& served(RequestId id) const { return served_.at(id); }
  const std::map<RequestId, Served>& all() const { return served_; }
  bool ok() const { return ok_; }
  // After a compression that keeps fewer pages than it might, what the next one
  // takes depends on where that region lay, and so may, where they come in
  // quick succession, whether it is made in a replay (docs/limits.md).
  void AllowOtherReplaysOfLess() { allows_other_replays_of_less_ = true; }

  absl::StatusOr<RequestId> Submit(Request request);
  absl::Status Cancel(RequestId id);
  absl::StatusOr<uint64_t> Evict(RequestId id, EvictionCommand command);
  void LoseEngine();

  // Schedules a step and gives it to the engine. False: nothing to schedule.
  bool Issue();
  // The engine answers its oldest step. REQUIRES: one is in flight.
  void Answer();
  // The same with the given change made to the engine's answer.
  template <typename Change>
  void AnswerWith(Change change) {
    StepResult result = Execute();
    if (!ok_) return;
    change(&result);
    Settle(result);
  }
  // Issues and answers one step after the other until `done()` or all requests
  // have ended.
  template <typename Done>
  void RunUntil(Done done) {
    while (ok_ && !done() && scheduler_.has_unfinished_requests()) Step();
  }
  // Keeps as many steps in flight as allowed until `done()`, which is asked
  // after every step that is issued, or all requests have ended. Returns
  // whether done() was true.
  template <typename Done>
  bool RunFullUntil(Done done) {
    while (ok_ && scheduler_.has_unfinished_requests()) {
      while (Issue()) {
        if (done()) return true;
      }
      if (ok_) Answer();
    }
    return false;
  }
  // Runs full pipelines until all requests have ended. Calls on_issue() after
  // every step that was issued.
  template <typename OnIssue>
  void RunFull(OnIssue on_issue) {
    RunFullUntil([&] {
      on_issue();
      return false;
    });
  }
  // The most blocks in use on the way to the end of all requests.
  int32_t MostUsedBlocks() {
    int32_t most = 0;
    RunFull([&] { most = std::max(most, scheduler_.num_used_blocks()); });
    return most;
  }
  // Issues a step and answers everything in flight.
  void Step();
  // Keeps as many steps in flight as allowed until every request has ended;
  // fails when that takes too long.
  void Drain();
  // Everything must be free again.
  void CheckQuiescent();
  void Finish() {
    Drain();
    CheckQuiescent();
  }
  // Steps until the request has as many outputs.
  void RunUntilOutputs(RequestId id, size_t count) {
    RunUntil([&] { return served(id).outputs.size() >= count; });
  }
  // Steps until the request runs. Returns how many steps that took.
  int32_t StepUntilRunning(RequestId id);

  // The plan of the last Issue that returned true, and its run of a request.
  const StepPlan& plan() const { return plan_; }
  // How plan() starts the request; null if it does not.
  const SequenceStart* StartInPlan(RequestId id) const;
  // Tokens of the request in plan(); 0 if it does not run.
  int32_t CountTokensInPlan(RequestId id) const;
  // The blocks that plan() adds to the request's table.
  std::vector<BlockId> BlocksInPlan(RequestId id) const;
  // REQUIRES: it holds a slot.
  SequenceSlot SlotOf(RequestId id) const;

 private:
  void Fail(absl::string_view what);
  void Audit();
  void CheckPlan();
  void CheckOrders();
  // Who has lost blocks, and goes on in its slot.
  void NoteCuts();
  void CompareTables();
  StepResult Execute();
  void Settle(const StepResult& result);
  void TakeEffects();
  void TakeEviction(const EvictionEffect& effect);
  void TakeFinish(const FinishEffect& effect);
  int64_t CountStepsToDrain() const;
  bool MayReplayOtherwise(const Served& served) const {
    return allows_other_replays_of_less_ && served.kept_less;
  }

  const CanaryOptions canary_;
  SchedulerImpl scheduler_;
  CanaryEngine engine_;
  StepPlan plan_;
  Effects effects_;
  std::map<RequestId, Served> served_;
  std::map<SequenceSlot, RequestId> slots_;                // as the plans say
  std::map<SequenceSlot, int32_t> issued_;                 // tokens
  std::set<SequenceSlot> cut_;                             // to start again
  std::map<SwapId, std::vector<CanaryEviction>> swapped_;  // issued before
  struct Run {
    SequenceSlot slot = kNoSequenceSlot;
    int32_t end = 0;
    int32_t num_drafts = 0;
  };
  std::deque<std::vector<Run>> plans_;  // in flight
  bool allows_other_replays_of_less_ = false;
  bool ok_ = true;
};

// A change to a good answer, and what the refusal of the result says.
struct WrongAnswer {
  std::string text;
  std::function<void(StepResult*)> spoil;
  bool is_whole = false;  // the text is all that is said
};

// Each wrong answer is refused and changes nothing.
void ExpectRefused(const std::vector<WrongAnswer>& cases,
                   const StepResult& good, SchedulerImpl* scheduler);

// Submits a request, which must not be refused.
RequestId Submit(SchedulerDriver* driver, Request request);

}  // namespace blockmgr

#endif  // TESTS_SCHEDULER_SCHEDULER_DRIVER_H_
