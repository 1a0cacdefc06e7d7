// An eviction policy says which entries a sequence may lose. It is plain data:
// scorer | budget | selector, then options.
//
//   snapkv(window=32,pool=max,kernel=7) | adakv(alpha=0.2) | topk
//
// is its text form in flags, configs and logs. Spaces between words are free.
// The options protect(sinks,recent) and round(page|token) come last, in any
// order. policy_fields.h has a row for each name: its keys and their ranges.
// The keys keep the names of the papers. docs/algorithms.md has the formulas.
//
// Thread-compatible. Parsing and formatting cost O(length of the text).
#ifndef BLOCKMGR_EVICTION_POLICY_H_
#define BLOCKMGR_EVICTION_POLICY_H_

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/eviction/keep_ratio.h"

namespace blockmgr {

// Every enum below has the order of its names in policy_fields.h, and the
// numbers of its values in proto/blockmgr/v1/common.proto.
enum class ScorerKind : uint8_t {
  kSnapKv,  // SnapKV (2404.14469), pooled attention of the last queries
  kH2o,     // H2O (2306.14048): attention, summed over queries
  kTova,    // TOVA (2401.06104): attention of the last query, averaged over the
            // layer's query heads; a shard averages over its own heads only
  kKeyDiff,            // KeyDiff (2504.15364): distance from the other keys
  kExpectedAttention,  // Expected Attention (2510.00636): attention of
                       // predicted queries
  kStreaming,  // StreamingLLM (2309.17453): the last entries and the sinks
  kKnorm,      // L2 norm (2406.11430): small keys are kept
  kRandom,     // noise from (seed, layer, head, position), for comparison
  kExternal,   // the caller sends one score per entry
  kDropKv,     // DropKV: how far the output of the last queries moves if the
               // entry alone is dropped
};
// ScoreSource says where the scores of a scorer come from.
enum class ScoreSource : uint8_t {
  kBackend,   // Backend::Score computes them
  kPosition,  // no scores; later positions are kept
  kRandom,    // RandomScores computes them
  kCaller,    // the caller sends them
};
enum class PoolKind : uint8_t { kMax, kAvg };
// kAdaKv reduces the group, then pools. kKvPress pools, then reduces.
enum class PoolOrder : uint8_t { kAdaKv, kKvPress };
enum class GroupReduce : uint8_t { kMean, kMax };
// kCount divides a sum by the number of queries that saw the entry.
enum class H2oNorm : uint8_t { kNone, kCount };
// The anchor that a key is compared with: the mean of the normalised keys, the
// mean of the keys, the median of the normalised keys per channel, or every key
// in turn.
enum class KeyDiffAnchor : uint8_t { kNormalized, kRaw, kMedian, kPairwise };
enum class KeyDiffMetric : uint8_t { kCosine, kDot, kEuclidean };

// The state that an engine accumulates for a sequence from its first token on.
enum class ScorerState : uint8_t {
  kNone,
  kAttentionSums,    // one float per (layer, KV head, entry)
  kQueryStatistics,  // sums of q and of q q^T per (layer, query head)
};

// The largest pooling kernel, entries. Pooling costs entries * kernel, and a
// policy may come from an untrusted client.
inline constexpr int32_t kMaxKernel = 1023;

struct ScorerSpec {
  ScorerKind kind = ScorerKind::kSnapKv;
  // snapkv; window and kernel of dropkv too:
  int32_t window = 32;  // observation window, queries
  PoolKind pool = PoolKind::kMax;
  int32_t kernel = 7;  // entries, odd, at most kMaxKernel
  PoolOrder order = PoolOrder::kAdaKv;
  GroupReduce group = GroupReduce::kMean;
  // h2o only:
  H2oNorm norm = H2oNorm::kNone;
  int32_t recent = 0;  // last entries that are protected
  // The number of last queries that count. 0 means all queries.
  int32_t obs_window = 0;
  // keydiff only:
  KeyDiffAnchor anchor = KeyDiffAnchor::kNormalized;
  KeyDiffMetric metric = KeyDiffMetric::kCosine;
  // expected_attention only:
  int32_t n_future = 512;  // future positions to average over
  // The number of first entries. They are protected, and their queries are
  // ignored.
  int32_t n_sink = 4;
  bool cov = true;    // the covariance of the queries is used
  bool vnorm = true;  // scores are multiplied by |v|
  double eps = 0.02;  // added to the attention before that product
  // The name of the engine's QueryStatsTable, whose queries are expected. Empty
  // means the queries of the sequence itself.
  std::string stats = {};
  // streaming only:
  int32_t sinks = 4;  // first entries, protected
  // random only:
  int32_t seed = 0;
  friend bool operator==(const ScorerSpec&, const ScorerSpec&) = default;
};

enum class BudgetKind : uint8_t {
  kUniform,     // equal budgets for all heads
  kPyramid,     // PyramidKV (2406.02069), budgets fall from layer to layer
  kAdaKv,       // Ada-KV (2407.11550), by share of the layer's top scores
  kAdaPyramid,  // pyramid's totals per layer, divided among heads by adakv
  kHeadKv,      // HeadKV (2410.19258), by scores of heads in a table
  kLuKv,        // LU-KV (2602.08585), by a measured profile in a table
  kGlobal,      // by share of the whole model's top scores
  kExternal,    // the caller sends one budget per (layer, head)
  kDuo,         // DuoAttention (2410.10819): the heads with the best scores of
                // a table keep everything, others what is protected
};
// PyramidFormula is the way in which a published program computes a pyramid:
//   kAdaKv    counts whole entries and leaves the protected ones out
//   kKvPress  counts the protected entries too, and gives all layers the same
//             budget if the line leaves [protected, positions]
//   kFactory  (KVCache-Factory) as kAdaKv, but gives all layers the same budget
//             if there are fewer positions than twice the mean budget
enum class PyramidFormula : uint8_t { kAdaKv, kKvPress, kFactory };
// kBlend mixes the uniform budget with the head's share of the pool of all
// scores. kFloor first gives every head its best scores, then shares out the
// rest from the pool.
enum class AdaKvMode : uint8_t { kBlend, kFloor };

struct BudgetSpec {
  BudgetKind kind = BudgetKind::kUniform;
  // adakv, ada_pyramid: the share of the uniform budget that every head keeps.
  // It is rounded to a multiple of 10^-9, so that totals are exact.
  double alpha = 0.2;
  AdaKvMode mode = AdaKvMode::kBlend;  // adakv only
  // pyramid, ada_pyramid: the last layer keeps 1 / beta of the mean.
  double beta = 20.0;
  PyramidFormula formula = PyramidFormula::kAdaKv;
  // headkv: heads share 1 / share of the mean budget by their scores to the
  // power of temp (the paper calls `share` beta).
  double share = 1.2;
  double temp = 1.0;
  // headkv, lukv, duo: the name under which a BudgetTable was loaded.
  std::string profile = {};
  friend bool operator==(const BudgetSpec&, const BudgetSpec&) = default;
};

enum class SelectorKind : uint8_t {
  kTopK,      // keeps the best scores
  kCritical,  // CriticalKV (2502.03805): keeps the best scores first, then the
              // best products of score and size of the value
};
enum class ValueNorm : uint8_t { kL1, kL2 };  // the norm of V W_O

struct SelectorSpec {
  SelectorKind kind = SelectorKind::kTopK;
  // critical only:
  double first = 0.5;  // the share of the budget that the best scores take
  double eps = 1e-4;   // added to the score before the product
  ValueNorm norm = ValueNorm::kL1;
  // True means the group's mean of the products of each query head. False means
  // the product of the group's mean score and mean norm.
  bool gqa_product = false;
  friend bool operator==(const SelectorSpec&, const SelectorSpec&) = default;
};

// Entries that are never evicted as long as the budget covers them.
struct Protection {
  int32_t sinks = 0;  // the first positions of the sequence
  // The number of last positions. -1 means the number of the scorer.
  int32_t recent = -1;
  // Instead of `recent`: so many per cent of the entries that the target keeps
  // of a head. Written "recent=10%". ResolveRecent turns it into `recent`.
  int32_t recent_percent = 0;
  friend bool operator==(const Protection&, const Protection&) = default;
};

enum class Rounding : uint8_t { kPage, kToken };

struct EvictionPolicy {
  ScorerSpec scorer;
  BudgetSpec budget;
  SelectorSpec selector;
  Protection protect;
  Rounding rounding = Rounding::kPage;

  // Checks the range of every field that the policy uses, and that its stages
  // go together. An InvalidArgument names the stage, the key, what was
  // expected and what came.
  absl::Status Validate() const;

  ScoreSource score_source() const;
  // The number of queries before the end of the sequence that the scorer reads.
  int32_t query_window() const;
  // Returns the state that the engine must accumulate from the first token on.
  ScorerState scorer_state() const;
  bool scorer_reads_values() const;
  // The numbers of first and of last positions that are never evicted. A
  // percentage must have been resolved.
  int32_t protected_sinks() const;
  int32_t protected_recent() const;
  bool has_external_scores() const {
    return scorer.kind == ScorerKind::kExternal;
  }
  // Whether the budget is looked up in a BudgetTable.
  bool needs_table() const {
    return budget.kind == BudgetKind::kHeadKv ||
           budget.kind == BudgetKind::kLuKv || budget.kind == BudgetKind::kDuo;
  }
  // Whether the scorer reads the engine's QueryStatsTable named scorer.stats.
  bool needs_query_stats() const {
    return scorer.kind == ScorerKind::kExpectedAttention &&
           !scorer.stats.empty();
  }
  friend bool operator==(const EvictionPolicy&,
                         const EvictionPolicy&) = default;
};

// Returns whether a policy may give this name to a table. kTableNameText says
// in errors what such a name is.
bool IsTableName(absl::string_view name);
inline constexpr absl::string_view kTableNameText =
    "a name of 1 to 64 letters, digits, '_', '-' or '.'";

// Parses the text form and validates the policy. An InvalidArgument names the
// stage, the key, what was expected and what came.
absl::StatusOr<EvictionPolicy> ParsePolicy(absl::string_view text);

// Returns the canonical text: always scorer, budget and selector; options and
// keys only where they differ from their defaults. If the fields that the
// policy does not use hold their defaults, ParsePolicy(FormatPolicy(p)) == p.
std::string FormatPolicy(const EvictionPolicy& policy);

// EvictionTarget says how much to keep: a fraction of the covered positions, or
// tokens per head. Tokens per head is the mean over heads: a budget moves
// entries between heads.
struct EvictionTarget {
  enum class Kind : uint8_t { kRatio, kTokens };
  Kind kind = Kind::kRatio;
  KeepRatio ratio;
  int32_t tokens = 0;
  // The fraction to keep in layers with a sliding window, of the positions that
  // the window covers. 1 evicts nothing there.
  KeepRatio window_keep_ratio = {};

  // Checks tokens >= 1 or 0 < ratio <= 1, and 0 < window_keep_ratio <= 1. An
  // InvalidArgument names the field, what was expected and what came.
  absl::Status Validate() const;
  bool evicts_in_windows() const { return window_keep_ratio != KeepRatio(); }
  // Returns the target for a layer group with a window.
  EvictionTarget InWindow() const {
    EvictionTarget target;
    target.ratio = window_keep_ratio;
    return target;
  }
  // Returns the mean number of entries per head to keep of `covered` positions:
  // max(1, floor(ratio * covered)), or min(tokens, covered).
  // REQUIRES: covered > 0.
  int32_t TokensPerHead(int32_t covered) const;
  friend bool operator==(const EvictionTarget&,
                         const EvictionTarget&) = default;
};

// Turns protect.recent_percent, if it is set, into the number of positions that
// it is at this eviction: the part of target.TokensPerHead(cut), rounded down.
// REQUIRES: cut > 0.
void ResolveRecent(const EvictionTarget& target, int32_t cut,
                   EvictionPolicy* policy);

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_POLICY_H_
