// What a frontend asks for, and what happens to it, as plain data.
#ifndef SCHEDULER_REQUEST_H_
#define SCHEDULER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/block_hash.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {

enum class EvictionMode : uint8_t {
  kNone,
  kAfterPrefill,  // once, at the end of the prompt
  // Block prompt processing (KeyDiff, arXiv 2504.15364, section 2.4): after
  // every compress_every tokens of the prompt and at its end, always down to
  // the same budget. Bounds the peak whatever the length of the prompt.
  kEveryChunk,
  // At the end of the prompt, and again after every compress_every tokens that
  // are computed after it: region and tail become a new region. A target in
  // tokens bounds what a sequence holds however long its output; a ratio is of
  // all tokens so far.
  kDecode,
  // Not before blocks are short; then instead of a preemption. Only requests
  // that have computed their prompts are squeezed.
  kPressure,
};

// Eviction as part of a request: a lossy cache is the request's own choice.
struct RequestEviction {
  EvictionMode mode = EvictionMode::kNone;
  EvictionPolicy policy;
  EvictionTarget target;
  // kEveryChunk, kDecode: tokens; a multiple of page_size, no shorter than the
  // policy's observation window. Chunks are cut at its multiples.
  int32_t compress_every = 0;
  // What policy.budget.profile names; for headkv and lukv only.
  std::shared_ptr<const BudgetTable> table;
  // Opts in to compressed prefixes: what other requests with this eviction and
  // the same first tokens have left in the prefix cache may stand for the
  // beginning of this one, and they for theirs. The prompt is then compressed
  // at the end of its last whole page instead of its very end; what is kept of
  // a prefix found depends on all compressions that made it. A table divides
  // the budget of each by its own length, and is known by its content.
  bool share_prefix = false;
  // For share_prefix: the prompt is compressed at the last multiple of so many
  // tokens, itself a multiple of page_size, instead; 0: page_size. Prompts that
  // go on from others often agree in whole messages or chunks only. Requests
  // with different ones share nothing.
  int32_t share_multiple = 0;
};

// A wish for the blocks of tokens [begin, end), counted from the request's
// admission to the queue.
struct RetentionWish {
  int32_t begin = 0;
  int32_t end = 0;  // 0: everything from `begin` on, outputs too
  int32_t priority = kDefaultPriority;  // 0..kMaxPriority, the higher stays
  int64_t duration_ms = 0;              // 0: for ever
};

struct Request {
  std::string id;               // unique among live requests, 1..128 bytes
  std::vector<int32_t> prompt;  // at least one token, all >= 0
  int32_t max_tokens = 16;      // at least one
  std::vector<int32_t> stop_token_ids;  // at most 4,096
  RequestEviction eviction;
  // Its tenant (also for quotas and fair share), who may share its prefix, and
  // what its tokens stand for.
  ContentScope scope;
  // For the engine, which gets it with the request (RequestInfo): sampling
  // parameters, say. Any bytes, at most 16 KiB.
  std::string engine_data = {};
  // How long the cache should keep its blocks; at most 64.
  std::vector<RetentionWish> retention;
  int32_t priority = 0;  // SchedulingPolicy::kPriority: lower is served first
  // A live request of the same tenant, adapter and salt, by id; empty: none.
  // This one begins as that one does (n > 1), or goes on from there (beams):
  // where the other runs when this one is admitted, it shares what that has
  // computed of their common first tokens, to the token, whether prefixes are
  // cached or not; else it is admitted like any other. It is compressed as the
  // other, at the same tokens, but for commands and pressure that met the other
  // behind this one's prompt: `eviction` is to be left alone.
  std::string fork_of = {};
};

// An eviction ordered from outside for a live request.
struct EvictionCommand {
  // Observes no more queries than the engine has kept of the sequence
  // (SchedulerOptions::query_window), whatever its window says.
  EvictionPolicy policy;
  EvictionTarget target;
  // Positions [0, cut) are covered; a multiple of page_size, or 0: as many as
  // possible when the order is issued.
  int32_t cut = 0;
  // ScorerKind::kExternal: [num_layers, num_heads, cut], by position.
  std::shared_ptr<const std::vector<float>> scores;
  // BudgetKind::kExternal: entries per (layer, head), >= 0, not all 0.
  std::shared_ptr<const std::vector<int32_t>> budgets;
  // What policy.budget.profile names; for headkv and lukv only.
  std::shared_ptr<const BudgetTable> table;
};

enum class FinishReason : uint8_t { kLength, kStop, kCancelled, kFailed };
inline constexpr int32_t kNumFinishReasons = 4;

struct TokenEffect {
  RequestId request{0};
  int32_t token = 0;
  int32_t index = 0;  // of the output, from 0
};

// What the engine says of tokens of a request, from this one on
// (StepResult::token_data).
struct TokenDataEffect {
  RequestId request{0};
  int32_t index = 0;  // of the output
  std::string data;
};

struct FinishEffect {
  RequestId request{0};
  FinishReason reason = FinishReason::kLength;
  absl::Status status;  // not OK for kFailed
  int32_t num_output_tokens = 0;
  int32_t num_cached_tokens = 0;  // prefix hit, or fork, when first admitted
  int32_t num_preemptions = 0;
};

// The end of an eviction, whether part of a request or commanded.
struct EvictionEffect {
  RequestId request{0};
  uint64_t command = 0;  // Scheduler::Evict's answer; 0: the request's own
  // Not OK: nothing was evicted. Internal: the engine refused; if the request
  // cannot do without, its FinishEffect says so as well.
  absl::Status status;
  int32_t cut = 0;
  int64_t evicted_entries = 0;  // summed over groups, layers and heads
  int32_t freed_blocks = 0;     // whole blocks given up by the sequence
  int64_t freed_bytes = 0;
  // Below the cut, of group 0, [num_layers, num_heads]; of a command that has
  // nothing to free, what they keep as it is.
  std::vector<int32_t> kept_entries;
};

// What an Update, Cancel or engine loss brought about, in order.
struct Effects {
  std::vector<TokenEffect> tokens;
  std::vector<TokenDataEffect> token_data;  // of some of them, in their order
  std::vector<FinishEffect> finished;
  std::vector<EvictionEffect> evictions;

  void Clear() {
    tokens.clear();
    token_data.clear();
    finished.clear();
    evictions.clear();
  }
};

}  // namespace blockmgr

#endif  // SCHEDULER_REQUEST_H_
