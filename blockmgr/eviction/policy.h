// Which entries a sequence may lose, as data: scorer | budget | selector.
//
// Written  snapkv(window=32,pool=max,kernel=7) | adakv(alpha=0.2) | topk
// in flags, configs and logs. Keys keep the papers' names.
//
//   scorer    snapkv(window,pool=max|avg,kernel,order=adakv|kvpress,
//             group=mean|max), h2o(norm=none|count,recent,obs_window), tova,
//             keydiff(anchor=normalized|raw|median|pairwise,
//             metric=cosine|dot|euclidean),
//             expected_attention(n_future,n_sink,cov,vnorm,eps),
//             streaming(sinks), knorm, random(seed), external
//   budget    uniform (the default), pyramid(beta,
//             formula=adakv|kvpress|factory), adakv(alpha,mode=blend|floor),
//             ada_pyramid(alpha,beta,formula), headkv(profile,share,temp),
//             lukv(profile), global, external
//   selector  topk (the default), critical(first,eps,norm=l1|l2,gqa_product)
//   options   protect(sinks,recent), round(page|token), in any order, last
//
// Spaces between words are free. Everything here is plain data without shared
// state: thread-compatible, O(length of the text).
#ifndef BLOCKMGR_EVICTION_POLICY_H_
#define BLOCKMGR_EVICTION_POLICY_H_

#include <cstdint>
#include <string>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/eviction/keep_ratio.h"

namespace blockmgr {

// The order of every enum below is that of its names in policy_fields.h and of
// its values on the wire.
enum class ScorerKind : uint8_t {
  kSnapKv,             // attention of the last queries, pooled (2404.14469)
  kH2o,                // attention summed over queries (2306.14048)
  kTova,               // attention of the last query, of all its heads (of
                       // one shard's: a rank sees no other) (2401.06104)
  kKeyDiff,            // distance from the other keys (2504.15364)
  kExpectedAttention,  // attention of future queries (2510.00636)
  kStreaming,          // recency; with sinks: StreamingLLM (2309.17453)
  kKnorm,              // small keys first (2406.11430)
  kRandom,             // a control: noise from (seed, layer, head, position)
  kExternal,           // the caller sends one score per entry
};
enum class PoolKind : uint8_t { kMax, kAvg };
// Where pooling happens: adakv: group reduce, then pool; kvpress: pool first.
enum class PoolOrder : uint8_t { kAdaKv, kKvPress };
enum class GroupReduce : uint8_t { kMean, kMax };
// h2o: kCount divides a sum by the number of queries that saw the entry.
enum class H2oNorm : uint8_t { kNone, kCount };
// What a key is compared with: the mean of the normalised keys, of the keys,
// their median per channel, or every key in turn.
enum class KeyDiffAnchor : uint8_t { kNormalized, kRaw, kMedian, kPairwise };
enum class KeyDiffMetric : uint8_t { kCosine, kDot, kEuclidean };

// What an engine keeps for a sequence from its first token on, beyond the
// queries of an observation window.
enum class ScorerState : uint8_t {
  kNone,
  kAttentionSums,    // per (layer, KV head, entry): one float
  kQueryStatistics,  // per (layer, query head): sums of q and of q q^T
};

// Pooling costs entries * kernel, and policies come from outside: a bound.
inline constexpr int32_t kMaxKernel = 1023;

struct ScorerSpec {
  ScorerKind kind = ScorerKind::kSnapKv;
  // snapkv only:
  int32_t window = 32;  // observation window, queries
  PoolKind pool = PoolKind::kMax;
  int32_t kernel = 7;  // entries, odd, at most kMaxKernel
  PoolOrder order = PoolOrder::kAdaKv;
  GroupReduce group = GroupReduce::kMean;
  // h2o only:
  H2oNorm norm = H2oNorm::kNone;
  int32_t recent = 0;      // last entries that are protected
  int32_t obs_window = 0;  // only the last queries; 0: all of them
  // keydiff only:
  KeyDiffAnchor anchor = KeyDiffAnchor::kNormalized;
  KeyDiffMetric metric = KeyDiffMetric::kCosine;
  // expected_attention only:
  int32_t n_future = 512;  // positions to come that are averaged over
  int32_t n_sink = 4;      // first entries: protected, and not observed
  bool cov = true;         // with the covariance of the queries
  bool vnorm = true;       // times the norm of the value
  double eps = 0.02;       // added to the attention before the norm
  // streaming only: protected first entries.
  int32_t sinks = 4;
  // random only:
  int32_t seed = 0;
  friend bool operator==(const ScorerSpec&, const ScorerSpec&) = default;
};

enum class BudgetKind : uint8_t {
  kUniform,     // the same for every head
  kPyramid,     // per layer, falling with depth (2406.02069)
  kAdaKv,       // by share of a layer's top scores (2407.11550)
  kAdaPyramid,  // the totals of pyramid, shared out by adakv
  kHeadKv,      // by scores of heads, from a file (HeadKV)
  kLuKv,        // by a measured profile (2602.08585)
  kGlobal,      // by share of the whole model's top scores
  kExternal,    // the caller sends one budget per (layer, head)
};
// Of three programs, AdaKV's counts in whole entries and leaves the protected
// ones out; kvpress's counts them in, and gives every layer the same when the
// line would leave [protected, positions]; KVCache-Factory's is AdaKV's, but
// gives every layer the same when the positions are fewer than twice that mean.
enum class PyramidFormula : uint8_t { kAdaKv, kKvPress, kFactory };
// blend: what a head would get from the pool of all scores and the uniform
// budget, mixed. floor: every head's best scores first, the rest from the pool.
enum class AdaKvMode : uint8_t { kBlend, kFloor };

struct BudgetSpec {
  BudgetKind kind = BudgetKind::kUniform;
  // adakv, ada_pyramid: the share of the uniform budget every head keeps
  // regardless, used as the nearest multiple of 10^-9 so that totals are exact.
  double alpha = 0.2;
  AdaKvMode mode = AdaKvMode::kBlend;  // adakv only
  // pyramid, ada_pyramid: the last layer keeps 1 / beta of the mean.
  double beta = 20.0;
  PyramidFormula formula = PyramidFormula::kAdaKv;
  // headkv: the pool that heads share by score is 1 / share of the mean budget
  // (the paper's beta), scores taken to the power of temp.
  double share = 1.2;
  double temp = 1.0;
  // headkv, lukv: the name under which a BudgetTable was loaded.
  std::string profile = {};
  friend bool operator==(const BudgetSpec&, const BudgetSpec&) = default;
};

enum class SelectorKind : uint8_t {
  kTopK,      // the best scores
  kCritical,  // then the best of score times size of the value (2502.03805)
};
enum class ValueNorm : uint8_t { kL1, kL2 };  // of V W_O

struct SelectorSpec {
  SelectorKind kind = SelectorKind::kTopK;
  // critical only:
  double first = 0.5;  // the share of the budget that the first stage takes
  double eps = 1e-4;   // added to the score before the norm
  ValueNorm norm = ValueNorm::kL1;
  // Product per query head, then the mean; otherwise the means' product.
  bool gqa_product = false;
  friend bool operator==(const SelectorSpec&, const SelectorSpec&) = default;
};

// Entries never evicted while the budget covers them: a set, not a score.
struct Protection {
  int32_t sinks = 0;    // the first positions of the sequence
  int32_t recent = -1;  // the last positions; -1: the observation window
  friend bool operator==(const Protection&, const Protection&) = default;
};

enum class Rounding : uint8_t { kPage, kToken };

struct EvictionPolicy {
  ScorerSpec scorer;
  BudgetSpec budget;
  SelectorSpec selector;
  Protection protect;
  Rounding rounding = Rounding::kPage;

  // Ranges of every field the policy uses (window >= 1, kernel odd,
  // 0 <= alpha <= 1, ...), and that its parts go together. InvalidArgument
  // names stage, key, expected and got.
  absl::Status Validate() const;
  // Queries before the end of the sequence that the scorer reads.
  int32_t query_window() const;
  // What the engine must keep for it from the first token on.
  ScorerState scorer_state() const;
  int32_t protected_sinks() const;
  int32_t protected_recent() const;
  // The scorer reads scores from its caller, the budget a table or budgets.
  bool has_external_scores() const {
    return scorer.kind == ScorerKind::kExternal;
  }
  bool needs_table() const {
    return budget.kind == BudgetKind::kHeadKv ||
           budget.kind == BudgetKind::kLuKv;
  }
  friend bool operator==(const EvictionPolicy&,
                         const EvictionPolicy&) = default;
};

// Parses the text form. Errors name the stage and key, what was expected and
// what came; what it returns is valid. FormatPolicy writes the canonical form:
// scorer, budget and selector always, options and keys where they differ from
// their defaults. ParsePolicy(FormatPolicy(p)) == p for every valid policy
// whose unused fields (alpha of uniform, window of streaming) hold their
// defaults.
absl::StatusOr<EvictionPolicy> ParsePolicy(absl::string_view text);
std::string FormatPolicy(const EvictionPolicy& policy);

// How much to keep: a fraction of the covered positions, or tokens per head
// (the mean over heads; allocators move entries between heads).
struct EvictionTarget {
  enum class Kind : uint8_t { kRatio, kTokens };
  Kind kind = Kind::kRatio;
  KeepRatio ratio;
  int32_t tokens = 0;
  // Of what layers with a sliding window attend to when the others are evicted
  // from; 1: they are not.
  KeepRatio window_ratio = {};

  // tokens >= 1 or 0 < ratio <= 1, and so window_ratio. InvalidArgument names
  // expected and got.
  absl::Status Validate() const;
  bool evicts_in_windows() const { return window_ratio != KeepRatio(); }
  // What it says of a window group: a ratio.
  EvictionTarget InWindow() const {
    EvictionTarget target;
    target.ratio = window_ratio;
    return target;
  }
  // Mean entries per head to keep out of `covered` positions: floor(ratio *
  // covered), at least 1; or min(tokens, covered). REQUIRES: covered > 0.
  int32_t TokensPerHead(int32_t covered) const;
  friend bool operator==(const EvictionTarget&,
                         const EvictionTarget&) = default;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_POLICY_H_
