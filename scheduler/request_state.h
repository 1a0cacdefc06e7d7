// RequestState: everything that the scheduler knows about one live request,
// and the compressions (evictions) that the request goes through.
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

// CompressionPoint is one eviction of a sequence. The request plans the point
// from the start, or the scheduler records the point when it has carried out a
// command or a squeeze. A listed point depends on the request alone, not on the
// batch or the load. A preempted request repeats its points when it is computed
// again.
struct CompressionPoint {
  int32_t length = 0;  // tokens computed when the eviction happens
  int32_t cut = 0;     // the eviction covers positions [0, cut)
  EvictionPolicy policy;
  EvictionTarget target;
  std::shared_ptr<const std::vector<float>> scores;
  std::shared_ptr<const std::vector<int32_t>> budgets;
  int64_t page_total = 0;    // most pages of the region in a shard
  uint64_t command = 0;      // number of the command to answer, 0 if none
  bool is_planned = true;    // listed before it is ordered
  bool is_shared = false;    // other requests may start with the region
  bool is_recorded = false;  // a command or a squeeze that was carried out
  // If true, the region takes fresh blocks only when the request's own blocks
  // are too few. EvictionMode::kEveryChunk needs this, because it bounds the
  // peak of the request, and a copy would exceed the bound.
  bool in_place = false;

  // Returns whether the point was ordered because blocks are short.
  bool is_squeeze() const { return !is_planned && command == 0; }
};

// DecodeCompression holds the compressions of EvictionMode::kDecode. They
// happen at the lengths begin + k * every, k >= 1.
struct DecodeCompression {
  CompressionPoint point;  // the fields that all of the points share
  std::shared_ptr<const BudgetTable> table;
  int32_t begin = 0;  // length of the prompt
  int32_t every = 0;
  // The length of the last point that the engine has refused. No point is
  // listed at or before this length.
  int32_t refused_until = 0;
  // With several shards, or with rounding to tokens, a budget table decides how
  // many pages a region has. Then region_blocks is the most blocks of any
  // region that is made at a length up to `end`. This need not be the last
  // region, because the shares of the heads change with the cut.
  int32_t end = 0;
  int32_t region_blocks = 0;

  // Returns the length behind which the next point lies, when the points in
  // `listed` are listed already.
  int32_t LastLength(std::span<const CompressionPoint> listed) const {
    const int32_t last = std::max(begin, refused_until);
    return listed.empty() ? last : std::max(listed.back().length, last);
  }
};

// SharedCompression is common to all requests that share a compressed prefix
// (RequestEviction::share_prefix).
struct SharedCompression {
  std::string plan;        // the plan's name, see RegionName
  CompressionPoint point;  // the fields that all of the points share
  std::shared_ptr<const BudgetTable> table;
};

// EvictionPlan says how a request is compressed.
struct EvictionPlan {
  // All points, past and to come, by ascending length. Only the next point of
  // `decode` is listed.
  std::vector<CompressionPoint> compressions = {};
  // The scores that the engine accumulates for the policy, and the position of
  // the first query that they count.
  ScorerState scorer_state = ScorerState::kNone;
  int32_t state_begin = 0;
  // Null where the plan has no such part.
  std::unique_ptr<const DecodeCompression> decode = nullptr;
  std::unique_ptr<const EvictionCommand> squeeze = nullptr;
  std::unique_ptr<const SharedCompression> sharing = nullptr;

  // Returns the first compression that is made behind `length` tokens.
  int32_t NextAfter(int32_t length) const;
  // Returns the tokens computed at the last of the first num_done compressions.
  // Returns 0 if num_done is 0.
  int32_t LengthOf(int32_t num_done) const {
    return num_done == 0 ? 0 : compressions[num_done - 1].length;
  }
  // Returns the most tokens, of num_tokens known ones, that a request may take
  // from a cache. The last compression in the cached prefix was made at
  // `length`, which is 0 if there was none. The request computes at least its
  // last token and every observation window of the compressions to come.
  int32_t MaxCachedTokens(int64_t num_tokens, int32_t length) const;
  // Returns how many queries per layer the engine must keep, at least `least`.
  int32_t CountQueriesKept(int32_t least) const;
};

// A command that waits for the request's next step.
struct PendingCommand {
  uint64_t number = 0;
  EvictionCommand command;
};

// WaitingPlace orders the waiting requests of a tenant. The smallest place is
// served first.
struct WaitingPlace {
  int64_t rank = 0;      // the rank that the scheduling policy gives
  uint64_t arrival = 0;  // the RequestId, which breaks ties by age
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 misreads it
  friend auto operator<=>(const WaitingPlace&, const WaitingPlace&) = default;
};

// The bits of RequestState::lane. All waiting requests of a lane need the same
// scarce thing. When it is used up, a walk over the queue skips the whole lane.
inline constexpr uint8_t kLongPromptLane = 1;   // a turn for a long prompt
inline constexpr uint8_t kScorerStateLane = 2;  // a scorer state in the engine
inline constexpr int32_t kNumLanes = 4;

class PrefixHints;      // prefix_hints.h
struct PrefixHintList;  // prefix_hints.h
struct RequestState;

// PrefixHintLinks puts a request on a list of PrefixHints. Only PrefixHints
// sees the links: a const RequestState leads to no request that can be changed.
class PrefixHintLinks {
  friend class PrefixHints;
  // The list that the request is on. Null if the request is on no list.
  PrefixHintList* list_ = nullptr;
  RequestState* previous_ = nullptr;  // the neighbors on the list
  RequestState* next_ = nullptr;
};

// PrefixHint is what PrefixHints (`links` to `dropped`) and PrefillFront
// (`computing`) remember about a request.
struct PrefixHint {
  PrefixHintLinks links;
  int32_t num_blocks = 0;  // cached prefix at the last lookup
  uint64_t dropped = 0;    // entries that the cache had dropped until then
  std::optional<BlockKey> computing;  // the block that it will publish next
};

// PrefixWait names another request that is about to compute a prefix of a
// waiting request. While the other request goes on, the waiting request need
// not look into the cache again.
struct PrefixWait {
  const RequestState* other = nullptr;  // null if there is none
  RequestId id{0};                      // number of `other`
  int32_t usable = 0;  // tokens that can be used when `other` is done
  // True if the usable tokens are in a region that is made at `usable`.
  bool is_region = false;
};

// After so many preemptions a request is spared. It is preempted again only if
// all other candidates are spared, too. It is admitted only when it and all
// running requests can be completed.
inline constexpr int32_t kSparedPreemptions = 2;

// RequestState objects are pooled and reused (RequestTable). None is freed
// while the scheduler lives, so a record of a step in flight may point to one.
// The record is stale if `id` or `incarnation` has changed since: the request
// has ended, was preempted, or has lost blocks.
//
// The fields that every decode step reads are the first 128 bytes, so that two
// cache lines are touched for each request of a large batch.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): ordered by use
struct alignas(64) RequestState {
  RequestId id{0};
  std::vector<int32_t> tokens;  // the prompt, then the known outputs
  // While running:
  SequenceSlot slot = kNoSequenceSlot;
  uint32_t incarnation = 0;  // changes when the answers in flight become void
  int32_t num_computed = 0;  // positions that issued steps compute
  // The most tokens that steps in flight will sample. Drafts count as accepted.
  int32_t num_placeholders = 0;
  int32_t num_drafts = 0;        // drafts ready at the engine's last answer
  int32_t num_unverified = 0;    // drafts in flight
  int32_t next_compression = 0;  // index into eviction.compressions
  bool running = false;
  bool order_in_flight = false;
  // The next step starts the request again in its slot.
  bool restarts = false;
  bool was_admitted = false;  // admitted at least once since submission
  int32_t num_prompt = 0;
  int32_t max_tokens = 0;
  int32_t max_chunk = 0;    // most tokens of it that one step computes
  int32_t max_settled = 0;  // most positions settled at any time
  std::unique_ptr<const PendingCommand> command;
  // The tokens that end the request after its first min_tokens outputs,
  // ascending. The engine's end tokens are among them.
  std::vector<int32_t> stop_token_ids;
  EvictionPlan eviction;  // a waiting fork has what it inherited last

  int32_t min_tokens = 0;
  bool needs_prompt_logprobs = false;
  size_t index = 0;          // index in RequestTable, never changes
  int32_t num_in_cache = 0;  // positions not computed when it (re)started
  // The queries per layer that the engine keeps, as told to the engine when the
  // request (re)started.
  int32_t num_queries_kept = 0;
  // The keys of full blocks of `tokens`. A waiting request has all of them; a
  // running request has at least those of the blocks that it has published.
  BlockChain chain;
  PrefixHint hint;

  std::shared_ptr<const RequestInfo> info;  // sent to the engine
  TenantId tenant = kNoTenant;
  int32_t priority = 0;
  // The most blocks of the request if it runs alone from its first token on.
  int32_t peak_blocks = 0;
  // The part of its tenant's quota max_blocks that a running request uses: the
  // most blocks that it will hold from now on.
  int32_t reserved_blocks = 0;
  uint64_t submit_step = 0;  // SchedulerState::next_step at submission
  // The parent until the request is admitted. 0 if there is none.
  RequestId fork_of{0};
  // The number of first tokens that this request and fork_of had in common when
  // this request was submitted.
  int32_t num_common = 0;
  int32_t num_records = 0;  // compression points and media at submission

  // While waiting:
  WaitingPlace place;     // a running request keeps it for its return
  uint8_t lane = 0;       // kLongPromptLane, kScorerStateLane
  SwapId swap = kNoSwap;  // the request's KV in the host tier
  int32_t num_swapped_compressions = 0;  // next_compression when swapped out
  int32_t times_passed = 0;  // later requests admitted because it did not fit
  int32_t prefix_waits = 0;  // steps in which it waited for a prefix
  PrefixWait prefix_wait;

  // Since submission:
  int32_t num_cached_tokens = 0;  // prefix hit or fork at first admission
  int32_t num_preemptions = 0;

  bool is_spared() const { return num_preemptions >= kSparedPreemptions; }
  TenantDemand demand() const {
    return {.prompt_tokens = num_prompt,
            .peak_blocks = peak_blocks,
            .num_records = num_records};
  }
  int32_t num_outputs() const {
    return static_cast<int32_t>(tokens.size()) - num_prompt;
  }
  // Returns the known tokens plus the tokens that steps in flight will sample.
  int32_t num_tokens() const {
    return static_cast<int32_t>(tokens.size()) + num_placeholders;
  }
  // Returns how many known tokens the search for cached tokens may use. At
  // least the last of them is computed. A request that asks for
  // log-probabilities of its prompt must compute every prompt token once, so it
  // uses only tokens that were settled before, and one more.
  int64_t num_cacheable() const {
    const int64_t num_known = std::ssize(tokens);
    return needs_prompt_logprobs ? std::min(num_known, int64_t{max_settled} + 1)
                                 : num_known;
  }
  // Returns how many queries per layer the engine keeps of a running request,
  // or will keep of a request that starts with the next step.
  int32_t CountQueriesKept(int32_t least) const {
    return running && !restarts ? num_queries_kept
                                : eviction.CountQueriesKept(least);
  }
  // Returns how many positions are computed in all. The last output is never an
  // input, so its position is not computed.
  int32_t last_length() const { return num_prompt + max_tokens - 1; }
};

}  // namespace blockmgr

#endif  // SCHEDULER_REQUEST_STATE_H_
