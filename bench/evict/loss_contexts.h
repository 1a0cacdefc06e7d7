// blockmgr-evict loss --num-contexts: the losses of policies on many contexts
// of a text, as means with intervals over the contexts.
#ifndef BENCH_EVICT_LOSS_CONTEXTS_H_
#define BENCH_EVICT_LOSS_CONTEXTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <nlohmann/json.hpp>

#include "bench/evict/loss.h"
#include "bench/quality/bootstrap.h"

namespace blockmgr {

// The losses of one policy on one context.
struct ContextLoss {
  double kept_mass = 0.0;  // of the attention, mean over layers
  // The share of the query heads of which 95 % of the attention is kept.
  double heads_kept = 0.0;
  double relative = 0.0;    // MeanRelative
  double key_volume = 0.0;  // MeanKeyLogDeterminant
  // KeptImportance; 0 without --query-tokens.
  double needed_kept = 0.0;
  double kept_fraction = 0.0;  // of the entries of all heads

  friend bool operator==(const ContextLoss&, const ContextLoss&) = default;
};

struct ContextsLoss {
  std::string keep_ratio;  // empty: all budgets are external
  int32_t queries_window = 0;
  int32_t query_tokens = 0;
  int32_t length = 0;
  int32_t num_contexts = 0;
  std::vector<std::string> policies;
  std::vector<std::vector<ContextLoss>> losses;  // [policies][contexts]
};

// Means over the contexts. Those of the pairs are with the first policy.
struct ContextsSummary {
  double kept_fraction = 0.0;
  Interval kept_mass;
  Interval heads_kept;
  Interval relative;
  Interval of_first;    // the sum of `relative` over the first policy's
  Interval less_often;  // share of contexts that lose less than the first's
  Interval key_volume;
  Interval key_volume_gain;  // difference to the first policy's
  Interval needed_kept;
  Interval needed_gain;  // difference to the first policy's needed_kept
};

// Runs every policy on every context, one context in memory at a time. Errors
// name the flag, expected and got.
absl::StatusOr<ContextsLoss> ComputeContextsLoss(const LossFlags& flags);

// REQUIRES: policy is an index of loss.policies; at least one context.
ContextsSummary SummarizeContexts(const ContextsLoss& loss, size_t policy);

// A table with a row per policy.
std::string FormatContextsLoss(const ContextsLoss& loss);
nlohmann::ordered_json ContextsLossJson(const ContextsLoss& loss);

}  // namespace blockmgr

#endif  // BENCH_EVICT_LOSS_CONTEXTS_H_
