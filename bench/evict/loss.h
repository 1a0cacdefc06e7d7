// blockmgr-evict loss: what policies lose, beside what theory lets them lose.
#ifndef BENCH_EVICT_LOSS_H_
#define BENCH_EVICT_LOSS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <nlohmann/json.hpp>

#include "bench/evict/perturbation.h"
#include "bench/evict/policy_flags.h"
#include "bench/evict/tensor_flags.h"

namespace blockmgr {

struct LossFlags {
  TensorFlags tensors;
  PolicyFlags policies;
  std::optional<std::string> keep_ratio;  // --keep-ratio; none: 0.2
  // --queries-window; none: DefaultQueriesWindow
  std::optional<int32_t> queries_window;
  bool per_head = false;  // --per-head
  // --num-contexts; more than 1: ComputeContextsLoss
  int32_t num_contexts = 1;
  int32_t query_tokens = 0;  // --query-tokens; 0: nothing is asked
  bool json = false;         // --json
};

// The keep sets of policies on some tensors, and what they lose.
struct MeasuredPolicies {
  int32_t queries_window = 0;
  std::vector<KeepSets> keep;
  std::vector<PolicyLoss> losses;  // [policies]
};

// Runs every policy and measures it over the last `queries_window` queries (by
// default DefaultQueriesWindow). Calls `on_step` after each policy and after
// each layer. Errors name the flag, expected and got.
absl::StatusOr<MeasuredPolicies> MeasurePolicies(
    const PolicyList& list, const EvictionTarget& target,
    std::optional<int32_t> queries_window, const Tensors& tensors,
    const std::function<void()>& on_step = [] {});

struct LossReport {
  std::string keep_ratio;  // empty: all budgets are external
  int32_t queries_window = 0;
  int32_t length = 0;
  int32_t num_q_heads = 0;
  bool has_output_projection = false;
  std::vector<std::string> policies;
  std::vector<PolicyLoss> losses;  // [policies]
};

// Runs every policy and measures it. Errors name the flag, expected and got.
absl::StatusOr<LossReport> ComputeLoss(const LossFlags& flags);

// Returns the ratio, or null if it is empty.
nlohmann::ordered_json RatioJson(const std::string& keep_ratio);

// A table per policy, a row per layer and, with `per_head`, per query head.
std::string FormatLoss(const LossReport& report, bool per_head);
nlohmann::ordered_json LossJson(const LossReport& report, bool per_head);

}  // namespace blockmgr

#endif  // BENCH_EVICT_LOSS_H_
