// SchedulerImpl: the scheduler, put together from its parts.
//
//   SchedulerState     what is known between two calls
//   StepPlanner        reads the state, and returns a StepDecision
//   StepApplier        carries out the decision, and fills the plan
//   AnswerSettler      settles the engine's answers
//   RequestLifecycle   moves requests between queue, slots and end
//
// Internal to scheduler/.
#ifndef SCHEDULER_SCHEDULER_IMPL_H_
#define SCHEDULER_SCHEDULER_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/block_manager.h"
#include "scheduler/answer_settler.h"
#include "scheduler/eviction_requests.h"
#include "scheduler/prefix_finder.h"
#include "scheduler/request_lifecycle.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_applier.h"
#include "scheduler/step_planner.h"

namespace blockmgr {

class SchedulerImpl : public Scheduler {
 public:
  SchedulerImpl(const ModelLayout& layout, const SchedulerOptions& options);

  absl::StatusOr<RequestId> Submit(Request request) override;
  absl::Status ValidateEviction(
      const RequestEviction& eviction) const override {
    return blockmgr::ValidateEviction(eviction, layout(), options());
  }
  absl::Status Cancel(RequestId request, Effects* effects) override;
  absl::StatusOr<uint64_t> Evict(RequestId request,
                                 EvictionCommand command) override;
  bool WithdrawEviction(RequestId request, uint64_t command) override;
  absl::StatusOr<RequestId> Find(absl::string_view id) const override;
  bool Schedule(StepPlan* plan) override;
  absl::Status Update(const StepResult& result, Effects* effects) override {
    return settler_.Settle(result, effects);
  }
  void LoseEngine(Effects* effects) override { settler_.LoseEngine(effects); }
  void TakeAbilities(const EngineAbilities& abilities) override {
    state_.TakeAbilities(abilities);
  }
  CacheReset ResetPrefixCache() override {
    const CacheReset reset = state_.manager.ResetPrefixCache();
    lifecycle_.RefreshPlaces();
    return reset;
  }
  void ForgetKeptEntries() override { state_.kept.Clear(); }
  void SetTime(int64_t now_ms) override {
    state_.now_ms = std::max(state_.now_ms, now_ms);
    state_.manager.SetTime(now_ms);
  }
  bool has_unfinished_requests() const override {
    return !state_.requests.empty();
  }
  int32_t num_steps_in_flight() const override {
    return state_.num_steps_in_flight();
  }
  int32_t num_running() const override {
    return static_cast<int32_t>(state_.running.size());
  }
  int32_t num_used_blocks() const override {
    return state_.manager.stats().used_blocks;
  }
  const PrefixCache& prefix_cache() const override {
    return state_.manager.prefix_cache();
  }
  const ModelLayout& layout() const override { return state_.manager.layout(); }
  const SchedulerOptions& options() const override { return state_.options(); }
  SchedulerStats stats() const override;
  int64_t metadata_bytes() const override {
    return state_.manager.metadata_bytes();
  }
  void CheckInvariants() const override;
  // Audits that reservations of tenants are those of their requests.
  void CheckReservations() const;

  // Return hashes that are equal for equal states. O(pool), for tests.
  // FutureHash leaves out the values that tell of the past alone: counters,
  // numbers given out, preemptions. RequestsHash covers only the requests, in
  // the order in which they are served.
  uint64_t StateHash() const;
  uint64_t FutureHash() const;
  uint64_t RequestsHash() const;
  const BlockManager& manager() const { return state_.manager; }

 protected:
  // BlockManager::SwapOut, which tests let fail.
  virtual SwapId TakeHostBlocks(SequenceSlot slot,
                                std::vector<BlockTransfer>* transfers) {
    return state_.manager.SwapOut(slot, transfers);
  }

 private:
  SchedulerState state_;
  PrefixFinder finder_;
  StepPlanner planner_;
  RequestLifecycle lifecycle_;
  StepApplier applier_;
  AnswerSettler settler_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_IMPL_H_
