// StepDecision is what the next step will do. StepInFlight is what the
// scheduler remembers of an issued step until the engine has answered. Both are
// plain data, internal to scheduler/.
#ifndef SCHEDULER_STEP_DECISION_H_
#define SCHEDULER_STEP_DECISION_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/strings/string_view.h>

#include "blockmgr/block_manager.h"
#include "scheduler/request_state.h"
#include "scheduler/tenants.h"

namespace blockmgr {

// StepDecision::chunk_share if only the step's token budget limits a chunk.
inline constexpr int32_t kNoShare = INT32_MAX;
// A request is promised blocks for all of its known tokens, or for all tokens
// up to its end.
enum Promise : uint8_t { kKnown, kCompletion };
// The planner fills the same StepDecision for every step.
struct StepDecision {
  struct Run {
    const RequestState* request = nullptr;
    int32_t num_tokens = 0;
    int32_t num_drafts = 0;  // the last num_drafts of num_tokens are drafts
    int32_t num_blocks = 0;  // new blocks for the tokens
    // Index into `matches` if this step admits the request, -1 if it ran.
    int32_t match = -1;
    int32_t order = -1;  // index into `orders`, -1 without an eviction
  };
  // GroupOrder is the part of an order that is about one layer group.
  struct GroupOrder {
    int32_t group = 0;
    int64_t page_total = 0;        // EvictionOrder::page_total
    int32_t num_destinations = 0;  // blocks of the new region
    CoveredBlocks covered = {};    // blocks that the new region replaces

    // Returns how many destinations are fresh blocks: all of them if the
    // eviction copies, otherwise those that the sequence's own blocks cannot
    // provide.
    int32_t CountFresh(bool copies) const {
      return copies ? num_destinations
                    : std::max(0, num_destinations - covered.num_own);
    }
  };
  // An eviction that the step orders.
  struct Order {
    CompressionPoint point;
    // The groups that are evicted from, in ascending order. An order evicts
    // from a group only if that frees blocks of the group, and from other
    // groups only if it evicts from group 0.
    //
    // If the vector is empty, the order is futile: the region of group 0
    // already covers the cut, or the new region would need at least as many
    // blocks as it replaces. A futile order is not part of the plan, and its
    // point counts as made. If a command asked for the eviction, the command is
    // answered with the entries that every head keeps now.
    absl::InlinedVector<GroupOrder, 1> groups;
    int32_t num_fresh = 0;  // fresh blocks taken as destinations, all groups
    // The covered blocks that no other sequence uses, minus the destinations,
    // summed over groups. Negative if many blocks are shared.
    int32_t num_gained = 0;

    bool is_futile() const { return groups.empty(); }
    // Returns how many blocks come back when the eviction is committed. Every
    // fresh destination frees one more of the old blocks.
    int32_t num_released() const { return std::max(0, num_gained + num_fresh); }
    // Returns how many destinations of all groups are fresh blocks.
    int32_t CountFresh(bool copies) const {
      int32_t num_blocks = 0;
      for (const GroupOrder& group : groups) {
        num_blocks += group.CountFresh(copies);
      }
      return num_blocks;
    }
  };
  // A waiting request that did not fit. num_admitted requests were admitted
  // before it was tried. Requests admitted afterwards pass it.
  struct Passed {
    const RequestState* request = nullptr;
    int32_t num_admitted = 0;
  };
  // A waiting request that lets another request compute its prefix.
  struct Wait {
    const RequestState* request = nullptr;
    PrefixWait found;
  };
  // A waiting fork with a new eviction plan, because the plan of its parent has
  // changed.
  struct Inherited {
    const RequestState* fork = nullptr;
    EvictionPlan eviction;
  };
  enum class Fate : uint8_t {
    kKept,
    kPreempted,
    kGivesNothing,  // kept, because it shares all its blocks
  };
  std::vector<const RequestState*> preempted;
  std::vector<Fate> fates;  // indexed as the running requests
  int32_t num_kept = 0;     // running requests that are not preempted
  int32_t num_spared = 0;   // admitted requests that are spared
  // The runs of running requests, in their order, then of admitted requests.
  std::vector<Run> runs;
  std::vector<PrefixMatch> matches;
  std::vector<Order> orders;
  std::vector<Passed> passed;
  std::vector<Wait> prefix_waits;
  std::vector<Inherited> inherited;  // forks, admitted or not
  // Waiting requests that now belong to another lane.
  std::vector<const RequestState*> misplaced;
  std::vector<const RequestState*> squeezed;  // running requests
  // Forks that wait for their parents, and requests that still wait for a
  // prefix which an earlier step has found to be coming.
  int32_t num_awaiting = 0;
  bool has_drafts = false;
  // The first block that each admitted request will compute (see PrefillFront).
  absl::flat_hash_map<BlockKey, const RequestState*> computing;
  int32_t chunk_share = kNoShare;  // most tokens of a chunk
  int64_t num_looked_blocks = 0;   // cached blocks compared for this decision
  // Running and admitted long prefills. Counted at first use.
  std::optional<int32_t> num_long_prefills;
  // Blocks promised, by Promise. Summed up at first use (BlockPromises::All).
  std::array<std::optional<int64_t>, 2> promised;

  // Begins a new decision. REQUIRES: every RequestState::index is below
  // num_objects.
  void Clear(size_t num_objects);
  void Add(const Run& run) { runs.push_back(run); }
  void Inherit(const RequestState& fork, EvictionPlan eviction);
  // Records that a fork waits until its parent has computed their common
  // tokens.
  void Await(const RequestState& fork);
  bool Awaits(const RequestState& request) const;
  // Returns the request's run, or null if it has none.
  const Run* RunOf(const RequestState& request) const;
  // Returns how the request is compressed once this decision is applied.
  const EvictionPlan& EvictionOf(const RequestState& request) const {
    return inherited.empty() ? request.eviction : InheritedOf(request);
  }
  // Returns the sum of peak_blocks over the tenant's requests that this step
  // admits. O(admitted requests).
  int64_t CountReservedBy(TenantId tenant) const;

 private:
  // The indices of one request in this decision. A mark is valid only if
  // `decision` is number_, so that Clear need not touch the marks.
  struct Mark {
    uint64_t decision = 0;
    int32_t run = -1;        // index into runs, -1 if none
    int32_t inherited = -1;  // index into inherited, -1 if none
    bool awaits = false;
  };
  const Mark* Find(const RequestState& request) const;
  Mark& MarkOf(const RequestState& request) const;
  const EvictionPlan& InheritedOf(const RequestState& request) const;

  uint64_t number_ = 0;
  // Only few steps ask for the run of a request, so RunOf marks the runs that
  // were added since the last question.
  mutable std::vector<Mark> marks_;  // indexed by RequestState::index
  mutable size_t num_marked_ = 0;    // runs that are marked
};

// BlockBudget counts the blocks that are left while a step is decided.
struct BlockBudget {
  int32_t available = 0;  // blocks that this step can take
  // The further blocks that become available once the steps in flight are
  // answered.
  int32_t coming = 0;
  // Blocks that come with the same answers only if all users of a block release
  // it, or only if the engine does not refuse a command or a squeeze.
  int32_t perhaps = 0;
  int32_t squeezed = 0;  // the part of `perhaps` that squeezes release
};

// StepInFlight is a step that was issued (Schedule) and not answered (Update).
struct StepInFlight {
  struct Run {
    const RequestState* request = nullptr;
    RequestId id{0};
    uint32_t incarnation = 0;
    int32_t num_tokens = 0;
    int32_t num_drafts = 0;  // the last num_drafts of num_tokens are drafts
    bool samples = false;

    // Returns whether the request has ended, was preempted or has restarted
    // since the step was issued. The answer is ignored then.
    bool is_stale() const {
      return request->id != id || request->incarnation != incarnation;
    }
  };
  struct Order {
    size_t run = 0;  // index into runs
    CompressionPoint point;
    int32_t num_released = 0;
    // The groups of StepDecision::Order::groups. The engine reports an outcome
    // for each of them.
    absl::InlinedVector<int32_t, 1> groups;
    RegionId region = kNoRegion;  // name of the new region if kept

    bool is_futile() const { return groups.empty(); }
  };
  StepId id{0};
  std::vector<Run> runs;
  std::vector<Order> orders;
};

// RunAnswer is the part of a StepResult that is about one run.
struct RunAnswer {
  int32_t sampled = -1;
  std::span<const int32_t> accepted = {};
  int32_t num_drafts = 0;                 // ready for the next step
  absl::string_view data = {};            // the engine's bytes for the frontend
  const RunLogProbs* logprobs = nullptr;  // null if there are none
  std::optional<int32_t> stop = {};       // the string that `sampled` ends
};

}  // namespace blockmgr

#endif  // SCHEDULER_STEP_DECISION_H_
