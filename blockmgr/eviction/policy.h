// Which entries a sequence may lose, as data: scorer | budget | selector.
//
// Written  snapkv(window=32,pool=max,kernel=7) | adakv(alpha=0.2) | topk
// in flags, configs and logs. Keys keep the papers' names.
//
//   scorer    snapkv(window,pool=max|avg,kernel,order=adakv|kvpress,
//             group=mean|max), streaming(sinks), external
//   budget    uniform (the default), adakv(alpha), external
//   selector  topk (the default)
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

enum class ScorerKind : uint8_t {
  kSnapKv,     // attention of the last `window` queries, pooled (2404.14469)
  kStreaming,  // recency; with protected sinks: StreamingLLM (2309.17453)
  kExternal,   // the caller sends one score per entry
};
enum class PoolKind : uint8_t { kMax, kAvg };
// Where pooling happens: adakv: group reduce, then pool; kvpress: pool first.
enum class PoolOrder : uint8_t { kAdaKv, kKvPress };
enum class GroupReduce : uint8_t { kMean, kMax };

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
  // streaming only: protected first entries.
  int32_t sinks = 4;
  friend bool operator==(const ScorerSpec&, const ScorerSpec&) = default;
};

enum class BudgetKind : uint8_t {
  kUniform,   // the same for every head
  kAdaKv,     // by share of a layer's top scores, blended (2407.11550)
  kExternal,  // the caller sends one budget per (layer, head)
};

struct BudgetSpec {
  BudgetKind kind = BudgetKind::kUniform;
  // adakv: the share of the uniform budget every head keeps regardless, used
  // as the nearest multiple of 10^-9 so that totals are exact.
  double alpha = 0.2;
  friend bool operator==(const BudgetSpec&, const BudgetSpec&) = default;
};

enum class SelectorKind : uint8_t { kTopK };

struct SelectorSpec {
  SelectorKind kind = SelectorKind::kTopK;
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
  // 0 <= alpha <= 1, ...). InvalidArgument names stage, key, expected and got.
  absl::Status Validate() const;
  // Queries before the end of the sequence that the scorer reads.
  int32_t query_window() const {
    return scorer.kind == ScorerKind::kSnapKv ? scorer.window : 0;
  }
  int32_t protected_sinks() const {
    const int32_t own =
        scorer.kind == ScorerKind::kStreaming ? scorer.sinks : 0;
    return protect.sinks > own ? protect.sinks : own;
  }
  int32_t protected_recent() const {
    return protect.recent >= 0 ? protect.recent : query_window();
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

  // tokens >= 1 or 0 < ratio <= 1. InvalidArgument names expected and got.
  absl::Status Validate() const;
  // Mean entries per head to keep out of `covered` positions: floor(ratio *
  // covered), at least 1; or min(tokens, covered). REQUIRES: covered > 0.
  int32_t TokensPerHead(int32_t covered) const;
  friend bool operator==(const EvictionTarget&,
                         const EvictionTarget&) = default;
};

}  // namespace blockmgr

#endif  // BLOCKMGR_EVICTION_POLICY_H_
