// AnswerSettler: applies the engine's answers to the state (computed tokens,
// accepted drafts, evictions and refusals, lost blocks), and the loss of the
// engine.
//
// AnswerSettler is one of the four classes that change the SchedulerState.
// Frees, publications and evictions take effect here, not when a step is
// issued.
#ifndef SCHEDULER_ANSWER_SETTLER_H_
#define SCHEDULER_ANSWER_SETTLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/block_manager.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/request_lifecycle.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/step_decision.h"

namespace blockmgr {

// Returns whether the answer fits the oldest step in flight. InvalidArgument
// names the field that does not.
absl::Status ValidateResult(const SchedulerState& state,
                            const StepResult& result);

class AnswerSettler {
 public:
  // Borrows both arguments, which must outlive this object.
  AnswerSettler(SchedulerState* state, RequestLifecycle* lifecycle)
      : state_(*state), lifecycle_(*lifecycle) {}

  // Implement Scheduler::Update and Scheduler::LoseEngine.
  absl::Status Settle(const StepResult& result, Effects* effects);
  void LoseEngine(Effects* effects);

 private:
  void SettleRun(const StepInFlight::Run& run, const RunAnswer& answer,
                 Effects* effects);
  // Makes accepted drafts outputs, up to a stop token; then `stops` is set.
  // Returns the positions of the run that count.
  int32_t TakeAccepted(const StepInFlight::Run& run,
                       std::span<const int32_t> accepted, Effects* effects,
                       bool* stops);
  // Hand on the rows of a run that begins at position `begin`, or of a request
  // that had num_outputs before the run (answer_settler_logprobs.cc).
  static void TellPromptLogProbs(const RequestState& request, int32_t begin,
                                 const RunLogProbs& rows, Effects* effects);
  static void TellOutputLogProbs(const RequestState& request,
                                 int32_t num_outputs, const RunLogProbs& rows,
                                 Effects* effects);
  // Voids the positions of the rejected drafts.
  void VoidRejected(const StepInFlight::Run& run, int32_t num_settled);
  // Adds a token to the outputs and effects. Returns whether it ends the
  // request.
  bool AddOutput(RequestState* request, int32_t token, Effects* effects);

  void SettleOrder(const StepInFlight& step, const StepInFlight::Order& order,
                   std::span<const EvictionOutcome> outcomes, Effects* effects);
  // Commits the evictions of all groups of the order, and publishes the region
  // of a shared prefix.
  EvictionReceipt CommitOrder(RequestState* request,
                              const StepInFlight::Order& order,
                              std::span<const EvictionOutcome> outcomes);
  // Takes back an order that the engine has refused for at least one layer
  // group. The request goes on without the eviction, or it waits and is
  // computed again without the eviction. If the request can never fit without
  // the eviction, the request fails with `why`.
  void AbortOrder(RequestState* request, const StepInFlight::Order& order,
                  std::span<const EvictionOutcome> outcomes,
                  const absl::Status& why, Effects* effects);
  // Removes the planned eviction that was ordered last from the request's
  // history, so that no recomputation repeats it. Returns an error, with
  // nothing changed, if the request can never fit without that eviction.
  absl::Status LeaveOutLast(RequestState* request);
  // Fills in how many entries every head of a running request keeps: the answer
  // to a command that evicts nothing.
  void TellKept(const RequestState& request, EvictionEffect* effect) const;

  void LoseBlocks(std::span<const BlockId> blocks);
  void LoseHostBlocks(std::span<const HostBlockId> blocks);
  // Restarts a request in its slot after a loss that has left its first
  // num_left tokens. Returns false, with nothing changed, if the request cannot
  // start from any of these tokens.
  bool RestartInSlot(RequestState* request, int32_t num_left);

  SchedulerState& state_;
  RequestLifecycle& lifecycle_;
  std::vector<TenantId> served_tenants_;  // scratch of Settle
};

}  // namespace blockmgr

#endif  // SCHEDULER_ANSWER_SETTLER_H_
