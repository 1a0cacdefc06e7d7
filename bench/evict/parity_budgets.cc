#include "bench/evict/parity_budgets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <variant>

#include "bench/evict/published_budgets.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// r, rounded to a double, for that is what callers of programs pass.
double EvictedFraction(const EvictionTarget& target, int32_t covered) {
  if (target.kind == EvictionTarget::Kind::kTokens) {
    return 1.0 - static_cast<double>(std::min(target.tokens, covered)) /
                     static_cast<double>(covered);
  }
  const KeepRatio& keep = target.ratio;
  return static_cast<double>(keep.denominator - keep.numerator) /
         static_cast<double>(keep.denominator);
}

// The truncated count, or what it leaves for the past.
int64_t WholeCount(const ParityPolicy& policy, const EvictionTarget& target,
                   const EvictionRange& range) {
  const auto count = static_cast<int64_t>(ParityCount(target, range.cut));
  if (!KeepsWindowBeside(policy)) return count;
  return std::max<int64_t>(0, count - policy.query_window());
}

// The row of a profile that a program looks up.
size_t NearestRow(std::span<const float> rho, double evicted) {
  // The program rounds to hundredths, but profiles have any grid. Moved a
  // little towards the hundredth, further than float32 moves the grid.
  const double hundredth = std::nearbyint(100.0 * evicted) / 100.0;
  const double at = evicted + (hundredth - evicted) * 1e-4;
  const auto nearer = [&](float a, float b) {
    return std::abs(a - at) < std::abs(b - at);
  };
  const size_t ends = rho.size() > 2 ? 1 : 0;
  const auto rows = rho.subspan(ends, rho.size() - 2 * ends);
  return ends +
         static_cast<size_t>(
             std::min_element(rows.begin(), rows.end(), nearer) - rows.begin());
}

}  // namespace

double ParityCount(const EvictionTarget& target, int32_t covered) {
  if (target.kind == EvictionTarget::Kind::kTokens) {
    return std::min(target.tokens, covered);
  }
  return (1.0 - EvictedFraction(target, covered)) * covered;
}

bool ParityKeepsAll(const EvictionTarget& target, int32_t covered) {
  return EvictedFraction(target, covered) == 0.0;
}

bool KeepsWindowBeside(const ParityPolicy& policy) {
  return policy.parity == Parity::kReleased &&
         policy.budget.kind != BudgetKind::kLuKv;
}

std::vector<int64_t> ParityMeans(const ParityEviction& eviction) {
  const auto& [policy, target, shape, range] = eviction;
  BM_CHECK(policy.parity != Parity::kNone);
  BM_CHECK(!policy.needs_table());
  const int64_t count = WholeCount(policy, target, range);
  if (policy.budget.kind != BudgetKind::kPyramid &&
      policy.budget.kind != BudgetKind::kAdaPyramid) {
    return std::vector<int64_t>(static_cast<size_t>(shape.num_layers), count);
  }
  const PyramidLine line{.length = range.cut,
                         .num_layers = shape.num_layers,
                         .window = std::min(policy.query_window(), range.cut),
                         .beta = policy.budget.beta};
  switch (policy.budget.formula) {
    case PyramidFormula::kAdaKv:
      return PyramidAdaKv(line, count);
    case PyramidFormula::kKvPress:
      return PyramidKvPress(line, ParityCount(target, range.cut));
    case PyramidFormula::kFactory:
      return PyramidFactory(line, count);
  }
  BM_CHECK(false && "a known formula");
  return {};
}

std::vector<int32_t> ParityTableBudgets(const ParityEviction& eviction,
                                        const BudgetTable& table) {
  const auto& [policy, target, shape, range] = eviction;
  if (policy.parity == Parity::kNone) {
    return TableBudgets(policy, target, shape, range, table);
  }
  const auto num_heads = static_cast<size_t>(shape.num_heads);
  const size_t all = static_cast<size_t>(shape.num_layers) * num_heads;
  if (ParityKeepsAll(target, range.cut)) {
    return std::vector<int32_t>(all, range.cut);
  }
  std::vector<int32_t> budgets;
  const int64_t most = range.cut;
  const auto append = [&](std::span<const int64_t> past, int64_t window) {
    for (const int64_t budget : past) {
      budgets.push_back(static_cast<int32_t>(std::min(budget + window, most)));
    }
  };
  if (const auto* head_scores = std::get_if<HeadScores>(&table)) {
    append(HeadKvBudgetsReleased(
               head_scores->OfKvHeads(shape.num_heads, policy.budget.temp),
               WholeCount(policy, target, range), policy.budget.share,
               policy.budget.temp),
           policy.query_window());
    return budgets;
  }
  const auto& profile = std::get<LuKvProfile>(table);
  const double evicted = EvictedFraction(target, range.cut);
  const auto rates =
      std::span(profile.r).subspan(NearestRow(profile.rho, evicted) * all, all);
  for (size_t first = 0; first < all; first += num_heads) {
    const auto layer = rates.subspan(first, num_heads);
    append(policy.parity == Parity::kKvPress
               ? LuKvBudgetsKvPress(layer, range.cut)
               : LuKvBudgetsPaper(layer, range.cut),
           0);
  }
  return budgets;
}

}  // namespace blockmgr
