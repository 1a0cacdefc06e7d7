// Ledger: the reference model. It hears what crosses the scheduler's border
// (calls, plans, answers, effects), keeps its own books of who holds which
// block, and says when the scheduler does something that these do not allow.
//
// Written without the product's data structures: sets, maps and full recounts.
// Nothing is predicted that the scheduler may choose (who runs, who is
// preempted, which blocks); everything that follows from its choices is:
//
//   * a block is handed out only if nobody holds it and every step dispatched
//     before its last release has been answered
//   * a prefix hit is on blocks that hold exactly these tokens, computed by
//     answered steps without eviction; or on a region, made of exactly these
//     tokens by the evictions that this request asks for, and on blocks
//     computed after the same ones
//   * tables, lengths and regions are the manager's own, after every call
//   * tokens, ends and evictions are told once, in order, and as they were
//   * drafts run once the engine has them and all before them is answered, as
//     far as no length must be exact; those rejected leave no trace
//   * who was promised all its blocks is not preempted, unless blocks are lost
//     or compressed by command
//   * recorded evictions are replayed, no others before them
//   * what the engine refuses has not happened: the request goes on with what
//     it had, or from its first token where a part was carried out, and ends
//     only if it does not fit without
//   * a page leaves a sequence when what is settled has left it behind the
//     window of its layer group, and not before; the region of such a group
//     leaves as a whole, with its cut
//
// Cost: O(everything), fit for small pools only.
#ifndef TESTS_SIM_LEDGER_H_
#define TESTS_SIM_LEDGER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/block_manager.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "tests/sim/report.h"
#include "tests/testing/books.h"
#include "tests/testing/canary_engine.h"

namespace blockmgr::sim {

class Ledger {
 public:
  // `replays`: the engine keeps the same entries when it recomputes.
  Ledger(const ModelLayout& layout, const SchedulerOptions& options,
         bool replays, Report* report);

  void OnSubmit(const Request& request, const absl::StatusOr<RequestId>& id);
  void OnCancel(RequestId request, const absl::Status& status,
                const Effects& effects);
  void OnEvict(RequestId request, const absl::StatusOr<uint64_t>& number);
  void OnWithdraw(uint64_t command);
  void OnPlan(const StepPlan& plan);
  void OnResult(const StepResult& result, const absl::Status& status,
                const Effects& effects);
  // After OnResult of an answer with lost blocks: what the scheduler chose to
  // keep of those who held one.
  void TakeCuts(const BlockManager& manager);
  // After OnResult: who has left its slot because its eviction was refused.
  void TakeLeft(const BlockManager& manager);
  void OnLoseEngine(const Effects& effects);
  void OnReset();

  // Compares the manager's tables and counts with the books.
  void Compare(const BlockManager& manager, const SchedulerStats& stats);
  // All requests have ended and every step is answered.
  void CheckQuiescent(const SchedulerStats& stats);

  // Whether this is an answer to the oldest step in flight.
  bool IsValid(const StepResult& result) const;
  int32_t num_live() const { return static_cast<int32_t>(names_.size()); }
  bool IsLive(const std::string& name) const { return names_.contains(name); }
  // Steps after which every live request must have ended, if nothing else is
  // submitted: the oldest makes progress in every round of steps in flight,
  // from its first token on if it was preempted.
  int64_t CountStepsToDrain() const;

 private:
  struct Served {
    Request request;  // of a fork: with the eviction that it inherits
    // No eviction of its own, nor of its parents, up to now.
    bool is_plain = false;
    int32_t num_own = 0;  // tokens of the prompt that this eviction is of
    std::vector<int32_t> tokens;  // prompt and settled outputs
    int32_t num_placeholders = 0;
    int32_t num_ready = 0;  // drafts that the engine has
    bool live = true;
    SequenceSlot slot = kNoSequenceSlot;
    int32_t peak = 0;  // blocks; 0: evictions have a say in it
    int32_t num_preemptions = 0;
    int32_t num_cached = -1;  // at the first admission; -1: not admitted
    std::vector<CanaryEviction> recorded;  // took effect: must be replayed
    std::vector<CanaryEviction> issued;    // since the last start
    // The engine kept less than it was allowed. How many blocks that takes
    // depends on where the region before lay; so a compression that follows
    // closely may free nothing in a replay, and did (docs/limits.md). Or it has
    // refused in a replay what it had done before.
    bool kept_less = false;
    // Lengths of evictions of its own that the engine has refused: they are not
    // ordered again.
    std::set<int32_t> refused;
    // The first of them, its parents' included: what is made from there on is
    // shared with nobody.
    int32_t refused_at = INT32_MAX;

    int32_t num_prompt() const {
      return static_cast<int32_t>(request.prompt.size());
    }
    int32_t num_outputs() const {
      return static_cast<int32_t>(tokens.size()) - num_prompt();
    }
  };
  // The evictions before what is computed from a length on, for every eviction.
  using Contexts = std::vector<std::pair<int32_t, std::string>>;
  struct Group : GroupBook {
    // Pages that it starts with in the prefix cache, pages left behind
    // included; those that come back are its own.
    int32_t num_shared = 0;
  };
  struct Table {
    RequestId request{0};
    uint64_t stay = 0;  // tells stays in one slot apart
    std::vector<Group> groups;
    int32_t num_reserved = 0;
    int32_t num_settled = 0;
    bool has_scores = false;  // accumulated: no way back
    Contexts contexts;
    // Positions that a loss has left, until TakeCuts.
    std::optional<int32_t> num_sound;
    bool restart_due = false;  // with the next plan
    // Than it was promised: it has lost blocks, was compressed by command, or
    // not compressed, as the engine refused.
    bool takes_more = false;
    // What it needs without the eviction may be more than its tenant has left.
    bool may_leave = false;

    int32_t cut() const { return groups[0].region.cut; }
    // At the last eviction.
    int32_t last_length() const {
      return contexts.empty() ? 0 : contexts.back().first;
    }
    // Whether an eviction is under way: one of group 0, and of others with it.
    bool has_order() const { return groups[0].pending.has_value(); }
    std::set<BlockId> Blocks() const;
  };
  // What was swapped out; the blocks of its table are void.
  struct Swap {
    Table table;
    std::vector<CanaryEviction> issued;
    std::vector<HostBlockId> blocks;
    bool is_due = false;  // to be dropped with the next plan
  };
  struct Step {
    struct Run {
      SequenceSlot slot = kNoSequenceSlot;
      uint64_t stay = 0;
      RequestId request{0};
      int32_t num_tokens = 0;
      int32_t num_drafts = 0;
      bool samples = false;
    };
    StepId id{0};
    std::vector<Run> runs;
    // In order of the plan: those of a run follow each other.
    struct GroupOrder {
      size_t run = 0;
      int32_t group = 0;
      RegionId region = kNoRegion;
    };
    std::vector<GroupOrder> orders;
  };
  struct Block {
    uint64_t fence = 0;            // newest step that may touch it
    std::vector<int32_t> content;  // all tokens up to its end; empty: unknown
    ContentScope scope;            // whose content
    std::string context;           // the evictions before it was computed
    int32_t group = 0;             // of layers
  };
  // A region that the engine keeps.
  struct Region {
    ContentScope scope;
    std::string plan;  // what sharers agree on
    std::vector<int32_t> tokens;
    Contexts contexts;                      // of what is computed over it
    std::vector<BookRegion> regions;        // by group
    std::set<int32_t> gone;                 // groups whose nobody has
    std::vector<CanaryEviction> evictions;  // that made it
  };

  bool IsWellFormed(const Request& request) const;
  // What the first so many tokens depend on besides themselves: tenant, adapter
  // and salt, and all media that begin there.
  static std::string ScopeOf(const ContentScope& scope, int32_t num_tokens);
  // What requests that share compressed prefixes agree on; empty: shares none.
  static std::string PlanOf(const Served& served);
  // Whether the tenant may have this request, too, of so many blocks at most.
  bool IsWithinQuota(const Request& request, int32_t peak) const;
  // Tokens of prompts that have not been admitted.
  int64_t CountQueuedTokens() const;
  // Whether there is room for so many more, or nobody waits.
  bool MayQueue(const Request& request) const;
  void CheckQuotas();
  // Of the tenant's quota, at least: its peak, or, once it has been compressed,
  // what it has.
  int64_t CountReserved(const Served& served) const;
  // The request that this one may be a fork of; null: none, or it may not.
  const Served* ParentOf(const Request& request) const;

  // Plans (ledger_plan.cc).
  void CheckScorerStates(const StepPlan& plan);
  void TakeReleased(const StepPlan& plan);
  // Who was admitted to completion is preempted only where one that runs takes
  // more than it was promised, in place of what it shared.
  void CheckPromise(const Served& victim) const;
  void TakeStart(const StepPlan& plan, const SequenceStart& start);
  void CheckStartContent(const StepPlan& plan, const SequenceStart& start,
                         const Served& served);
  void TakeFork(const SequenceStart& start, Served* served, Table* table);
  void TakeCopies(const StepPlan& plan);
  void TakePart(const StepPlan& plan, const CopyOnWrite& copy,
                const Table& table);
  void TakeRegion(const SequenceStart& start, Served* served, Table* table);
  // The block has other content now. Group 0's regions are found first: what
  // is kept of them may not be overwritten before that was told.
  void OverwriteRegions(BlockId block);
  // Regions that are kept have lost blocks. One without group 0's is of no use.
  void LoseRegions(absl::FunctionRef<bool(BlockId)> is_lost);
  void TakeDropped(const StepPlan& plan);
  void CheckRegionOrder(const Served& served, const EvictionOrder& order);
  void CheckBudgets(const Served& served, const EvictionOrder& order);
  void TakeRun(const StepPlan& plan, size_t index, Step* step);
  // Layer groups (ledger_groups.cc).
  // The blocks that a run adds to a group.
  std::vector<BlockId> NewBlocks(const StepPlan& plan, size_t index,
                                 int32_t group);
  void CheckBlockArrays(const StepPlan& plan);
  // Whether it has what the tokens from `length` on attend to.
  bool CanGoOn(const Table& table, int32_t length) const;
  // Gives up the blocks behind the first `length` tokens.
  void CutTables(int32_t length, Table* table);
  // Gives up the pages and regions that have left the windows.
  void ReleaseOutOfSpan(Table* table);
  // The positions before the first lost block of any group.
  int32_t SoundBefore(const Table& table,
                      const std::vector<BlockId>& lost) const;
  // Bounds of the blocks that a request has at its peak without evictions, or
  // with those in windows alone.
  struct Peaks {
    int32_t least = 0;
    int32_t most = 0;
  };
  Peaks PeaksOf(const Request& request, const EvictionTarget& target) const;
  void CompareGroup(const BlockManager& manager, SequenceSlot slot,
                    int32_t group, const GroupBook& own);
  void TakeBlocks(const StepPlan& plan, size_t index, int32_t group,
                  Table* table);
  void TakeOrder(const StepPlan& plan, const EvictionOrder& order, Step* step);
  // An eviction is of group 0 first, and then perhaps of others.
  void CheckOrder(const EvictionOrder& order, const Step::Run& run,
                  const Step& step);
  // The order, with its destinations taken from `below` or the pool.
  std::optional<BookOrder> TakeDestinations(const StepPlan& plan,
                                            const EvictionOrder& order,
                                            const std::vector<BlockId>& below);
  // Whether a checksum, if there is one, is that of the lists.
  bool ChecksumIsValid(const Table& table, int32_t group,
                       const EvictionOutcome& outcome) const;
  void CheckReplay(const StepPlan& plan);
  // That the block may have the page of this group from `begin` on, for the
  // first num_tokens of the sequence.
  void CheckHit(const Table& table, int32_t group, int32_t begin, BlockId block,
                int32_t num_tokens);
  // The evictions before the page from `begin` on was computed; nothing if
  // there was one meanwhile.
  std::optional<std::string> ContextAt(const Table& table, int32_t begin) const;
  void CheckFresh(BlockId block);
  int32_t CountHolders(BlockId block) const;

  // Swaps (ledger_swap.cc).
  void TakeDroppedSwaps(const StepPlan& plan);
  void TakeSwapOut(const StepPlan& plan, const SwapOut& out);
  void TakeSwapIn(const StepPlan& plan, const SequenceStart& start,
                  Served* served, Table* table);
  // Whether the host tier has all pages of the first num_tokens tokens.
  bool CanReturn(const Table& was, int32_t num_tokens) const;
  // The host blocks of the first num_tokens tokens, group by group: those of
  // its region, then those of its pages.
  struct HostPlace {
    HostBlockId host{0};
    int32_t group = 0;
    bool in_region = false;
  };
  std::vector<HostPlace> HostsOf(const Swap& swap, int32_t num_tokens) const;
  // The regions of a swap on the blocks that the plan copies these places to;
  // false: these are others.
  bool ReturnRegions(const StepPlan& plan, const SequenceStart& start,
                     const Swap& swap, const std::vector<HostPlace>& hosts,
                     Table* table);
  // Once it is known which regions the plan drops.
  void TakeReturning();
  // The copies of the step `fence` are the last to touch its host blocks.
  void DropSwap(SwapId swap, uint64_t fence);
  bool IsHeldInHost(HostBlockId block) const;
  void MarkDueSwaps(RequestId request);
  void SettleHostLoss(const std::vector<HostBlockId>& lost);
  void CompareHost(const SchedulerStats& stats);

  // Losses (ledger_loss.cc).
  void SettleLoss(const std::vector<BlockId>& lost);
  void TakeRestart(const StepPlan& plan, const SequenceStart& start);

  // Drafts (ledger_drafts.cc).
  // That no step is issued before the last token of those with drafts.
  void CheckNobodyAwaits();
  // Of a run that ends at `end`.
  void CheckDrafts(const Table& table, int32_t num_drafts, int32_t end);
  bool DraftsAreValid(const Step& step, const StepResult& result) const;
  // The tokens that each run of the step has sampled, in order.
  static std::vector<std::vector<int32_t>> Sampled(const Step& step,
                                                   const StepResult& result);
  // What of a run with drafts is settled, and what is void.
  void SettleDrafts(const Step::Run& run, int32_t num_tokens, Table* table);

  // Answers (ledger_settle.cc).
  bool CountsAreValid(const Table& table, int32_t group,
                      const std::vector<int32_t>& counts) const;
  Table* Find(const Step::Run& run);
  void Settle(const Step& step, const StepResult& result,
              const Effects& effects);
  void SettleRun(const Step::Run& run, std::vector<int32_t> sampled,
                 const Effects& effects, size_t* next_token);
  // Of one run, and what was answered to each.
  void SettleOrders(const Step::Run& run,
                    std::span<const Step::GroupOrder> orders,
                    std::span<const EvictionOutcome> outcomes,
                    const Effects& effects);
  // The regions that its orders, all carried out, have made.
  void TakeRegions(const Step::Run& run,
                   std::span<const Step::GroupOrder> orders,
                   std::span<const EvictionOutcome> outcomes,
                   const EvictionEffect& effect, Table* table);
  // Of orders that the engine has refused, at least one.
  void SettleRefusal(const Step::Run& run, const EvictionEffect& effect,
                     bool has_moved, const FinishEffect* finish, Table* table);
  // Whether it may be computed without any eviction.
  bool FitsWhole(const Request& request) const;
  // Reserved blocks that were not used.
  void AbortOrders(Table* table);
  // One that is carried out, not recorded yet if it is new.
  void CountEviction(const Served& served, const EvictionEffect& effect);
  // An eviction of `parent` was recorded: its forks that have not started, and
  // theirs, are compressed likewise.
  void NoteInherited(const std::string& parent);
  void CheckReceipt(const EvictionEffect& effect, const BookReceipt& receipt,
                    const std::vector<int32_t>& counts);
  // Remembers what the engine keeps. REQUIRES: the table has the region.
  void KeepRegion(RegionId id, const Table& table, const Served& served);
  // Marks what the full blocks hold.
  void NoteContent(const Served& served, const Table& table);
  void TakeCommandEffects(const Effects& effects);
  void End(const FinishEffect& effect, FinishReason reason);
  const FinishEffect* FindFinish(const Effects& effects,
                                 RequestId request) const;
  void Release(BlockId block);
  void CloseTable(SequenceSlot slot);

  const ModelLayout layout_;
  const BookRules rules_;
  const SchedulerOptions options_;
  const bool replays_;
  Report* const report_;

  std::map<RequestId, Served> requests_;    // all ever accepted
  std::map<std::string, RequestId> names_;  // live
  std::map<SequenceSlot, Table> tables_;    // open
  std::set<SequenceSlot> unannounced_;      // closed, engine not told yet
  std::set<uint64_t> commands_;             // accepted, not answered
  std::set<RequestId> commanded_;           // evicted so since the last plan
  bool was_commanded_ = false;              // ever
  bool was_refused_ = false;                // an eviction, ever
  std::deque<Step> in_flight_;
  std::vector<Block> blocks_;
  std::map<RegionId, Region> regions_;  // sequences may start with
  std::set<RegionId> lost_regions_;     // kept in vain, not dropped yet
  std::map<SwapId, Swap> swaps_;
  std::vector<uint64_t> host_fences_;  // as Block::fence, by host block
  // Blocks that regions come back to, of the plan at hand.
  struct Returning {
    SequenceSlot slot = kNoSequenceSlot;
    int32_t group = 0;
    BlockId block{0};
  };
  std::vector<Returning> returning_;
  uint64_t dispatched_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t next_stay_ = 1;
  uint64_t num_finished_ = 0;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_H_
