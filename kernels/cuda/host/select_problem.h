// Turns a policy into the plain data of the device selection. Host code.
#ifndef KERNELS_CUDA_HOST_SELECT_PROBLEM_H_
#define KERNELS_CUDA_HOST_SELECT_PROBLEM_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"
#include "kernels/cuda/selection/select.h"

namespace blockmgr {

// Returns a problem with the fields that follow from the policy. The caller
// sets arrays, counts and page_size.
inline SelectProblem MakeSelectProblem(const EvictionPolicy& policy) {
  constexpr double kUnit = 1e9;
  SelectProblem problem;
  switch (policy.budget.kind) {
    case BudgetKind::kUniform:
    case BudgetKind::kPyramid:
      problem.budget = SelectBudget::kEqual;
      break;
    case BudgetKind::kAdaKv:
      problem.budget = policy.budget.mode == AdaKvMode::kFloor
                           ? SelectBudget::kFloor
                           : SelectBudget::kBlend;
      problem.alpha = std::llround(policy.budget.alpha * kUnit);
      break;
    case BudgetKind::kAdaPyramid:
      problem.budget = SelectBudget::kBlend;
      problem.alpha = std::llround(policy.budget.alpha * kUnit);
      break;
    case BudgetKind::kGlobal:
      problem.budget = SelectBudget::kBlend;
      break;
    case BudgetKind::kHeadKv:
    case BudgetKind::kLuKv:
    case BudgetKind::kExternal:
    case BudgetKind::kDuo:
      problem.budget = SelectBudget::kGiven;
      break;
  }
  problem.by_page = policy.rounding == Rounding::kPage;
  problem.critical = policy.selector.kind == SelectorKind::kCritical;
  problem.first_share = std::llround(policy.selector.first * kUnit);
  problem.eps = static_cast<float>(policy.selector.eps);
  return problem;
}

// Appends the scopes of one sequence, whose heads begin at `first_head`.
inline void AppendSelectScopes(const EvictionPolicy& policy,
                               const EvictionTarget& target,
                               const HeadShape& shape,
                               const EvictionRange& range, int32_t first_head,
                               std::vector<SelectScope>* scopes) {
  const int32_t sinks_end = std::min(policy.protected_sinks(), range.cut);
  const int32_t recent_begin = std::clamp(
      range.length - policy.protected_recent(), sinks_end, range.cut);
  std::vector<BudgetScope> budget_scopes;
  int64_t min_pages = MinHeadPages(policy, shape, range);
  if (policy.budget.kind == BudgetKind::kExternal || policy.needs_table()) {
    min_pages = CountProtectedPages(policy, shape, range);
    // Given budgets share no total. One scope carries the protection.
    budget_scopes = {
        {.first_head = 0,
         .num_heads = int64_t{shape.num_layers} * shape.num_heads}};
  } else {
    budget_scopes = BudgetScopes(policy, target, shape, range);
  }
  for (const BudgetScope& scope : budget_scopes) {
    scopes->push_back(
        {.entries = scope.entries,
         .pages = scope.pages,
         .first_head = first_head + static_cast<int32_t>(scope.first_head),
         .num_heads = static_cast<int32_t>(scope.num_heads),
         .min_pages = static_cast<int32_t>(min_pages),
         .sinks_end = sinks_end,
         .recent_begin = recent_begin,
         .cut = range.cut});
  }
}

}  // namespace blockmgr

#endif  // KERNELS_CUDA_HOST_SELECT_PROBLEM_H_
