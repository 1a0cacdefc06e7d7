// Requests of frontends and the effects that frontends are told of, as plain
// data.
#ifndef SCHEDULER_REQUEST_H_
#define SCHEDULER_REQUEST_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/sampling_params.h"

namespace blockmgr {

enum class EvictionMode : uint8_t {
  kNone,
  kAfterPrefill,  // once, at the end of the prompt
  // After every compress_every tokens of the prompt and at its end, always down
  // to the same budget. The peak of the request is bounded for a prompt of any
  // length. This is block prompt processing (KeyDiff, arXiv 2504.15364, section
  // 2.4).
  kEveryChunk,
  // At the end of the prompt, and again after every compress_every tokens that
  // are computed after the prompt. Region and tail become a new region. A
  // target in tokens bounds the blocks of a sequence for an output of any
  // length. A ratio is a ratio of all tokens so far.
  kDecode,
  // Only when blocks are short, so that no request need be preempted. Such an
  // eviction is called a squeeze. A request is squeezed only after it has
  // computed its prompt.
  kPressure,
};

// The names of modes in flags, in reports and in Python.
inline constexpr std::array<absl::string_view, 5> kEvictionModeNames = {
    "none", "after-prefill", "every-chunk", "decode", "pressure"};
template <>
constexpr std::span<const absl::string_view> EnumNames<EvictionMode>() {
  return kEvictionModeNames;
}

// RequestEviction is a request's choice of a lossy cache.
struct RequestEviction {
  EvictionMode mode = EvictionMode::kNone;
  EvictionPolicy policy;
  EvictionTarget target;
  // kEveryChunk and kDecode: tokens between compressions. A multiple of
  // page_size, no shorter than the policy's observation window. Chunks of a
  // prompt end at its multiples.
  int32_t compress_every = 0;
  // The table that policy.budget.profile names, for headkv, lukv and duo only.
  std::shared_ptr<const BudgetTable> table;
  // If true, this request may start with a compressed prefix that a request
  // with the same eviction and the same first tokens has left in the prefix
  // cache. It leaves its own compressed prefix for later requests. The prompt
  // is compressed at the end of its last whole page, not at its very end.
  // Results may depend on how often a found prefix was compressed. A budget
  // table divides the budget of every compression by the length at that point,
  // and two tables are the same if their contents are equal.
  bool share_prefix = false;
  // For share_prefix: the prompt is compressed at its last multiple of so many
  // tokens. A multiple of page_size; 0 means page_size. A larger multiple finds
  // more when prompts agree in whole messages or chunks only. Requests with
  // different values share nothing.
  int32_t share_multiple = 0;
};

// Shows a visitor of options (scheduler_options.h) the members that are numbers
// and flags, under their names in request.proto. The rows are the source of
// their ranges, of their conversion to messages and back, and of their command
// line flags (scheduler/server/eviction_flags.h).
template <typename Eviction, typename Visitor>
void VisitRequestEviction(Eviction& eviction, Visitor&& visitor) {
  visitor.Number("compress_every", eviction.compress_every, 0, INT32_MAX,
                 "Evict after every so many tokens, of the prompt "
                 "(every-chunk) or of the output (decode); a multiple of the "
                 "page size");
  visitor.Bool("share_prefix", eviction.share_prefix,
               "Let requests start with the compressed prefixes of others in "
               "the prefix cache");
  visitor.Number("share_multiple", eviction.share_multiple, 0, INT32_MAX,
                 "With --share-compressed-prefixes: compress at the last "
                 "multiple of so many prompt tokens, a multiple of the page "
                 "size (512 for Mooncake traces, which name 512 tokens at a "
                 "time); 0: the page size");
}

// RetentionWish asks the prefix cache to keep the blocks of tokens [begin, end)
// longer than other blocks, from the request's submission on.
struct RetentionWish {
  int32_t begin = 0;
  // 0 means all tokens from `begin` on, outputs included.
  int32_t end = 0;
  int32_t priority = kDefaultPriority;  // 0..kMaxPriority, higher stays longer
  int64_t duration_ms = 0;              // 0 means without end
};

struct Request {
  std::string id;               // unique among live requests, 1..128 bytes
  std::vector<int32_t> prompt;  // at least one token, all >= 0
  int32_t max_tokens = 16;      // at least one
  std::vector<int32_t> stop_token_ids;  // at most 4,096
  RequestEviction eviction;
  // The tenant (also for quotas and fair share), and everything besides tokens
  // that two requests must have in common to share a prefix.
  ContentScope scope;
  // Bytes that the engine gets with the request (RequestInfo). At most 16 KiB.
  std::string engine_data = {};
  // The rules by which the engine chooses tokens. Without a value, the engine
  // takes the most likely token (greedy). If the seed is not set, the scheduler
  // draws one (SchedulerOptions::sampling_seed).
  std::optional<SamplingParams> sampling = std::nullopt;
  // At most 64 wishes.
  std::vector<RetentionWish> retention;
  // SchedulingPolicy::kPriority serves lower numbers first.
  int32_t priority = 0;
  // The id of a live parent request of the same tenant, adapter and salt; empty
  // if this request is no fork. A fork begins with the parent's tokens, for
  // parallel samples (n > 1) or beams. If the parent runs when the fork is
  // admitted, the fork shares the KV of their common first tokens, even within
  // a block, and even without a prefix cache. If the parent does not run, the
  // fork is admitted like any request. A fork is compressed at the points of
  // its parent, so `eviction` must be empty. Commands and squeezes that the
  // parent had behind the fork's prompt are not repeated.
  std::string fork_of = {};
};

// EvictionCommand is an eviction that a caller orders for a live request.
struct EvictionCommand {
  // The policy observes at most the queries that the engine has kept of the
  // sequence, even if its window is larger. The engine keeps
  // SchedulerOptions::query_window queries, or more if the request's own policy
  // observes more.
  EvictionPolicy policy;
  EvictionTarget target;  // its window_keep_ratio must be 1
  // The eviction covers positions [0, cut). A multiple of page_size; 0 means as
  // many positions as possible when the order is issued. With `scores`, it must
  // be set.
  int32_t cut = 0;
  // For ScorerKind::kExternal: [num_layers, num_heads, cut], by position.
  std::shared_ptr<const std::vector<float>> scores;
  // For BudgetKind::kExternal: entries, [num_layers, num_heads], each >= 0, not
  // all 0.
  std::shared_ptr<const std::vector<int32_t>> budgets;
  // The table that policy.budget.profile names, for headkv, lukv and duo only.
  std::shared_ptr<const BudgetTable> table;
};

enum class FinishReason : uint8_t { kLength, kStop, kCancelled, kFailed };
inline constexpr int32_t kNumFinishReasons = 4;

struct TokenEffect {
  RequestId request{0};
  int32_t token = 0;
  int32_t index = 0;  // among the outputs, from 0
};

// TokenDataEffect carries the engine's bytes about one or more outputs of a
// request (StepResult::token_data).
struct TokenDataEffect {
  RequestId request{0};
  int32_t index = 0;  // the index of the first of these outputs
  std::string data;
};

// LogProbsEffect carries log-probabilities of a request's prompt or outputs.
struct LogProbsEffect {
  RequestId request{0};
  // The outputs that the request had before the run that brought the rows.
  int32_t num_outputs = 0;
  bool of_prompt = false;
  TokenLogProbs logprobs;
};

struct FinishEffect {
  RequestId request{0};
  FinishReason reason = FinishReason::kLength;
  absl::Status status;  // an error if `reason` is kFailed
  // With kStop: the index in SamplingParams::stop of the string that ended the
  // request. Empty if a stop token or an end token did.
  std::optional<int32_t> stop = std::nullopt;
  int32_t num_output_tokens = 0;
  int32_t num_cached_tokens = 0;  // prefix hit or fork at first admission
  int32_t num_preemptions = 0;
};

// EvictionEffect tells how an eviction ended, of the request's own or of a
// command.
struct EvictionEffect {
  RequestId request{0};
  // The number from Scheduler::Evict. 0 for an eviction of the request's own.
  uint64_t command = 0;
  // If the status is not OK, nothing was evicted. Internal means that the
  // engine refused. If the request cannot fit without the eviction, it fails,
  // and a FinishEffect follows.
  absl::Status status;
  int32_t cut = 0;
  int64_t evicted_entries = 0;  // summed over groups, layers and heads
  int32_t freed_blocks = 0;     // whole blocks given up by the sequence
  int64_t freed_bytes = 0;
  // The entries that remain below the cut in group 0, [num_layers, num_heads].
  // If a command could free nothing, these are the entries as they were.
  std::vector<int32_t> kept_entries;
};

// Effects collects what an Update, a Cancel or the loss of the engine brought
// about. Each array is in the order of events.
struct Effects {
  std::vector<TokenEffect> tokens;
  std::vector<TokenDataEffect> token_data;  // at most one for each token
  std::vector<LogProbsEffect> logprobs;
  std::vector<FinishEffect> finished;
  std::vector<EvictionEffect> evictions;

  void Clear() {
    tokens.clear();
    token_data.clear();
    logprobs.clear();
    finished.clear();
    evictions.clear();
  }
};

}  // namespace blockmgr

#endif  // SCHEDULER_REQUEST_H_
