// What the scheduler decides for a step, and what it remembers of it until the
// engine has answered. Plain data, internal to scheduler/.
#ifndef SCHEDULER_STEP_DECISION_H_
#define SCHEDULER_STEP_DECISION_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/string_view.h>

#include "blockmgr/block_manager.h"
#include "scheduler/request_state.h"
#include "scheduler/tenants.h"

namespace blockmgr {

// No limit of a chunk but the step's.
inline constexpr int32_t kNoShare = INT32_MAX;
// What a request is promised: blocks for all of its known tokens, or for its
// completion.
enum Promise : uint8_t { kKnown, kCompletion };
// What one step will do. Reused from step to step.
struct StepDecision {
  struct Run {
    const RequestState* request = nullptr;
    int32_t num_tokens = 0;
    int32_t num_drafts = 0;  // the last of the tokens
    int32_t num_blocks = 0;  // that the tokens take
    int32_t match = -1;      // into `matches`: admitted on it; -1: was running
    int32_t order = -1;      // into `orders`; -1: none
  };
  struct Order {
    CompressionPoint point;
    int32_t num_destinations = 0;
    int32_t num_own = 0;  // blocks below the cut that nobody else uses
    // Likewise of window groups, those that are evicted from.
    struct Window {
      int32_t group = 0;
      int64_t page_total = 0;
      int32_t num_destinations = 0;
      CoveredBlocks covered = {};
    };
    std::vector<Window> windows;
    int32_t num_fresh = 0;  // of all groups
    // Blocks below the cut that nobody else uses, less those of the regions:
    // negative where many are shared.
    int32_t num_gained = 0;
    bool futile = false;  // a command that would free nothing: only answered

    // Blocks it will give back. What is copied comes back whole.
    int32_t num_released() const { return std::max(0, num_gained + num_fresh); }
    // Fresh blocks if all is copied, or as little as can be.
    int32_t num_copied() const {
      int32_t num_blocks = num_destinations;
      for (const Window& window : windows) {
        num_blocks += window.num_destinations;
      }
      return num_blocks;
    }
    int32_t num_lacking() const {
      int32_t num_blocks = std::max(0, num_destinations - num_own);
      for (const Window& window : windows) {
        num_blocks +=
            std::max(0, window.num_destinations - window.covered.num_own);
      }
      return num_blocks;
    }
  };
  // A waiting request that did not fit, and how many were admitted before that.
  struct Passed {
    const RequestState* request = nullptr;
    int32_t num_admitted = 0;
  };
  // One that lets another one compute its prefix.
  struct Wait {
    const RequestState* request = nullptr;
    PrefixWait found;
  };
  // A waiting fork that is compressed as its parent is by now.
  struct Inherited {
    const RequestState* fork = nullptr;
    EvictionPlan eviction;
  };
  enum class Fate : uint8_t {
    kKept,
    kPreempted,
    kGivesNothing,  // kept: as long as others run, its blocks are theirs too
  };
  std::vector<const RequestState*> preempted;
  std::vector<Fate> fates;  // of running requests
  int32_t num_kept = 0;     // of those
  int32_t num_spared = 0;   // of those admitted
  std::vector<Run> runs;    // running ones in their order, then admitted ones
  std::vector<PrefixMatch> matches;
  std::vector<Order> orders;
  std::vector<Passed> passed;
  std::vector<Wait> prefix_waits;
  std::vector<Inherited> inherited;  // whether admitted or not
  std::vector<const RequestState*>
      misplaced;                              // waiting, in another lane by now
  std::vector<const RequestState*> squeezed;  // of the running ones
  int32_t num_awaiting = 0;  // another one, as was known before
  bool has_drafts = false;
  // What those admitted will compute first, as in PrefillFront.
  absl::flat_hash_map<BlockKey, const RequestState*> computing;
  int32_t chunk_share = kNoShare;  // tokens of a chunk at most
  int64_t num_looked_blocks = 0;   // of cached prefixes, compared for it
  // Long prompts that are computed, once it is asked for.
  std::optional<int32_t> num_long_prefills;
  // By Promise, once they are asked for.
  std::array<std::optional<int64_t>, 2> promised;

  // Begins a new decision. No RequestState::index reaches num_objects.
  void Clear(size_t num_objects);
  void Add(const Run& run);
  void Inherit(const RequestState& fork, EvictionPlan eviction);
  // Lets a fork wait until its parent has computed what the two share.
  void Await(const RequestState& fork);
  bool Awaits(const RequestState& request) const;
  // Returns the request's run, or null if it has none.
  const Run* RunOf(const RequestState& request) const;
  // Returns how the request is compressed once this decision is applied.
  const EvictionPlan& EvictionOf(const RequestState& request) const;
  // Blocks at the peaks of the tenant's requests that are admitted. O(those).
  int64_t ReservedBy(TenantId tenant) const;

 private:
  // What was found out about one request, if `decision` is the number of this
  // decision.
  struct Mark {
    uint64_t decision = 0;
    int32_t run = -1;        // into runs
    int32_t inherited = -1;  // into inherited
    bool awaits = false;
  };
  const Mark* Find(const RequestState& request) const;
  Mark& MarkOf(const RequestState& request);

  uint64_t number_ = 0;
  std::vector<Mark> marks_;  // by RequestState::index
};

// What became of blocks while a step is decided.
struct BlockBudget {
  int32_t available = 0;  // can be taken by this step
  int32_t coming = 0;     // will be available when steps in flight are over
  // Likewise, if all who use them let them go, or the engine does not refuse.
  int32_t perhaps = 0;
  int32_t squeezed = 0;  // of these, by squeezes
};

// A step between Schedule and Update.
struct StepInFlight {
  struct Run {
    const RequestState* request = nullptr;
    RequestId id{0};
    uint32_t incarnation = 0;
    int32_t num_tokens = 0;
    int32_t num_drafts = 0;  // the last of the tokens
    bool samples = false;

    // Returns whether the request has ended, or begun anew, since then.
    bool is_stale() const {
      return request->id != id || request->incarnation != incarnation;
    }
  };
  struct Order {
    size_t run = 0;  // into runs
    CompressionPoint point;
    int32_t num_released = 0;
    std::vector<int32_t> window_groups;  // with an order of their own
    bool futile = false;                 // not part of the plan
    RegionId region = kNoRegion;         // that the engine keeps

    // One for each group.
    int32_t num_outcomes() const {
      return futile ? 0 : 1 + static_cast<int32_t>(window_groups.size());
    }
    int32_t group_of(int32_t outcome) const {
      return outcome == 0 ? 0 : window_groups[outcome - 1];
    }
  };
  StepId id{0};
  std::vector<Run> runs;
  std::vector<Order> orders;
};

// What a StepResult says of one run.
struct RunAnswer {
  int32_t sampled = -1;
  std::span<const int32_t> accepted = {};
  int32_t num_drafts = 0;       // ready for the next one
  absl::string_view data = {};  // for the frontend
};

}  // namespace blockmgr

#endif  // SCHEDULER_STEP_DECISION_H_
