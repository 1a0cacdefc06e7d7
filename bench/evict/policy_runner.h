// Runs a policy on tensors: the scores of the CPU kernels, the budgets and the
// selection of the library, as an engine would.
#ifndef BENCH_EVICT_POLICY_RUNNER_H_
#define BENCH_EVICT_POLICY_RUNNER_H_

#include <array>
#include <cstdint>
#include <vector>

#include <absl/status/statusor.h>

#include "bench/evict/parity_policy.h"
#include "bench/evict/tensors.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

struct PolicyRun {
  // [num_layers, num_heads, length]; empty for streaming, and by blocks, where
  // an entry is scored more than once.
  std::vector<float> scores;
  std::vector<float> value_norms;  // the same; empty without critical
  std::vector<float> products;     // the same; empty without gqa_product
  std::vector<int32_t> budgets;    // [num_layers, num_heads]
  KeepSets keep;                   // ranks are positions
};

// As any layout has it (ModelLayout::Validate).
inline constexpr int32_t kMaxRunPageSize = 1 << 14;

struct PolicyRunOptions {
  int32_t page_size = 16;
  // K and V are rounded to this type before anything reads them.
  DType dtype = DType::kFloat32;
  const BudgetTable* table = nullptr;  // headkv, lukv; borrowed
  // expected_attention(stats=NAME); borrowed
  const QueryStatsTable* query_stats = nullptr;
  // external budgets, [num_layers, num_heads], and the shape they came in; 0:
  // nobody knows
  std::vector<int32_t> budgets;
  std::array<int64_t, 2> budgets_shape = {0, 0};
};

// Evicts once from all `length` positions (cut == length), one layer in memory
// at a time. Errors name the tensor a policy needs and has not got, or the
// option. Under parity a target of no tokens is fine.
absl::StatusOr<PolicyRun> RunPolicy(const ParityPolicy& policy,
                                    const EvictionTarget& target,
                                    const Tensors& tensors,
                                    const PolicyRunOptions& options);

// Block prompt processing (KeyDiff, section 2.4): tokens arrive in blocks of
// `block`; after each one the policy evicts from what is kept and the new block
// down to the target, which must be in tokens. The first block ends at the
// target's number of tokens. A query sees what is kept when its block comes.
// All layers are in memory.
absl::StatusOr<PolicyRun> RunPolicyByBlocks(const ParityPolicy& policy,
                                            const EvictionTarget& target,
                                            const Tensors& tensors,
                                            int32_t block,
                                            const PolicyRunOptions& options);

// Returns which part of the heads' `length` entries is kept.
double KeptFraction(const KeepSets& keep, int32_t length);

}  // namespace blockmgr

#endif  // BENCH_EVICT_POLICY_RUNNER_H_
