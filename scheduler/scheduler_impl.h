// The scheduler's state and phases. Internal to scheduler/.
//
// Schedule() decides first and does afterwards. Deciding (PlanRunning,
// PlanWaiting) reads the state and writes only a StepDecision: who is
// preempted, who runs how many tokens, who is admitted on which prefix, which
// evictions are ordered. Doing (Apply) cannot fail, because the decision has
// counted blocks.
#ifndef SCHEDULER_SCHEDULER_IMPL_H_
#define SCHEDULER_SCHEDULER_IMPL_H_

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/block_manager.h"
#include "scheduler/kept_histogram.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

// What one step will do. Reused from step to step.
struct StepDecision {
  struct Run {
    RequestState* request = nullptr;
    int32_t num_tokens = 0;
    int32_t match = -1;  // into `matches`: admitted on it; -1: was running
    int32_t order = -1;  // into `orders`; -1: none
  };
  struct Order {
    CompressionPoint point;
    int64_t page_total = 0;
    int32_t num_fresh = 0;
    int32_t num_released = 0;  // blocks it will give back
    bool futile = false;  // a command that would free nothing: only answered
  };
  std::vector<RequestState*> preempted;
  std::vector<Run> runs;
  std::vector<PrefixMatch> matches;
  std::vector<Order> orders;

  void Clear();
};

// What became of blocks while a step is decided.
struct BlockBudget {
  int32_t available = 0;  // can be taken by this step
  int32_t coming = 0;     // will be available when steps in flight are over
};

// A step between Schedule and Update.
struct StepInFlight {
  struct Run {
    RequestState* request = nullptr;
    RequestId id{0};
    uint32_t incarnation = 0;
    int32_t num_tokens = 0;
    bool samples = false;
  };
  struct Order {
    size_t run = 0;  // into runs
    CompressionPoint point;
    int32_t num_released = 0;
    bool futile = false;  // not part of the plan
  };
  StepId id{0};
  std::vector<Run> runs;
  std::vector<Order> orders;
};

class SchedulerImpl : public Scheduler {
 public:
  SchedulerImpl(const ModelLayout& layout, const SchedulerOptions& options);

  absl::StatusOr<RequestId> Submit(Request request) override;
  absl::Status Cancel(RequestId request, Effects* effects) override;
  absl::StatusOr<uint64_t> Evict(RequestId request,
                                 EvictionCommand command) override;
  absl::StatusOr<RequestId> Find(absl::string_view id) const override;
  bool Schedule(StepPlan* plan) override;
  absl::Status Update(const StepResult& result, Effects* effects) override;
  void LoseEngine(Effects* effects) override;
  bool ResetPrefixCache() override { return manager_.ResetPrefixCache(); }
  bool has_unfinished_requests() const override { return !requests_.empty(); }
  int32_t num_steps_in_flight() const override {
    return static_cast<int32_t>(in_flight_.size());
  }
  int32_t num_running() const override {
    return static_cast<int32_t>(running_.size());
  }
  int32_t num_used_blocks() const override {
    return manager_.stats().used_blocks;
  }
  const ModelLayout& layout() const override { return manager_.layout(); }
  const SchedulerOptions& options() const override { return options_; }
  SchedulerStats stats() const override;
  void CheckInvariants() const override;

  // Equal for equal states. O(pool), for tests.
  uint64_t StateHash() const;
  const BlockManager& manager() const { return manager_; }

 private:
  // Submission (scheduler.cc).
  absl::Status ValidateRequest(const Request& request) const;
  absl::Status ValidateEviction(const RequestEviction& eviction) const;
  absl::Status ValidatePolicy(
      const EvictionPolicy& policy,
      const std::shared_ptr<const BudgetTable>& table) const;
  absl::Status ValidateCommand(const RequestState& request,
                               const EvictionCommand& command) const;
  RequestState* NewState();
  void Retire(RequestState* request, FinishReason reason, absl::Status status,
              Effects* effects);
  // Takes a running request off its slot; what is in flight becomes stale.
  void LeaveSlot(RequestState* request);
  void AbortCommand(RequestState* request, const char* why, Effects* effects);

  // Deciding (scheduler_plan.cc): writes decision_ and its budgets only.
  void PlanRunning(BlockBudget* budget, int32_t* token_budget);
  void PlanWaiting(BlockBudget* budget, int32_t* token_budget);
  // False: the request does not run in this step. `end` bounds the running
  // requests that are not preempted.
  bool PlanRun(RequestState* request, int32_t num_tokens, BlockBudget* budget,
               size_t* end);
  bool MakeRoom(RequestState* request, int32_t needed, BlockBudget* budget,
                size_t* end);
  // Tries to admit on `match`; false, with nothing decided, when blocks are
  // short.
  bool PlanAdmission(RequestState* request, PrefixMatch match,
                     BlockBudget* budget, int32_t* token_budget);
  int32_t TokensToRun(const RequestState& request, int32_t num_computed,
                      int32_t token_budget) const;
  // The eviction to order with the step that ends at `length`, if any.
  bool PlanOrder(const RequestState& request, int32_t length,
                 int32_t num_in_cache, StepDecision::Order* order) const;
  // Fresh destinations: at least what own blocks cannot give; all of them when
  // preferred and there is room.
  int32_t FreshForOrder(const StepDecision::Order& order, int32_t num_own,
                        int32_t available) const;
  int32_t MaxCachedTokens(const RequestState& request) const;
  // The longest observation window that fits in a chunk next to the decodes of
  // every other sequence.
  int32_t MaxWindow() const;
  // Blocks that the prompts of running requests will still take.
  int32_t BlocksPromised() const;
  int32_t BlocksComing() const;
  // Whether the engine can accumulate scores for one more sequence than those
  // that run or are admitted by this step.
  bool HasScorerState(const RequestState& request) const;

  // Doing (scheduler_apply.cc).
  void Apply(StepPlan* plan);
  void Preempt(RequestState* request);
  void Admit(RequestState* request, const PrefixMatch& match);
  void WriteStart(const RequestState& request, StepPlan* plan) const;
  void WriteRun(const StepDecision::Run& run, std::span<const BlockId> blocks,
                StepPlan* plan, StepInFlight* record);
  void WriteOrder(const StepDecision::Run& run, StepPlan* plan,
                  StepInFlight* record);

  // Settling (scheduler_update.cc).
  absl::Status ValidateResult(const StepResult& result) const;
  void SettleRun(const StepInFlight::Run& run, int32_t sampled,
                 Effects* effects);
  void SettleOrder(const StepInFlight& step, const StepInFlight::Order& order,
                   const EvictionOutcome& outcome, Effects* effects);
  static bool IsStale(const StepInFlight::Run& run) {
    return run.request->id != run.id ||
           run.request->incarnation != run.incarnation;
  }

  const SchedulerOptions options_;
  const int32_t watermark_blocks_;
  BlockManager manager_;

  std::vector<std::unique_ptr<RequestState>> states_;  // all ever made
  std::vector<RequestState*> free_states_;
  absl::flat_hash_map<RequestId, RequestState*> requests_;  // live
  absl::flat_hash_map<std::string, RequestId> names_;       // of live requests
  std::deque<RequestState*> waiting_;                       // next to run first
  std::vector<RequestState*> running_;                      // oldest first
  std::deque<StepInFlight> in_flight_;                      // oldest first
  std::vector<StepInFlight> spare_steps_;  // memory for records to come
  std::vector<SequenceSlot> released_;     // slots to tell the engine about
  StepDecision decision_;
  std::vector<TokenDemand> demands_;  // scratch of Apply
  std::vector<int64_t> new_offsets_;
  std::vector<BlockId> new_blocks_;
  uint64_t next_request_ = 1;
  uint64_t next_step_ = 1;
  uint64_t next_command_ = 1;
  SchedulerStats totals_;  // the counters; gauges are filled in by stats()
  KeptHistogram kept_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_IMPL_H_
