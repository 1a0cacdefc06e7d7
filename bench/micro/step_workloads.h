// Workloads that time one step of the scheduler: Schedule() and Update(),
// nothing else, in CPU time of the thread.
//
// The model is Llama-3.1-8B. The engine answers at once, so a step costs what
// bookkeeping costs. Deterministic: equal settings give equal steps.
#ifndef BENCH_MICRO_STEP_WORKLOADS_H_
#define BENCH_MICRO_STEP_WORKLOADS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

// CPU time of this thread in microseconds: what else the machine does counts
// only through the caches.
double ThreadMicroseconds();

// A scheduler whose engine answers at once, with steps timed. The engine has as
// many drafts as a step may verify, and accepts half of them.
class StepHarness {
 public:
  StepHarness(const ModelLayout& layout, const SchedulerOptions& options);

  // The id is chosen here. REQUIRES: the request is accepted.
  void Submit(Request request);
  // One step; microseconds of Schedule and Update. REQUIRES: there is something
  // to run, and nothing to evict unless it was said how that is answered.
  double Step();
  // Every eviction keeps so many entries, [num_layers * num_heads].
  void AnswerEvictions(std::vector<int32_t> counts) {
    counts_ = std::move(counts);
  }

  // The plan and the effects of the last step.
  const StepPlan& plan() const { return plan_; }
  const Effects& effects() const { return effects_; }
  Scheduler& scheduler() { return *scheduler_; }

 private:
  void AnswerDrafts();

  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
  StepResult result_;
  Effects effects_;
  std::vector<int32_t> counts_;
  int64_t num_submitted_ = 0;
};

// One prompt after the other is evicted down to a fifth: the step with the
// order, from its plan to the effects of its answer. All but the last page of
// the prompt is computed before.
class EvictionStepWorkload {
 public:
  struct Setting {
    int32_t num_tokens = 32768;  // whole pages
    bool prefix_caching = false;
    bool share_prefix = false;
    CompactionPreference compaction = CompactionPreference::kFreshFirst;
  };
  explicit EvictionStepWorkload(const Setting& setting);

  double Step();  // microseconds

 private:
  const Setting setting_;
  StepHarness harness_;
  int64_t num_requests_ = 0;
};

// Every running request decodes one token a step, and half its drafts; block
// boundaries are crossed by different requests in every step.
class DecodeWorkload {
 public:
  struct Setting {
    int32_t num_running = 0;
    // The requests ask for evictions that would free nothing, so that none is
    // ordered.
    EvictionMode eviction = EvictionMode::kNone;
    int32_t num_drafts = 0;   // even
    int32_t max_steps = 512;  // to be timed
    // Groups with windows of 128 tokens, as gpt-oss has them.
    int32_t num_window_groups = 0;
    int32_t num_layers = 32;
    int32_t num_heads = 8;
  };
  // Runs the prompts too, which are short.
  explicit DecodeWorkload(const Setting& setting);

  // Microseconds. REQUIRES: steps_left() > 0.
  double Step();
  int32_t steps_left() const { return steps_left_; }

 private:
  const int32_t num_running_;
  const int64_t tokens_per_step_;
  int32_t steps_left_;
  StepHarness harness_;
};

// About 64 requests run, some end and some are admitted in every step, and the
// queue is kept at its length.
class WaitingWorkload {
 public:
  struct Setting {
    int32_t num_waiting = 0;
    SchedulingPolicy policy = SchedulingPolicy::kFcfs;
    bool fair_share = false;  // among the tenants
    int32_t num_tenants = 8;
    // The quota of a tenant's running requests, at their peaks; 0: no limit.
    int32_t max_blocks = 0;
  };
  // Fills the queue and runs until requests end as fast as they come.
  explicit WaitingWorkload(const Setting& setting);

  // Microseconds. Refill() before the next one.
  double Step() { return harness_.Step(); }
  // Submits as many requests as were admitted; not to be timed.
  void Refill();
  // Requests in the last step.
  int32_t num_running() const {
    return static_cast<int32_t>(harness_.plan().slots.size());
  }

 private:
  const Setting setting_;
  StepHarness harness_;
  int64_t next_number_ = 0;
};

}  // namespace blockmgr

#endif  // BENCH_MICRO_STEP_WORKLOADS_H_
