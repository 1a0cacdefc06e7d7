// SchedulerOptions: the options that say how requests are ordered, admitted and
// chunked, and how much tenants may use.
//
// An option is a member of a struct, which has its default, and a row of the
// Visit function below the struct, which has its name, range and help text. The
// rows are the source of everything else: Validate(), the flags of blockmgrd
// and of `blockmgr-bench sim` (scheduler/server/option_flags.h), and the
// configuration in a simulation's report. A visitor has
//
//   void Number(absl::string_view name, T& value, T min, T max, text help);
//   void Fraction(absl::string_view name, double& value, text help);  // [0, 1)
//   void Bool(absl::string_view name, bool& value, text help);
//   void Choice(absl::string_view name, E& value, text help);  // EnumNames<E>
//
// where T is int32_t, int64_t or double, and the references are const if the
// options are.
#ifndef SCHEDULER_SCHEDULER_OPTIONS_H_
#define SCHEDULER_SCHEDULER_OPTIONS_H_

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "blockmgr/block_manager.h"
#include "blockmgr/engine_abilities.h"
#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {

// The order in which waiting requests are admitted. A preempted request keeps
// its place in this order.
enum class SchedulingPolicy : uint8_t {
  kFcfs,      // in order of arrival
  kPriority,  // lower Request::priority first, then arrival, as vLLM
  // The longest cached prefix first (SGLang, arXiv 2312.07104, section 3), less
  // prefix_aging tokens for every step that another request has waited longer.
  // Prefixes published while requests wait are looked up again in at most 256
  // blocks per Update, where a look at P cached blocks counts as 16 + P. N
  // requests that wait for a short prefix know of it after about N / 16
  // Updates.
  kPrefix,
};

// AdmissionPolicy says which blocks must be free before a request is admitted.
enum class AdmissionPolicy : uint8_t {
  // Blocks for all known tokens (the whole prompts) of the request and of the
  // requests that run, and a watermark. vLLM does this.
  kWatermark,
  // Blocks up to completion, max_tokens included, for the request and for all
  // that run. No request is preempted, unless the engine loses blocks or
  // refuses an eviction, or a command compresses shared blocks. TensorRT-LLM's
  // GUARANTEED_NO_EVICT.
  kGuaranteed,
  // Blocks for the request's next step. Most requests run at a time, and most
  // are preempted, the youngest first. TensorRT-LLM's MAX_UTILIZATION.
  kMaxUtilization,
};

// ChunkPolicy says how prompts share the tokens of a step that is too short for
// all of them.
enum class ChunkPolicy : uint8_t {
  kFirstCome,      // the oldest takes what it can, the next what is left
  kEqualProgress,  // equal shares in whole pages, the remainder in order
};

// The names of the values in flags and reports.
namespace option_names {
inline constexpr std::array<absl::string_view, 3> kSchedulingPolicy = {
    "fcfs", "priority", "prefix"};
inline constexpr std::array<absl::string_view, 3> kAdmissionPolicy = {
    "vllm", "guaranteed", "max-utilization"};
inline constexpr std::array<absl::string_view, 2> kChunkPolicy = {
    "first-come", "equal-progress"};
inline constexpr std::array<absl::string_view, 2> kCompaction = {"fresh",
                                                                 "in-place"};
}  // namespace option_names
template <>
constexpr std::span<const absl::string_view> EnumNames<SchedulingPolicy>() {
  return option_names::kSchedulingPolicy;
}
template <>
constexpr std::span<const absl::string_view> EnumNames<AdmissionPolicy>() {
  return option_names::kAdmissionPolicy;
}
template <>
constexpr std::span<const absl::string_view> EnumNames<ChunkPolicy>() {
  return option_names::kChunkPolicy;
}
template <>
constexpr std::span<const absl::string_view> EnumNames<CompactionPreference>() {
  return option_names::kCompaction;
}

// TenantLimits is what one tenant may use at a time.
struct TenantLimits {
  int32_t max_blocks = 0;
  int32_t max_requests = 0;
  int64_t max_queued_tokens = 0;
  int32_t weight = 1;

  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

template <typename Limits, typename Visitor>
void VisitTenantLimits(Limits& limits, Visitor&& visitor) {
  visitor.Number("weight", limits.weight, 1, 1000,
                 "The tenant's part of a fair share, 1 to 1000");
  // A running request counts with the most blocks that it will hold from now
  // on. At first this number is the peak of the request. The number falls when
  // the request is compressed, except in models with windows. A request whose
  // peak alone exceeds the limit is refused.
  visitor.Number("max_blocks", limits.max_blocks, 0, INT32_MAX,
                 "Blocks that the tenant's running requests have or may still "
                 "take; more requests wait, while other tenants go on (0: no "
                 "limit)");
  visitor.Number("max_requests", limits.max_requests, 0, INT32_MAX,
                 "Requests, waiting and running; more are refused with "
                 "RESOURCE_EXHAUSTED (0: no limit)");
  visitor.Number("max_queued_tokens", limits.max_queued_tokens, 0, INT64_MAX,
                 "Tokens of prompts that wait; more are refused with "
                 "RESOURCE_EXHAUSTED (0: no limit)");
}

// TenantUse is the present use of a tenant that the options name, or of all
// other tenants together.
struct TenantUse {
  std::string name;             // "*" means all other tenants
  int32_t num_requests = 0;     // waiting and running
  int64_t queued_tokens = 0;    // tokens of prompts not yet admitted
  int64_t reserved_blocks = 0;  // blocks that count against max_blocks
};

// See the Visit functions below for meanings and ranges.
struct SchedulerOptions {
  int32_t max_num_batched_tokens = 2048;
  int32_t max_num_seqs = 256;
  int32_t max_model_len = 131072;
  int32_t long_prefill_token_threshold = 0;
  double watermark = 0.01;
  int32_t max_steps_in_flight = 2;
  int32_t num_speculative_tokens = 0;
  int32_t max_num_blocks = 1 << 22;
  bool enable_prefix_caching = true;
  bool reuse_partial_blocks = false;
  CompactionPreference compaction = CompactionPreference::kFreshFirst;

  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  AdmissionPolicy admission = AdmissionPolicy::kWatermark;
  ChunkPolicy chunk_policy = ChunkPolicy::kFirstCome;
  int32_t prefix_aging = 32;
  int32_t max_bypasses = 16;
  int32_t min_prefix_wait_tokens = 256;
  int32_t max_prefix_wait_steps = 64;
  int32_t max_long_prefills = 0;

  int32_t max_waiting = 65536;
  int64_t max_waiting_tokens = int64_t{1} << 28;
  int32_t query_window = 32;
  bool fair_share = false;
  int32_t max_tenants = 4096;
  TenantLimits tenant_limits;  // of every tenant that is not in `tenants`
  std::map<std::string, TenantLimits> tenants;

  // The attached engine sets these by AttachRequest. They are no flags of the
  // daemon.
  EngineAbilities engine;
  // The seeds of requests that have set none follow from this number and from
  // the number of the request.
  uint64_t sampling_seed = 0;

  absl::Status Validate() const;
  // Checks a request's number of prompt tokens and its max_tokens against
  // max_model_len. InvalidArgument names the field.
  absl::Status CheckLength(int64_t prompt_tokens, int64_t max_tokens) const;
  // Returns the longest observation window that a request's policy may have.
  // The window must fit into one chunk, next to the decodes of all other
  // sequences.
  int32_t max_query_window() const;
};

// Visits the options that limit a step and the use of memory.
template <typename Options, typename Visitor>
void VisitStepOptions(Options& options, Visitor&& visitor) {
  visitor.Number("max_num_batched_tokens", options.max_num_batched_tokens, 1,
                 1 << 28, "Tokens of a step; at least --max-num-seqs");
  visitor.Number("max_num_seqs", options.max_num_seqs, 1, 1 << 20,
                 "Sequences that hold blocks at a time");
  visitor.Number("max_model_len", options.max_model_len, 2, 1 << 28,
                 "Tokens of a request, prompt and output together");
  visitor.Number("long_prefill_token_threshold",
                 options.long_prefill_token_threshold, 0, 1 << 28,
                 "Longest prefill chunk of a request in a step (0: "
                 "--max-num-batched-tokens)");
  visitor.Fraction("watermark", options.watermark,
                   "Fraction of the pool that is left free by evictions that "
                   "copy to fresh blocks and, with --admission vllm, by "
                   "admission");
  visitor.Number("max_steps_in_flight", options.max_steps_in_flight, 1, 4,
                 "Plans that may be sent before the first is answered, 1 to 4");
  visitor.Number("num_speculative_tokens", options.num_speculative_tokens, 0,
                 1024,
                 "Drafts of a sequence that a step verifies at most, if the "
                 "engine has drafts (0: none)");
  // The limit bounds the memory in which this process accounts for blocks. A
  // pool whose blocks have more than 16 tokens may have fewer blocks, in
  // proportion.
  visitor.Number("max_num_blocks", options.max_num_blocks, 2, 1 << 30,
                 "Blocks that an engine's pool, or its host memory, may have; "
                 "each takes 260 bytes of this process, or 750 with regions");
  visitor.Bool("enable_prefix_caching", options.enable_prefix_caching,
               "Reuse the blocks of equal prefixes");
  visitor.Bool("reuse_partial_blocks", options.reuse_partial_blocks,
               "If a prompt goes on as a cached block begins, copy the first "
               "rows of that block instead of computing them");
  visitor.Choice("compaction", options.compaction,
                 "Where an eviction puts the entries it keeps: in fresh blocks "
                 "while there are some, or in the sequence's own blocks "
                 "(in-place)");
}

// Visits the options that choose which requests run and how these requests
// share a step.
template <typename Options, typename Visitor>
void VisitPolicyOptions(Options& options, Visitor&& visitor) {
  visitor.Choice("scheduling_policy", options.policy,
                 "Which waiting request is next: the first to come, the one of "
                 "the lowest priority value, or the one with the longest "
                 "cached prefix (see --prefix-aging). Preempted requests keep "
                 "their place");
  visitor.Choice("admission", options.admission,
                 "Blocks that must be free to admit a request: those of its "
                 "whole prompt and the --watermark (vllm); all that it and the "
                 "running requests will ever need, so that none is preempted "
                 "for want of blocks (guaranteed); those of its next step, and "
                 "the youngest request is paused when blocks run out "
                 "(max-utilization)");
  visitor.Choice("chunk_policy", options.chunk_policy,
                 "How prompts share a step: the oldest first, or equal shares "
                 "in whole pages");
  // No request is passed by later ones for more than max_model_len /
  // prefix_aging steps.
  visitor.Number("prefix_aging", options.prefix_aging, 1, 1 << 28,
                 "With --scheduling-policy prefix: tokens of cached prefix "
                 "that one step of waiting is worth; with a higher value, long "
                 "waits count for more");
  visitor.Number("max_bypasses", options.max_bypasses, 0, 1 << 28,
                 "How often later requests may pass a request that does not "
                 "fit; after that they wait behind it (0: never)");
  visitor.Number("min_prefix_wait_tokens", options.min_prefix_wait_tokens, 0,
                 1 << 28,
                 "A request waits, instead of computing so many tokens, if a "
                 "running request with the same prefix is about to compute "
                 "them (0: never)");
  visitor.Number("max_prefix_wait_steps", options.max_prefix_wait_steps, 0,
                 1 << 28, "Steps that such a request waits at most");
  visitor.Number("max_long_prefills", options.max_long_prefills, 0, 1 << 28,
                 "Prompts longer than --long-prefill-token-threshold that are "
                 "computed at a time; shorter prompts pass them (0: no limit)");
}

// Visits the options that limit clients. A simulation does not need them.
template <typename Options, typename Visitor>
void VisitClientOptions(Options& options, Visitor&& visitor) {
  visitor.Number("max_waiting", options.max_waiting, 1, 1 << 28,
                 "Requests that may wait; more are refused with "
                 "RESOURCE_EXHAUSTED");
  // Tokens of prompts that wait for their first admission. Compression points
  // and media take memory in addition: at most one for every 64 tokens of this
  // limit, or 4096. engine_data does, too.
  visitor.Number("max_waiting_tokens", options.max_waiting_tokens, 1,
                 int64_t{1} << 40,
                 "Tokens of prompts that may wait, 4 bytes of this process "
                 "each; a request that brings more is refused with "
                 "RESOURCE_EXHAUSTED, unless it waits alone");
  visitor.Number("query_window", options.query_window, 0, 1 << 16,
                 "Queries per layer that the engine keeps of every sequence, "
                 "for evictions that clients order; the policies of these "
                 "evictions can observe no more");
  // The virtual token counter of Sheng et al., arXiv 2401.00588.
  visitor.Bool("fair_share", options.fair_share,
               "Serve the tenant first that has been served least for its "
               "weight (virtual token counter); requests of one tenant in the "
               "order of --scheduling-policy");
  visitor.Number("max_tenants", options.max_tenants, 1, 1 << 20,
                 "Tenants remembered at a time; another one is refused while "
                 "all of them have requests");
}

template <typename Options, typename Visitor>
void VisitSchedulerOptions(Options& options, Visitor&& visitor) {
  VisitStepOptions(options, visitor);
  VisitPolicyOptions(options, visitor);
  VisitClientOptions(options, visitor);
  VisitEngineAbilities(options.engine, visitor);
}

// Reads "NAME:weight=3,max-blocks=1000,max-requests=50,max-queued-tokens=9999"
// (any of the limits, once each) into options->tenants, or, for the name *,
// into tenant_limits. InvalidArgument, with nothing changed, names what is
// wrong.
absl::Status ParseTenant(const std::string& text, SchedulerOptions* options);
// Returns the limits that ParseTenant reads, each with its meaning.
std::string DescribeTenantLimits();

}  // namespace blockmgr

#endif  // SCHEDULER_SCHEDULER_OPTIONS_H_
