// The scheduler's state and phases. Internal to scheduler/.
//
// Schedule() decides first and does afterwards. Deciding (PlanRunning,
// PlanWaiting) reads the state and writes only a StepDecision: who is
// preempted, who runs how many tokens, who is admitted on which prefix, which
// evictions are ordered. Doing (Apply) cannot fail, because the decision has
// counted blocks.
#ifndef SCHEDULER_SCHEDULER_IMPL_H_
#define SCHEDULER_SCHEDULER_IMPL_H_

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/block_manager.h"
#include "scheduler/kept_histogram.h"
#include "scheduler/prefill_front.h"
#include "scheduler/prefix_hints.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"
#include "scheduler/step_decision.h"
#include "scheduler/tenants.h"
#include "scheduler/waiting_queue.h"

namespace blockmgr {

class SchedulerImpl : public Scheduler {
 public:
  SchedulerImpl(const ModelLayout& layout, const SchedulerOptions& options);

  absl::StatusOr<RequestId> Submit(Request request) override;
  absl::Status ValidateEviction(const RequestEviction& eviction) const override;
  absl::Status Cancel(RequestId request, Effects* effects) override;
  absl::StatusOr<uint64_t> Evict(RequestId request,
                                 EvictionCommand command) override;
  bool WithdrawEviction(RequestId request, uint64_t command) override;
  absl::StatusOr<RequestId> Find(absl::string_view id) const override;
  bool Schedule(StepPlan* plan) override;
  absl::Status Update(const StepResult& result, Effects* effects) override;
  void LoseEngine(Effects* effects) override;
  CacheReset ResetPrefixCache() override {
    const CacheReset reset = manager_.ResetPrefixCache();
    RefreshPlaces();
    return reset;
  }
  void ForgetKeptEntries() override { kept_.Clear(); }
  void SetTime(int64_t now_ms) override {
    now_ms_ = std::max(now_ms_, now_ms);
    manager_.SetTime(now_ms);
  }
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
  const PrefixCache& prefix_cache() const override {
    return manager_.prefix_cache();
  }
  const ModelLayout& layout() const override { return manager_.layout(); }
  const SchedulerOptions& options() const override { return options_; }
  SchedulerStats stats() const override;
  void CheckInvariants() const override;
  // Audits that reservations of tenants are those of their requests.
  void CheckReservations() const;

  // Equal for equal states. O(pool), for tests. FutureHash leaves out what
  // tells of the past alone: counters, numbers given out, preemptions.
  // RequestsHash is of the requests alone, in the order in which they are
  // served.
  uint64_t StateHash() const;
  uint64_t FutureHash() const;
  uint64_t RequestsHash() const;
  const BlockManager& manager() const { return manager_; }

 protected:
  // BlockManager::SwapOut, which tests let fail.
  virtual SwapId TakeHostBlocks(SequenceSlot slot,
                                std::vector<BlockTransfer>* transfers) {
    return manager_.SwapOut(slot, transfers);
  }

 private:
  // Submission (scheduler.cc).
  absl::Status ValidateRequest(const Request& request) const;
  RequestState* NewState();
  void Retire(RequestState* request, FinishReason reason, absl::Status status,
              Effects* effects);
  // Takes a running request off its slot; what is in flight becomes stale.
  void LeaveSlot(RequestState* request);
  // The same, and it waits again; ForgetLeft is to follow.
  void WaitAgain(RequestState* request);
  // Drops those that have left their slots from running_.
  void ForgetLeft();

  // Evictions as asked for (eviction_requests.cc).
  EvictionPlan PlanEviction(const Request& request) const;
  // Whether the model has layers to evict from.
  absl::Status ValidateLayers() const;
  // Whether the policy's table, if it has one, is of a model of this shape.
  absl::Status ValidateTable(
      const EvictionPolicy& policy,
      const std::shared_ptr<const BudgetTable>& table) const;
  // Whether the engine has what the policy of a command observes.
  absl::Status ValidateObserved(const RequestState& request,
                                const EvictionPolicy& policy) const;
  absl::Status ValidateCommand(const RequestState& request,
                               const EvictionCommand& command) const;
  void AbortCommand(RequestState* request, const char* why, Effects* effects);
  // Fills in how many entries every head of a running request keeps: the answer
  // to a command that evicts nothing.
  void TellKept(const RequestState& request, EvictionEffect* effect) const;

  // Forks (forks.cc).
  absl::Status ValidateFork(const Request& request) const;
  // Lets the decision carry the compressions of a fork that has never run, if
  // its parent's have changed. False: it would not fit with them.
  bool Inherit(const RequestState& parent, const RequestState& fork);
  // Of the tokens that both begin with, those that the request may share, as
  // soon as the parent has computed them.
  int32_t ForkLength(const RequestState& parent, const RequestState& request);
  struct ForkPoint {
    bool waits = false;      // until its parent has computed what they share
    PrefixMatch match = {};  // of no tokens: it is no fork
  };
  // What a waiting request may start with of the one that it is a fork of.
  ForkPoint FindFork(const RequestState& request);

  // The order of those that run, and of those that wait (request_lifecycle.cc).
  bool RunsBefore(const RequestState* a, const RequestState* b) const;
  // Where a request that has not run yet waits, given its cached prefix.
  WaitingPlace PlaceOf(const RequestState& request,
                       int32_t num_cached_tokens) const;
  uint8_t LaneOf(const RequestState& request) const;
  // Looks that it cost to see that a request needs the turn of a lane: none if
  // it is in it, where the walk leaves out those behind it.
  int32_t LookOutsideLane(RequestState* request, uint8_t lane);
  // Whether the tenant's first request would exceed its quota; then the tenant
  // is barred from the queue's walks. Said again when either changes.
  bool IsFull(TenantId tenant) const;
  void RefreshBar(TenantId tenant);
  void JoinQueue(RequestState* request);
  void LeaveQueue(RequestState* request);
  // SchedulingPolicy::kPrefix: looks at the cached prefixes of a few waiting
  // requests again and moves those that have changed.
  void RefreshPlaces();
  // Looks at the prefix that is cached now. Returns its pages.
  int32_t RefreshPlace(RequestState* request);
  // What the request counts in its tenant's service when it is admitted.
  int64_t ServiceOf(const RequestState& request) const;

  // Whom to preempt, and when to wait instead (victims.cc): writes
  // decision_ and its budgets only.
  bool MakeRoom(size_t index, int32_t needed, BlockBudget* budget);
  // Whom to preempt for the index-th of the running: one that comes after it,
  // or itself when there is none.
  size_t FindVictim(size_t index);
  size_t CheapestVictim(size_t index) const;
  // Tokens that would be computed again.
  int32_t RecomputeCost(const RequestState& request) const;
  // Blocks that will be available when the steps in flight and this one are
  // over, or may be. O(running).
  int32_t BlocksOnTheWay(const BlockBudget& budget) const;
  // Of those: what sequences share that are all being compressed.
  int32_t LeftTogether() const;
  // Up to where the request is being compressed, in flight or by this step; 0:
  // it is not.
  int32_t CutToCome(const RequestState& request) const;
  // Whether another is being compressed that shares its first blocks.
  bool IsLeftBySharer(const RequestState& request) const;

  // Deciding (step_planner.cc): writes decision_ and its budgets only.
  void PlanShares(int32_t token_budget);
  void PlanRunning(BlockBudget* budget, int32_t* token_budget);
  // The index-th of the running. False: it does not run in this step.
  bool PlanRun(size_t index, int32_t num_tokens, BlockBudget* budget);
  bool PlanRunWithOrder(size_t index, StepDecision::Run* run,
                        BlockBudget* budget);
  // Of a request whose compressions before the next-th are done, or found in
  // the prefix cache: tokens to compute in this step.
  int32_t TokensToRun(const RequestState& request, int32_t next,
                      int32_t num_computed, int32_t token_budget) const;
  // Whether there may be an eviction to order with the step that ends at
  // `length`.
  bool MayOrder(const RequestState& request, int32_t next,
                int32_t length) const;
  // That eviction, if any. `match`: of one that is about to be admitted; else
  // null.
  bool PlanOrder(const RequestState& request, int32_t length,
                 const PrefixMatch* match, StepDecision::Order* order) const;
  // Of an order that is worth it: the window groups that are evicted from, too.
  void PlanWindows(const RequestState& request, const PrefixMatch* match,
                   StepDecision::Order* order) const;
  // Whether PlanPressure has chosen it.
  bool IsSqueezed(const RequestState& request) const;
  // The point of one that is not planned: a command, or a squeeze. False: it
  // makes no sense any more.
  bool PlanUnplannedPoint(const RequestState& request, int32_t length,
                          const PrefixMatch* match,
                          CompressionPoint* point) const;
  // Lets the orders of running requests copy, where that is preferred and those
  // who run have left room.
  void PlanCopies(BlockBudget* budget);
  // Blocks beyond the watermark: the one headroom out of which all orders of a
  // step copy, once those who run have what they need.
  int32_t Headroom(int32_t available) const {
    return std::max(0, available - watermark_blocks_);
  }
  // Fresh destinations: at least what own blocks cannot give; all of them when
  // preferred and the headroom has them.
  int32_t FreshForOrder(const StepDecision::Order& order,
                        int32_t headroom) const;
  BlockBudget BlocksNow() const;
  // Hands out the tokens that equal shares have left.
  void TopUp(BlockBudget* budget, int32_t* token_budget);

  // Speculation (drafts.cc): the same.
  // Whether the next run of a running request follows what is in flight.
  bool AwaitsDrafts() const;
  // Adds drafts to the runs of running requests, as far as the step has tokens
  // left and nobody who runs will miss the blocks.
  void PlanDrafts(BlockBudget* budget, int32_t* token_budget);
  // Drafts that the next run of a request may verify: its length is sure where
  // it is compressed, and its last token is never an input.
  int32_t MaxDrafts(const RequestState& request) const;
  // Available blocks that no running request takes until the step is over.
  int32_t SpareBlocks(const BlockBudget& budget) const;
  absl::Status ValidateDrafts(const StepInFlight& step,
                              const StepResult& result) const;
  // Drafts ready for the request's next run.
  void SetDrafts(RequestState* request, int32_t num_drafts);
  // Makes accepted drafts outputs, up to a stop token; then `stops` is set.
  // Returns the positions of the run that count.
  int32_t TakeAccepted(const StepInFlight::Run& run,
                       std::span<const int32_t> accepted, Effects* effects,
                       bool* stops);
  // Voids the positions of the other drafts.
  void VoidRejected(const StepInFlight::Run& run, int32_t num_settled);

  // Pressure (pressure.cc): the same.
  // Chooses whom to squeeze, so that what the running ones soon need will be
  // there.
  void PlanPressure(const BlockBudget& budget);
  // Blocks that they take until a step issued now is over, and one more.
  int64_t BlocksSoon() const;
  // Whether squeezing it with its next step is worth it; then it is squeezed,
  // and `released` says how many blocks that gives back.
  bool TrySqueeze(const RequestState& request, int32_t* released);

  // Admission (admission.cc): the same.
  enum class Verdict : uint8_t {
    kAdmitted,
    kDoesNotFit,      // passed by later ones, max_bypasses times
    kLetsOthersPass,  // for its own good, as it turned out now
    kAwaits,          // the same, or its parent, as was known before
    kIsTooLong,       // while enough long prompts are computed
    kLacksScorerState,
    kTenantIsFull,
  };
  void PlanWaiting(BlockBudget* budget, int32_t* token_budget);
  Verdict TryAdmit(RequestState* request, BlockBudget* budget,
                   int32_t* token_budget);
  // Tries to admit on `match`, which is taken then; false, with nothing
  // decided, when blocks are short.
  bool PlanAdmission(RequestState* request, PrefixMatch* match,
                     BlockBudget* budget, int32_t* token_budget);
  bool IsAffordable(const RequestState& request, const PrefixMatch& match,
                    const BlockBudget& budget);
  // The longest cached prefix. `used`: see BlockManager::Match.
  PrefixMatch FindPrefix(const RequestState& request,
                         const EvictionPlan& eviction, PrefixMatch used = {});
  // Extends it by a part of a block, if that is wanted.
  void MatchPart(const RequestState& request, int32_t max_tokens,
                 PrefixMatch* match) const;
  // The first of its compressions that `match` does not stand for.
  static int32_t NextCompression(const RequestState& request,
                                 const EvictionPlan& eviction,
                                 const PrefixMatch& match);
  // Tokens that a step computes of any request, drafts aside, at most.
  int32_t MaxChunk() const;
  // Of this one when so many are left, drafts included.
  int32_t MaxChunk(const RequestState& request, int64_t num_left) const;
  // Of one with so many tokens in the end, as many as it can have with these
  // compressions in the whole pool, and its peak then.
  struct Fit {
    int32_t max_chunk = 0;
    int32_t peak_blocks = 0;
  };
  Fit FitPool(int32_t length, std::span<const CompressionPoint> compressions,
              const DecodeCompression* decode,
              const EvictionCommand* squeeze) const;
  // What a request is promised: all that is known of it, or its completion.
  enum Promise : uint8_t { kKnown, kCompletion };
  static int32_t LengthOf(const RequestState& request, Promise promise);
  // Blocks of it that others use.
  static int32_t NumInUse(const PrefixMatch& match) {
    return match.num_saved() - match.num_cooling;
  }
  // Whether a compression of the request itself, or of one that runs, is to
  // come over blocks in use: what is kept of them is copied to others.
  bool IsCopied(const RequestState& request, const PrefixMatch& match) const;
  // Blocks at the peak, those of `match` included; those in use twice if they
  // are copied on the way.
  int32_t NeededOn(const RequestState& request, const PrefixMatch& match,
                   Promise promise) const;
  // Blocks that a running request will still take until it has computed
  // `length` positions: RemainingBlocks.
  int32_t Remaining(const RequestState& request, int32_t length) const;
  // Blocks that running and admitted requests will still take.
  int64_t BlocksPromised(Promise promise) const;
  // Returns the blocks that a running request must reserve of its tenant's
  // quota: the blocks that it has and will still take. In models with windows:
  // its peak.
  int32_t ToReserve(const RequestState& request) const;
  void RefreshReservation(RequestState* request);
  // Of those below its next cut, blocks that others use, too: see IsCopied.
  int32_t SharedBelow(const RequestState& request) const;
  int64_t Promised(Promise promise);
  // Whether the engine can accumulate scores for one more sequence than those
  // that run or are admitted by this step.
  bool HasScorerState(const RequestState& request) const;
  // Whether one more long prompt may be computed, if it is one.
  bool IsLong(const RequestState& request) const;
  bool MayPrefill(const RequestState& request);
  // Whether more than its last token is left to compute, of one that may come
  // back from the host tier.
  static bool IsPrefill(const RequestState& request, const PrefixMatch& match);

  // Requests that let another one compute their prefix
  // (prefix_waits.cc): the same.
  bool MayWait(const RequestState& request) const;
  // For whom it had better wait, as it is about to compute what the request
  // lacks.
  PrefixWait FindPrefixWait(const RequestState& request,
                            const PrefixMatch& match) const;
  const RequestState* WhoComputes(const RequestState& request,
                                  const PrefixMatch& match) const;
  // Who is about to make the longest region that the request would make at the
  // same length itself. O(running + compressions).
  PrefixWait FindRegionToCome(const RequestState& request) const;
  // The length of the longest that `other` will make from its compression
  // `next` on; 0: none.
  int32_t RegionToCome(const RequestState& request, const RequestState& other,
                       int32_t next) const;
  // The first compression whose region is still to come.
  int32_t NextToCome(const RequestState& running) const;
  // Whether what an earlier look found goes on. O(1), or O(compressions).
  bool StillWaits(const RequestState& request) const;

  // Doing (step_applier.cc).
  void Apply(StepPlan* plan);
  void ApplyPreemptions(StepPlan* plan);
  void ApplyWaits();
  // Whether they run or not: what they have lost is no longer theirs.
  void ApplyRestarts(StepPlan* plan);
  void Admit(RequestState* request, const PrefixMatch& match);
  // Makes the compressions of a prefix found those of the request.
  void AdoptCompressions(RequestState* request, const PrefixMatch& match);
  // `source`: of the tokens that it has; kNoSequenceSlot: the prefix cache.
  void WriteStart(const RequestState& request, SequenceSlot source,
                  StepPlan* plan) const;
  // What the run adds to the tables: `blocks` are new.
  void WriteBlocks(const StepDecision::Run& run,
                   std::span<const BlockId> blocks, StepPlan* plan) const;
  void WriteRun(const StepDecision::Run& run, std::span<const BlockId> blocks,
                StepPlan* plan, StepInFlight* record);
  void WriteOrder(const StepDecision::Run& run, StepPlan* plan,
                  StepInFlight* record);
  // For what the order says it covers.
  void TakeDestinations(int32_t num_fresh, EvictionOrder* order,
                        StepPlan* plan);

  // Swap (step_applier_swap.cc).
  // Copies what a request that is preempted has settled to the host tier, if
  // that can be and there is room.
  void WriteSwapOut(RequestState* request, StepPlan* plan);
  // Extends what the prefix cache has of a request by what the host tier has.
  void MatchSwapped(const RequestState& request, PrefixMatch* match) const;
  // Of the admitted ones, whose starts begin at `first_start`.
  void ApplySwapIns(size_t first_start, StepPlan* plan);
  void DropSwap(RequestState* request);

  // Going on after a loss (answer_settler_loss.cc).
  void LoseBlocks(std::span<const BlockId> blocks);
  void LoseHostBlocks(std::span<const HostBlockId> blocks);
  // Lets a request whose slot has the first num_left tokens left go on from
  // those that it may go on from. False, with nothing changed: from none.
  bool RestartInSlot(RequestState* request, int32_t num_left);

  // Settling (answer_settler.cc).
  // What the request computes next, for others to wait for.
  void UpdateFront(RequestState* request);
  absl::Status ValidateResult(const StepResult& result) const;
  absl::Status ValidateOutcomes(const StepInFlight& step,
                                const StepResult& result) const;
  void SettleRun(const StepInFlight::Run& run, const RunAnswer& answer,
                 Effects* effects);
  // Tells the token. True: it is a stop token.
  bool AddOutput(RequestState* request, int32_t token, Effects* effects);
  void SettleOrder(const StepInFlight& step, const StepInFlight::Order& order,
                   std::span<const EvictionOutcome> outcomes, Effects* effects);
  // Carries out and publishes.
  EvictionReceipt CommitOrder(RequestState* request,
                              const StepInFlight::Order& order,
                              std::span<const EvictionOutcome> outcomes);
  EvictionReceipt CommitFirstGroup(RequestState* request,
                                   const StepInFlight::Order& order,
                                   std::span<const int32_t> counts);
  // Takes back an order that the engine has refused, at least for one layer
  // group. The request goes on without the eviction, or waits and is computed
  // again without it. If it can never fit without it, the request fails with
  // `why`.
  void AbortOrder(RequestState* request, const StepInFlight::Order& order,
                  std::span<const EvictionOutcome> outcomes,
                  const absl::Status& why, Effects* effects);
  // Removes the planned eviction that was ordered last from the request's
  // history, so that no recomputation repeats it. Returns an error, with
  // nothing changed, if the request can never fit without that eviction.
  absl::Status LeaveOutLast(RequestState* request);
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
  WaitingQueue waiting_;
  WaitingQueue::Walk walk_{waiting_};  // scratch of those who plan
  PrefixHints prefix_hints_;           // of those that wait; for kPrefix
  PrefixMatch match_;                  // scratch of looks at those that wait
  std::string prefix_history_;         // scratch of FindPrefix, as are
  std::vector<int32_t> prefix_limits_;
  PrefillFront prefill_front_;           // of those that run
  std::vector<RequestState*> running_;   // in order of RunsBefore
  std::vector<StepInFlight> in_flight_;  // oldest first, at most 4
  Tenants tenants_;
  std::vector<TenantId> served_tenants_;   // scratch of Update
  std::vector<int32_t> gaps_;              // scratch of PlanShares
  std::vector<StepInFlight> spare_steps_;  // memory for records to come
  std::vector<SequenceSlot> released_;     // slots to tell the engine about
  std::vector<RegionId> dropped_regions_;  // likewise, kept in vain
  std::vector<SwapId> dropped_swaps_;      // likewise
  StepDecision decision_;
  std::vector<TokenDemand> demands_;  // scratch of Apply
  std::vector<int64_t> new_offsets_;
  std::vector<BlockId> new_blocks_;
  int32_t num_squeezable_ = 0;       // of the running ones
  int32_t num_spared_ = 0;           // of the running ones
  int32_t num_speculating_ = 0;      // of the running ones: have drafts
  std::vector<int32_t> candidates_;  // scratch of PlanPressure
  bool has_restarts_ = false;        // perhaps one of the running ones
  int64_t now_ms_ = std::numeric_limits<int64_t>::min();  // as yet unknown
  uint64_t next_request_ = 1;
  uint64_t next_step_ = 1;
  uint64_t next_command_ = 1;
  SchedulerStats totals_;  // the counters; gauges are filled in by stats()
  KeptHistogram kept_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_IMPL_H_
