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
  EvictionTarget target;
  HeadShape shape;
  EvictionRange range;
  std::vector<std::vector<int32_t>> positions;
  std::vector<std::vector<float>> scores;  // empty: streaming
  std::vector<int32_t> external;
};

struct NaivePlan {
  int64_t page_total = 0;
  std::vector<int32_t> budgets;
  std::vector<std::vector<int32_t>> kept;  // positions, ascending
};

NaivePlan PlanNaively(const EvictionCase& eviction);

// Hamilton's method with bounds, by trying every way of bounds to hold.
std::vector<int64_t> ApportionNaively(int64_t total,
                                      const std::vector<int64_t>& weights,
                                      const std::vector<int64_t>& low,
                                      const std::vector<int64_t>& high);

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_EVICTION_NAIVE_PLANNER_H_
