// What the scheduler knows of one live request.
#ifndef SCHEDULER_REQUEST_STATE_H_
#define SCHEDULER_REQUEST_STATE_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/tenants.h"

namespace blockmgr {

// A point at which a sequence is compressed: part of the request, or recorded
// when a command was carried out. Depends on the request alone, never on batch
// or load, so a recomputation replays it.
struct CompressionPoint {
  int32_t length = 0;  // tokens computed when it happens
  int32_t cut = 0;     // positions [0, cut) are covered
  EvictionPolicy policy;
  EvictionTarget target;
  std::shared_ptr<const std::vector<float>> scores;
  std::shared_ptr<const std::vector<int32_t>> budgets;
  int64_t page_total = 0;  // that its region may have: PagesOf
  uint64_t command = 0;    // to be answered; 0: none
  bool is_planned = true;  // in RequestState::compressions before it is ordered
  bool is_shared = false;  // others may start with the region it makes
  bool is_recorded = false;  // a command or a squeeze that was carried out
  // Takes fresh blocks only where its own do not do: the request's peak is
  // promised, not just reckoned with.
  bool in_place = false;

  // Ordered because blocks are short.
  bool is_squeeze() const { return !is_planned && command == 0; }
};

// EvictionMode::kDecode: compressions of lengths begin + k * every, k >= 1.
struct DecodeCompression {
  CompressionPoint point;  // what its points have in common
  std::shared_ptr<const BudgetTable> table;
  int32_t begin = 0;  // length of the prompt
  int32_t every = 0;
  // Up to here none is to be listed: the engine has refused the last one.
  int32_t refused_until = 0;
  // Where a table decides how many pages a region has (several shards, or
  // rounding to tokens): the most blocks that one takes which is made at a
  // length up to `end`. Which heads it favours decides what the largest shard
  // has, and their shares change with the cut: it need not be the last.
  int32_t end = 0;
  int32_t region_blocks = 0;

  // The length behind which it goes on, after the points that are listed.
  int32_t LastLength(std::span<const CompressionPoint> listed) const {
    const int32_t last = std::max(begin, refused_until);
    return listed.empty() ? last : std::max(listed.back().length, last);
  }
};

// RequestEviction::share_prefix: what sharers have in common.
struct SharedCompression {
  std::string plan;        // names it, see RegionName
  CompressionPoint point;  // what its points have in common
  std::shared_ptr<const BudgetTable> table;
};

// How a request is compressed.
struct EvictionPlan {
  // The scores that the engine accumulates for the policy, and the position of
  // the first query that they count.
  ScorerState scorer_state = ScorerState::kNone;
  int32_t state_begin = 0;
  // Ascending length: the points of its past, and those to come. Of `decode`
  // only the next point is listed.
  std::vector<CompressionPoint> compressions = {};
  std::unique_ptr<const DecodeCompression> decode = nullptr;   // null: none
  std::unique_ptr<const EvictionCommand> squeeze = nullptr;    // null: none
  std::unique_ptr<const SharedCompression> sharing = nullptr;  // null: none

  // Returns the first compression that is made behind `length` tokens.
  int32_t NextAfter(int32_t length) const;
  // Returns the tokens computed at the last of the first num_done compressions.
  // Returns 0 if num_done is 0.
  int32_t LengthOf(int32_t num_done) const {
    return num_done == 0 ? 0 : compressions[num_done - 1].length;
  }
  // Returns how many of num_tokens known tokens need not be computed if a cache
  // has them, when the last compression that the cache has made was made at
  // `length` (0: none). At least one token is computed, and so is every
  // observation window.
  int32_t MaxCachedTokens(int64_t num_tokens, int32_t length) const;
  // Returns the queries per layer that the engine must keep, at least `least`.
  int32_t QueriesKept(int32_t least) const;
};

// A command that waits for the request's next step.
struct PendingCommand {
  uint64_t number = 0;
  EvictionCommand command;
};

// Where a request stands among those that wait: less is served first.
struct WaitingPlace {
  int64_t rank = 0;      // what the policy says
  uint64_t arrival = 0;  // the RequestId: unique, and older is less
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
  friend auto operator<=>(const WaitingPlace&, const WaitingPlace&) = default;
};

// What all waiting requests of a kind may lack at once, as bits of
// RequestState::lane.
inline constexpr uint8_t kLongPromptLane = 1;   // the turn of a long prompt
inline constexpr uint8_t kScorerStateLane = 2;  // a state in the engine
inline constexpr int32_t kNumLanes = 4;

struct PrefixHintList;  // prefix_hints.h
struct RequestState;

// What PrefixHints and PrefillFront remember of a request.
struct PrefixHint {
  PrefixHintList* list = nullptr;    // null: on none
  RequestState* previous = nullptr;  // on it
  RequestState* next = nullptr;
  int32_t num_blocks = 0;             // cached prefix when last looked at
  uint64_t dropped = 0;               // entries of the cache, then
  std::optional<BlockKey> computing;  // the next one to be published by it
};

// What a look at a waiting request found another one about to compute for it.
// As long as that goes on there is no need to look again.
struct PrefixWait {
  const RequestState* other = nullptr;  // null: nobody
  RequestId id{0};                      // its
  int32_t usable = 0;      // tokens that can be used when it is done
  bool is_region = false;  // over a region, made at that length
};

// A request that has been preempted so often is the last to be chosen again,
// and comes back only when it, and all that run then, can be completed.
inline constexpr int32_t kSparedPreemptions = 2;

// Objects are pooled and reused, never freed while the scheduler lives, so that
// records of steps in flight may point to them; `id` and `incarnation` tell
// whether such a pointer still means the same stay in the running list, with
// nothing lost since.
//
// What every decode step reads comes first: the states of a large batch do not
// fit in a core's cache otherwise.
struct RequestState {
  RequestId id{0};
  std::vector<int32_t> tokens;  // prompt, then outputs as they are known
  // While running:
  SequenceSlot slot = kNoSequenceSlot;
  uint32_t incarnation = 0;  // changes whenever what is in flight is void
  int32_t num_computed = 0;  // positions of issued steps
  // Tokens sampled by steps in flight, at most: drafts count as accepted.
  int32_t num_placeholders = 0;
  int32_t num_drafts = 0;        // that the engine had ready at its last answer
  int32_t num_unverified = 0;    // drafts in flight, alone
  int32_t num_in_cache = 0;      // positions that this incarnation began with
  int32_t next_compression = 0;  // into compressions
  bool running = false;
  bool order_in_flight = false;
  bool restarts = false;      // in its slot, with the next step
  bool was_admitted = false;  // since submission
  int32_t num_prompt = 0;
  int32_t max_tokens = 0;
  int32_t max_chunk = 0;    // tokens of it that a step computes at most
  int32_t max_settled = 0;  // positions computed at least once
  size_t index = 0;         // of the object: never changes
  EvictionPlan eviction;    // of a fork that waits: as last inherited
  std::unique_ptr<PendingCommand> command;
  std::vector<int32_t> stop_token_ids;  // ascending

  // Names the full blocks of `tokens`: all of them while the request waits, and
  // as many as are published while it runs.
  BlockChain chain;
  PrefixHint hint;

  std::shared_ptr<const RequestInfo> info;  // the engine's
  TenantId tenant = kNoTenant;
  int32_t priority = 0;
  int32_t peak_blocks = 0;  // alone in the pool, from the first token on
  // Of its tenant's quota while it runs: its peak from now on.
  int32_t reserved_blocks = 0;
  uint64_t submit_step = 0;  // the step to be issued next, then
  RequestId fork_of{0};      // until it is admitted; 0: none
  // First tokens that were those of fork_of when the request was submitted.
  int32_t num_common = 0;

  // While waiting:
  WaitingPlace place;                    // kept when it runs, for its return
  uint8_t lane = 0;                      // what it needs, as bits
  SwapId swap = kNoSwap;                 // its KV, in the host tier
  int32_t num_swapped_compressions = 0;  // that were done, then
  int32_t times_passed = 0;  // by later ones, because it did not fit
  int32_t prefix_waits = 0;  // steps for which it let another one compute
  PrefixWait prefix_wait;

  // Since submission:
  int32_t num_cached_tokens = 0;  // prefix hit of the first admission
  int32_t num_preemptions = 0;

  bool is_spared() const { return num_preemptions >= kSparedPreemptions; }
  TenantDemand demand() const {
    return {.prompt_tokens = num_prompt, .peak_blocks = peak_blocks};
  }
  int32_t num_outputs() const {
    return static_cast<int32_t>(tokens.size()) - num_prompt;
  }
  // Known tokens and those that steps in flight will sample.
  int32_t num_tokens() const {
    return static_cast<int32_t>(tokens.size()) + num_placeholders;
  }
  // Positions to compute before nothing is left to sample: the last output is
  // never an input.
  int32_t last_length() const { return num_prompt + max_tokens - 1; }
};

}  // namespace blockmgr

#endif  // SCHEDULER_REQUEST_STATE_H_
