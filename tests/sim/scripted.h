// Scripted scenarios: a scheduler and a canary engine, driven by a line of
// text.
//
//   submit:NAME,PROMPT,OUTPUT[,TOPIC[,MODE]]   prompts of one topic share what
//                  they can; MODE: plain, after, ... (see Eviction)
//   issue  answer  one step; both are repeated by a number: issue:3
//   fork:NAME,OTHER,AT,OUTPUT   goes on from the first AT outputs of OTHER
//   cancel:NAME  evict:NAME,TOKENS  lose  reset
//   lose_blocks:NAME,N   the next answer reports the N-th block of its tail
//   drain          until every request has ended
//
// Every call is audited (AuditedScheduler), every output compared with what the
// request puts out alone. A Point is a call that can fail; with fault_at >= 0
// the Point of that number fails first, in every way it can, and must leave no
// trace.
//
// A Twin is a run of the same scenario in which what fails in another run never
// began: after it the two are to be the same, and to go on in the same way.
#ifndef TESTS_SIM_SCRIPTED_H_
#define TESTS_SIM_SCRIPTED_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/string_view.h>

#include "tests/sim/audited_scheduler.h"
#include "tests/sim/report.h"
#include "tests/testing/canary_engine.h"
#include "tests/testing/test_requests.h"

namespace blockmgr::sim {

// What a fault at a point is.
enum class FaultKind : uint8_t {
  kRefusedCall,   // a wrong call: refused, state and end are the same
  kRefusedOrder,  // the engine refuses the evictions of a step
  kLostEngine,    // the engine dies instead of answering
  kLostCopies,    // what the host tier has of a step's copies is lost
  kLostReturns,   // the blocks that a step copies back to are lost
};

struct Scenario {
  std::string name;
  ModelLayout layout;
  SchedulerOptions options;
  std::string script;
};

// How a run differs from another one, up to the answer to a step.
struct Twin {
  StepId step{0};        // 0: it does not
  bool is_held = false;  // that step, and all after it, are not issued
  std::set<uint64_t> commands = {};  // these are not given
  std::set<RequestId> cancel = {};   // before the answer
  // These find no host blocks, see AuditedScheduler; whatever the step.
  std::set<int64_t> swap_outs = {};
};

// What a run has come to with a fault, or with what is in its place.
struct Aftermath {
  StepId step{0};         // that was answered, or would have been
  uint64_t state = 0;     // hashes: FutureHash
  uint64_t requests = 0;  // of these alone
  uint64_t memory = 0;    // of the block manager alone
  SchedulerStats stats;
  // Commands that were answered with an error, and requests that failed.
  std::set<uint64_t> commands;
  std::set<RequestId> failed;
  std::set<int64_t> swap_outs;   // of the step, in vain or not
  int32_t num_refused = 0;       // orders, with those of both
  int32_t num_finished = 0;      // requests, with those that failed
  int32_t num_as_before = 0;     // of the orders, whose sequences go on
  std::ptrdiff_t num_plans = 0;  // until then
};

class Scripted {
 public:
  // Every point fails.
  static constexpr int32_t kEverywhere = -2;

  explicit Scripted(const Scenario& scenario, int32_t fault_at = -1,
                    FaultKind fault = FaultKind::kRefusedCall, Twin twin = {});

  // Runs the scenario's script and drains.
  void Run();
  // Runs one word of it.
  void Do(absl::string_view word);

  Report& report() { return report_; }
  AuditedScheduler& scheduler() { return scheduler_; }
  int32_t fault_at() const { return fault_at_; }
  int32_t num_points() const { return num_points_; }
  int32_t num_fired() const { return num_fired_; }
  // Steps since the beginning.
  int64_t num_steps() const {
    return static_cast<int64_t>(report_.counts().steps);
  }
  // How a request ended; nullptr: not yet.
  const FinishEffect* FinishOf(const std::string& name) const;
  // Its last answer to Submit.
  const absl::Status& SubmitStatus(const std::string& name) const {
    return statuses_.at(name);
  }
  // A number of all ends, and of the outputs of complete requests.
  uint64_t OutcomeHash() const;
  const Aftermath& aftermath() const { return aftermath_; }
  // Every plan, without the numbers of slots and blocks, and without orders.
  const std::vector<std::string>& plans() const { return plans_; }

  bool Issue();
  void Answer();
  void Drain();
  void Submit(Request request);

 private:
  struct Life {
    std::string name;
    Request request;
    std::vector<int32_t> outputs;
    std::vector<FinishEffect> finish;  // none or one
  };
  struct Held {
    SequenceSlot slot = kNoSequenceSlot;
    SequenceCache sequence;
  };
  // Whether the answer to this plan is a point.
  bool IsPoint(const StepPlan& plan) const;
  // Counts a point; whether it fails.
  bool AtPoint();
  void Refuse(const std::function<bool()>& call, const char* what);
  void RefuseSubmits(const Request& good);
  void RefuseAnswers(const StepResult& good);
  void RefuseEvicts(RequestId request);
  void Evict(const std::string& name, int32_t tokens);
  void Fork(const std::string& name, const std::string& other, int32_t at,
            int32_t max_tokens);
  void LoseBlock(const std::string& name, size_t index);
  void LoseEngine();
  void Cancel(const std::set<RequestId>& requests);
  std::map<RequestId, Held> HeldNow() const;
  void TakeEffects();
  void WritePlan();
  void NoteAftermath(StepId step);
  // Of the next step: kLostCopies, kLostReturns.
  void LoseCopies();
  void LoseReturns();
  // Whose order was refused holds what it held before that was made.
  void CheckRefused(StepId step);

  const Scenario scenario_;
  const int32_t fault_at_;
  const FaultKind fault_;
  const Twin twin_;
  Report report_;
  AuditedScheduler scheduler_;
  CanaryEngine engine_;
  StepPlan plan_;
  Effects effects_;
  std::map<RequestId, Life> lives_;
  std::map<std::string, RequestId> names_;
  std::map<std::string, absl::Status> statuses_;
  int32_t num_points_ = 0;
  int32_t num_fired_ = 0;
  Aftermath aftermath_;
  std::vector<std::string> plans_;
  std::map<SequenceSlot, RequestId> running_;
  std::map<StepId, std::map<RequestId, Held>> before_;  // each was issued
  std::map<StepId, std::set<int64_t>> swap_outs_;       // of each
  uint64_t num_commands_ = 0;                           // accepted
  bool is_held_ = false;  // a step is not issued, see Twin
};

// A SmallLayout, with more than one head.
inline ModelLayout ScriptLayout(int32_t page_size, int32_t num_usable,
                                int32_t num_layers = 1, int32_t num_heads = 2) {
  return SmallLayout(page_size, num_usable, num_layers, num_heads);
}
// No watermark, no waiting for others' prefixes.
SchedulerOptions ScriptOptions(int32_t steps_in_flight = 1);
// MODE "after": recency, once; "shared": the same, and others may start with
// it; "every": recency, every two pages; "snap": SnapKV with a window of 3,
// once.
RequestEviction Eviction(absl::string_view mode, int32_t page_size);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_SCRIPTED_H_
