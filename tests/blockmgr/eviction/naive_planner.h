// The eviction rules written down a second time, with sorting and exact
// fractions and without sharing any code, to compare the library with.
#ifndef TESTS_BLOCKMGR_EVICTION_NAIVE_PLANNER_H_
#define TESTS_BLOCKMGR_EVICTION_NAIVE_PLANNER_H_

#include <cstdint>
#include <vector>

#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {

// One eviction. Heads are indexed layer * num_heads + head.
struct EvictionCase {
  EvictionPolicy policy;
  int32_t alpha_thousandths = 200;  // policy.budget.alpha, exactly
  int32_t first_thousandths = 500;  // policy.selector.first, exactly
  EvictionTarget target;
  HeadShape shape;
  EvictionRange range;
  std::vector<std::vector<int32_t>> positions;
  std::vector<std::vector<float>> scores;  // empty: streaming
  // critical only, like `scores`: one of the two, by gqa_product.
  std::vector<std::vector<float>> value_norms;
  std::vector<std::vector<float>> products;
  std::vector<int32_t> external;
};

struct NaivePlan {
  int64_t page_total = 0;
  // Before remainders and bounds; none for external budgets.
  std::vector<double> ideals;
  std::vector<int32_t> budgets;
  std::vector<std::vector<int32_t>> kept;  // positions, ascending
};

NaivePlan PlanNaively(const EvictionCase& eviction);

// The budgets come from the caller: external, or read from a table.
bool HasGivenBudgets(const EvictionPolicy& policy);

// Hamilton's method with bounds, by trying every way of bounds to hold.
std::vector<int64_t> ApportionNaively(int64_t total,
                                      const std::vector<int64_t>& weights,
                                      const std::vector<int64_t>& low,
                                      const std::vector<int64_t>& high);

// The last positions that are protected.
int64_t NaiveRecent(const EvictionPolicy& policy);

// Entries per head on average.
int64_t NaiveMean(const EvictionPolicy& policy, const EvictionTarget& target,
                  const EvictionRange& range);

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_EVICTION_NAIVE_PLANNER_H_
