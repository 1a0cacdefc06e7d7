// How requests are ordered, admitted and chunked; what tenants may use.
#ifndef SCHEDULER_SCHEDULER_OPTIONS_H_
#define SCHEDULER_SCHEDULER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>

#include <absl/status/status.h>

#include "blockmgr/block_manager.h"

namespace blockmgr {

// Who is next among the waiting. Preempted requests keep their place in each.
enum class SchedulingPolicy : uint8_t {
  kFcfs,      // in order of arrival
  kPriority,  // Request::priority, lower first; then arrival (as in vLLM)
  // The longest cached prefix first (SGLang, arXiv 2312.07104, section 3), less
  // prefix_aging tokens for every step that somebody else has waited longer.
  // What is published meanwhile is looked for again in at most 256 blocks per
  // Update, where a look at P cached blocks counts as 16 + P: N that wait for a
  // short prefix know of it after about N / 16 Updates.
  kPrefix,
};

// What must be free before a request is admitted.
enum class AdmissionPolicy : uint8_t {
  // Blocks for everything known of it and of those admitted (their whole
  // prompts), and a watermark. What vLLM does.
  kWatermark,
  // Blocks to completion, max_tokens included, for it and all that run: nobody
  // is ever preempted, unless shared blocks are lost, or are compressed by a
  // command. TensorRT-LLM's GUARANTEED_NO_EVICT.
  kGuaranteed,
  // Blocks for its next step. Most in flight and most preempted: whoever came
  // last is paused. TensorRT-LLM's MAX_UTILIZATION.
  kMaxUtilization,
};

// How a step's tokens are shared by prompts that do not fit together.
enum class ChunkPolicy : uint8_t {
  kFirstCome,      // the oldest takes what it can, the next what is left
  kEqualProgress,  // equal shares in whole pages, what is left in order
};

// What one tenant may use at a time; 0: no limit.
struct TenantLimits {
  // Blocks that its running requests have and may still take: their peaks, and
  // less once they are compressed, but in models with windows. More wait, while
  // other tenants go on; a request above it alone is refused.
  int32_t max_blocks = 0;
  int32_t max_requests = 0;       // waiting and running; more are refused
  int64_t max_queued_tokens = 0;  // of prompts that wait; more are refused
  int32_t weight = 1;             // of its fair share, 1..1000

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

// What a tenant uses now that the options name, or all others together.
struct TenantUse {
  std::string name;             // "*": the others
  int32_t num_requests = 0;     // waiting and running
  int64_t queued_tokens = 0;    // of prompts not yet admitted
  int64_t reserved_blocks = 0;  // what counts against max_blocks
};

struct SchedulerOptions {
  // Token budget of a step; at least max_num_seqs. How many queries a policy of
  // a request may observe follows: max_num_batched_tokens - max_num_seqs + 1,
  // or long_prefill_token_threshold, if that is less.
  int32_t max_num_batched_tokens = 2048;
  int32_t max_num_seqs = 256;      // sequences that hold blocks
  int32_t max_model_len = 131072;  // prompt and output together

  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  // kPrefix: tokens of cached prefix that one more step of waiting is worth. No
  // request is passed by later ones for more than max_model_len / prefix_aging
  // steps.
  int32_t prefix_aging = 32;
  // How often a request that does not fit may be passed by later ones that do,
  // in all; then they wait behind it. 0: never.
  int32_t max_bypasses = 16;
  // A request waits instead of computing at least that many tokens of prefix
  // that a running one is about to compute; 0: never.
  int32_t min_prefix_wait_tokens = 256;
  // Steps that it waits at most.
  int32_t max_prefix_wait_steps = 64;

  AdmissionPolicy admission = AdmissionPolicy::kWatermark;
  // kWatermark: fraction of the pool that admission leaves free.
  double watermark = 0.01;

  ChunkPolicy chunk_policy = ChunkPolicy::kFirstCome;
  // Longest prefill chunk of one request in one step; 0: the token budget.
  int32_t long_prefill_token_threshold = 0;
  // Prompts longer than that threshold that are computed at a time; shorter
  // ones pass them. 0: no limit.
  int32_t max_long_prefills = 0;

  int32_t max_steps_in_flight = 2;  // 1..4
  // Speculative decoding: drafts of one sequence that a step verifies at most,
  // as far as the engine has some; 0..1024. 0: none, whatever it has.
  int32_t num_speculative_tokens = 0;
  int32_t max_waiting = 65536;  // requests; one more is refused
  // Tokens of prompts that wait for their first admission, 4 bytes of this
  // process each (engine_data and media come on top). More are refused, but not
  // a request that waits alone.
  int64_t max_waiting_tokens = int64_t{1} << 28;
  // Of an engine's pool, and of its host memory: what is known of every block
  // (250 bytes, or 740 with regions) is this process's memory. A pool with
  // more is refused, and one with as many blocks of more than 16 tokens, by as
  // much as they are larger.
  int32_t max_num_blocks = 1 << 22;
  // Queries per layer that an engine keeps of every sequence for evictions
  // ordered from outside; policies of requests raise it for their own.
  int32_t query_window = 32;
  // Sequences for which the engine can accumulate scores (ScorerState) at a
  // time. A request whose policy needs that waits for one, or is refused when
  // there is none.
  int32_t num_scorer_states = 0;
  // Blocks of host memory that the engine has for preempted requests: as long
  // as there is room their KV is copied there, and back when they run again.
  // The others are computed again. 0: all of them.
  int32_t num_host_blocks = 0;
  // Whether the engine carries out orders of window groups
  // (EvictionOrder::group). A request whose target evicts in windows is refused
  // otherwise.
  bool supports_window_evictions = false;
  bool enable_prefix_caching = true;
  // Whether the first rows of a cached block are copied where a prompt goes on
  // as the block begins: saves computing less than a page of tokens per
  // request, for a copy of that many rows.
  bool reuse_partial_blocks = false;
  CompactionPreference compaction = CompactionPreference::kFreshFirst;

  // Serve the tenant first that has been served least for its weight (the
  // virtual token counter of Sheng et al., arXiv 2401.00588); its own requests
  // in order of `policy`.
  bool fair_share = false;
  TenantLimits tenant_limits;  // of every tenant that is not in `tenants`
  std::map<std::string, TenantLimits> tenants;
  // Tenants that are remembered at a time. One more is refused while all of
  // them have requests.
  int32_t max_tenants = 4096;

  absl::Status Validate() const;
  // Checks a request's number of prompt tokens and its max_tokens against
  // max_model_len. InvalidArgument names the field.
  absl::Status CheckLength(int64_t prompt_tokens, int64_t max_tokens) const;
  // The longest observation window that fits in a chunk next to the decodes of
  // every other sequence.
  int32_t max_query_window() const;
};

// What flags and configurations call them.
const std::map<std::string, SchedulingPolicy>& SchedulingPolicyNames();
const std::map<std::string, AdmissionPolicy>& AdmissionPolicyNames();
const std::map<std::string, ChunkPolicy>& ChunkPolicyNames();

// Reads "NAME:weight=3,max-blocks=1000,max-requests=50,max-queued-tokens=9999"
// (any of them, once each) into options->tenants, or, for the name *, into
// tenant_limits. InvalidArgument, with nothing changed, names what is wrong.
absl::Status ParseTenant(const std::string& text, SchedulerOptions* options);

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_OPTIONS_H_
