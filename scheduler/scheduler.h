// Scheduler: continuous batching over a BlockManager.
//
//   Submit / Cancel / Evict      calls of frontends
//   Schedule(&plan)              returns the next step for the engine
//   Update(result, &effects)     takes the engine's answer, in step order
//
// There is no prefill or decode phase, as in vLLM v1. In every step, the
// computed tokens of a request catch up with its known tokens, within a token
// budget. Running requests come first. Waiting requests are admitted only if
// the step preempts no request.
//
// Up to max_steps_in_flight plans may be issued before the first is answered.
// While a running sequence has drafts ready and a step that samples for it is
// unanswered, no plan is issued. Publications and evictions, and the blocks
// that evictions free, take effect at Update. A preemption (in Schedule) and
// Cancel release blocks at once. A released block that a step in flight may
// touch is given to nobody until that step is answered.
//
// Readers of vLLM: vLLM's "evict" (a cached block gives way to a new one) is
// "reclaim" here. "Evict" here drops KV entries of a live sequence for good
// (compression). "Preempt" means the same as in vLLM.
//
// Threads: one at a time (in blockmgrd, the core thread). No clock, no
// randomness: the same calls give the same answers.
#ifndef SCHEDULER_SCHEDULER_H_
#define SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <memory>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/scheduler_stats.h"

namespace blockmgr {

// Checks whether the eviction is valid with these options for some layout of an
// engine. Scheduler::ValidateEviction also checks the layout. Returns
// InvalidArgument like that function.
absl::Status ValidateEviction(const RequestEviction& eviction,
                              const SchedulerOptions& options);

class Scheduler {
 public:
  // Returns InvalidArgument that names a bad field of the layout or an option
  // that is out of range.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(
      const ModelLayout& layout, const SchedulerOptions& options);
  virtual ~Scheduler() = default;

  // Queues a request. Errors:
  //   InvalidArgument     the request is malformed (an empty prompt, ..)
  //   AlreadyExists       a live request has this id
  //   NotFound            fork_of names no live request of the same tenant,
  //                       adapter and salt, or the engine has no table of query
  //                       statistics of that name
  //   ResourceExhausted   the queue is full, the request can never fit into the
  //                       pool, or a quota of its tenant, which is named, is
  //                       used up
  //   FailedPrecondition  the engine does not accumulate the scores that the
  //                       policy needs, does not evict in windows, or does not
  //                       support a field of `sampling`
  virtual absl::StatusOr<RequestId> Submit(Request request) = 0;
  // Returns OK if Submit accepts the eviction for some request. Submit may
  // still refuse it for a request with other tokens. Errors are
  // InvalidArgument, NotFound (a table of query statistics) and
  // FailedPrecondition, as in Submit.
  virtual absl::Status ValidateEviction(
      const RequestEviction& eviction) const = 0;
  // Ends a request at once. Its FinishEffect says kCancelled. NotFound if the
  // request is unknown or has ended.
  virtual absl::Status Cancel(RequestId request, Effects* effects) = 0;
  // Orders an eviction of a live request that has computed its prompt. One of
  // the request's next steps carries it out, and an EvictionEffect with the
  // returned number answers it. Errors:
  //   NotFound            no live request, or no table of query statistics
  //   InvalidArgument     policy, target, cut, or a wrong shape
  //   FailedPrecondition  the request has no output yet, an eviction of it is
  //                       under way, or the policy needs queries or scores that
  //                       the engine has not kept
  virtual absl::StatusOr<uint64_t> Evict(RequestId request,
                                         EvictionCommand command) = 0;
  // Withdraws an eviction that no step has carried yet. No EvictionEffect
  // follows. Returns false if no eviction with this number waits.
  virtual bool WithdrawEviction(RequestId request, uint64_t command) = 0;
  // Returns the live request with this id. NotFound if there is none.
  virtual absl::StatusOr<RequestId> Find(absl::string_view id) const = 0;

  // Fills `plan` with the next step. Returns false, with nothing changed, if
  // there is no request, if max_steps_in_flight plans are unanswered, or if all
  // requests wait for the answer of a plan in flight (for its blocks or its
  // drafts). With no plan in flight, it returns true as long as
  // has_unfinished_requests().
  [[nodiscard]] virtual bool Schedule(StepPlan* plan) = 0;
  // Settles the answer to the oldest plan in flight, and appends to `effects`.
  // A request that holds a lost block goes on from what it has left; what this
  // step and later ones compute for it is ignored. InvalidArgument, with
  // nothing changed, if any part of the answer does not fit the plan: its id, a
  // shape, kept counts, a layout checksum, drafts, stop matches,
  // log-probabilities, or a block that the pool does not have. Engine and
  // scheduler then disagree about the pool: call LoseEngine.
  virtual absl::Status Update(const StepResult& result, Effects* effects) = 0;

  // Forgets all KV and all steps in flight, because the engine is gone. Running
  // requests wait again and will be recomputed. The prefix cache is empty.
  // Evictions that a step carried end with Aborted. The others still wait for
  // their step.
  virtual void LoseEngine(Effects* effects) = 0;
  // Takes over what another engine of the same geometry can do. Live requests
  // go on. REQUIRES: `abilities` has at least all that options().engine has,
  // and as many scorer states and host blocks.
  virtual void TakeAbilities(const EngineAbilities& abilities) = 0;

  // Drops all cached prefixes that no request uses.
  virtual CacheReset ResetPrefixCache() = 0;
  // Returns the prefix cache, to be read in deltas (prefix_cache_delta.h).
  // Every call that is not const may change it.
  virtual const PrefixCache& prefix_cache() const = 0;
  // Sets the time, in milliseconds of any clock. Retention wishes count from
  // the submission of their request and expire by this time. If the clock goes
  // back, time stands still until it has caught up.
  virtual void SetTime(int64_t now_ms) = 0;

  virtual bool has_unfinished_requests() const = 0;
  virtual int32_t num_steps_in_flight() const = 0;
  // Gauges of stats() that are cheap enough to be read after every step.
  virtual int32_t num_running() const = 0;
  virtual int32_t num_used_blocks() const = 0;
  virtual const ModelLayout& layout() const = 0;
  virtual const SchedulerOptions& options() const = 0;
  // Returns all counters and gauges but metadata_bytes, for occasional reports.
  // O(largest count of kept entries + sequences).
  virtual SchedulerStats stats() const = 0;
  // Returns SchedulerStats::metadata_bytes. O(sequences + cached regions).
  virtual int64_t metadata_bytes() const = 0;
  // Begins the statistics of kept entries (kept_entries_*) anew.
  virtual void ForgetKeptEntries() = 0;

  // Audits everything in O(pool). For tests.
  virtual void CheckInvariants() const = 0;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_H_
