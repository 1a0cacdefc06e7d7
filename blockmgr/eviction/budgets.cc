// AllocateBudgets: how many entries each (layer, head) keeps.
#include <algorithm>
#include <cmath>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/eviction/apportion.h"
#include "blockmgr/eviction/entries.h"
#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/protection.h"
#include "blockmgr/eviction/score_order.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

// Weights count units of 10^-9 entries. alpha has this resolution, too.
constexpr int64_t kWeightUnit = 1'000'000'000;

// The ideal budget of one head: `fixed` entries, and a part, in proportion to
// `weight`, of the scope's other entries.
struct Ideal {
  int64_t fixed = 0;
  int64_t weight = 0;
};

// The inputs of budgets that depend on scores.
struct Request {
  const EvictionPolicy& policy;
  const EvictionRange& range;
  const EntriesView& entries;
};

// Returns how protection splits the entries of each head of the scope.
std::vector<HeadSplit> SplitHeads(const Request& request,
                                  const BudgetScope& scope) {
  const ProtectedPositions positions(request.policy, request.range);
  std::vector<HeadSplit> splits;
  splits.reserve(scope.num_heads);
  for (int64_t head = 0; head < scope.num_heads; ++head) {
    splits.push_back(positions.Split(
        HeadPositions(request.entries, scope.first_head + head)));
  }
  return splits;
}

// Returns how many of the scope's `slots` best unprotected entries each head
// holds. Head h takes its own floors[h] best entries first.
std::vector<int64_t> CountTop(const Request& request, const BudgetScope& scope,
                              std::span<const HeadSplit> splits,
                              std::span<const int64_t> floors, int64_t slots) {
  std::vector<uint32_t> pool;
  int64_t num_past = 0;
  for (const HeadSplit& split : splits) num_past += split.num_past;
  pool.reserve(static_cast<size_t>(num_past));
  std::vector<uint32_t> own;
  std::vector<int64_t> ends;
  std::vector<int64_t> counts(splits.size());
  for (size_t head = 0; head < splits.size(); ++head) {
    const HeadSplit& split = splits[head];
    const int64_t begin =
        request.entries.offsets[scope.first_head + static_cast<int64_t>(head)] +
        split.num_sinks;
    counts[head] = std::min<int64_t>(floors[head], split.num_past);
    if (counts[head] == 0) {
      AppendKeys(request.entries, begin, split.num_past, &pool);
    } else {
      own.clear();
      AppendKeys(request.entries, begin, split.num_past, &own);
      int64_t next = 0;
      ForEachTop(own, counts[head], [&](int64_t index) {
        pool.insert(pool.end(), own.begin() + next, own.begin() + index);
        next = index + 1;
      });
      pool.insert(pool.end(), own.begin() + next, own.end());
    }
    slots -= counts[head];
    ends.push_back(static_cast<int64_t>(pool.size()));
  }
  if (slots <= 0) return counts;
  const bool all = slots >= std::ssize(pool);
  const TopCut cut = all ? TopCut() : FindTopCut(pool, slots);
  int64_t num_equal = cut.num_equal;
  int64_t begin = 0;
  for (size_t head = 0; head < splits.size(); ++head) {
    const int64_t size = ends[head] - begin;
    if (all) {
      counts[head] += size;
    } else {
      // Ties go to the lower head.
      const CutCounts at_cut =
          CountAtCut(std::span(pool).subspan(begin, size), cut);
      const int64_t equal = std::min(num_equal, at_cut.equal);
      counts[head] += at_cut.above + equal;
      num_equal -= equal;
    }
    begin = ends[head];
  }
  return counts;
}

// Ideals by the scope's best scores. C_h is the number of slots that equal
// budgets would leave to the past (the unprotected entries) of head h. f_h is
// the number of entries of head h among the best sum(C_h) past entries of the
// scope. The weights are:
//   global  f_h
//   blend   f_h * (1 - alpha) + C_h * alpha, as in Ada-KV's released code, but
//           without its rounding (arXiv 2407.11550)
//   floor   f_h, counted after every head has taken its floor(C_h * alpha)
//           best entries
// If the weight is f_h alone (global, floor, blend with alpha = 0), a head
// without protected entries first takes its best entry. Every head keeps one
// entry in any case. Because that entry is counted here, it displaces the worst
// entry of the other heads. So these budgets never hold less of the scores than
// equal budgets do.
std::vector<Ideal> ScoredIdeals(const Request& request,
                                const BudgetScope& scope,
                                std::span<const HeadSplit> splits) {
  const BudgetSpec& budget = request.policy.budget;
  const bool global = budget.kind == BudgetKind::kGlobal;
  const bool floor =
      budget.kind == BudgetKind::kAdaKv && budget.mode == AdaKvMode::kFloor;
  const int64_t alpha = global ? 0 : std::llround(budget.alpha * kWeightUnit);
  const int64_t mean = scope.entries / scope.num_heads;
  std::vector<Ideal> ideals(splits.size());
  std::vector<int64_t> floors(splits.size());
  int64_t slots = scope.entries;
  for (size_t head = 0; head < splits.size(); ++head) {
    ideals[head].fixed = std::min(mean, int64_t{splits[head].num_protected()});
    slots -= ideals[head].fixed;
    if (floor) {
      floors[head] = (mean - ideals[head].fixed) * alpha / kWeightUnit;
    }
    if ((floor || alpha == 0) && ideals[head].fixed == 0) {
      floors[head] = std::max(floors[head], int64_t{1});
    }
  }
  const std::vector<int64_t> counts =
      CountTop(request, scope, splits, floors, slots);
  const int64_t uniform = floor ? 0 : alpha;
  for (size_t head = 0; head < splits.size(); ++head) {
    ideals[head].weight = counts[head] * (kWeightUnit - uniform) +
                          (mean - ideals[head].fixed) * uniform;
  }
  return ideals;
}

std::vector<Ideal> MakeIdeals(const Request& request, const BudgetScope& scope,
                              std::span<const HeadSplit> splits) {
  switch (request.policy.budget.kind) {
    case BudgetKind::kAdaKv:
    case BudgetKind::kAdaPyramid:
    case BudgetKind::kGlobal:
      return ScoredIdeals(request, scope, splits);
    case BudgetKind::kUniform:
    case BudgetKind::kPyramid:
      // All heads have the same part, and none has fixed entries.
      return std::vector<Ideal>(splits.size(), Ideal{0, 1});
    case BudgetKind::kHeadKv:
    case BudgetKind::kLuKv:
    case BudgetKind::kExternal:
    case BudgetKind::kDuo:
      break;
  }
  BM_CHECK(false && "budgets that are computed beforehand");
  return {};
}

// The terms of an eviction that budgets depend on, besides the entries.
struct Terms {
  const EvictionPolicy& policy;
  const HeadShape& shape;
  const EvictionRange& range;
};

// Appends budgets in whole pages. The scope's pages are shared by largest
// remainder, in proportion to the ideals. `held` is the number of entries of
// each head of the scope.
void RoundToPages(const Terms& terms, const BudgetScope& scope,
                  std::span<const int32_t> held, std::span<const Ideal> ideals,
                  std::vector<int32_t>* budgets) {
  const int64_t page_size = terms.shape.page_size;
  const int64_t min_pages =
      MinHeadPages(terms.policy, terms.shape, terms.range);
  std::vector<Claim> claims(held.size());
  for (size_t head = 0; head < held.size(); ++head) {
    claims[head].weight =
        ideals[head].fixed * kWeightUnit + ideals[head].weight;
    claims[head].max = CeilDiv<int64_t>(held[head], page_size);
    claims[head].min = std::min(min_pages, claims[head].max);
  }
  const std::vector<int64_t> pages = Apportion(scope.pages, claims);
  for (size_t head = 0; head < held.size(); ++head) {
    budgets->push_back(static_cast<int32_t>(
        std::min(pages[head] * page_size, int64_t{held[head]})));
  }
}

// Appends budgets in whole entries. The scope's entries that are not fixed are
// shared by largest remainder, in proportion to the weights.
void RoundToTokens(const BudgetScope& scope, std::span<const int32_t> held,
                   std::span<const Ideal> ideals,
                   std::vector<int32_t>* budgets) {
  int64_t total = scope.entries;
  std::vector<Claim> claims(held.size());
  for (size_t head = 0; head < held.size(); ++head) {
    const int64_t entries = held[head];
    const int64_t fixed = ideals[head].fixed;
    total -= fixed;
    claims[head].weight = ideals[head].weight;
    claims[head].max = entries - fixed;
    claims[head].min = fixed == 0 && entries > 0 ? 1 : 0;
  }
  const std::vector<int64_t> rest = Apportion(total, claims);
  for (size_t head = 0; head < held.size(); ++head) {
    budgets->push_back(static_cast<int32_t>(ideals[head].fixed + rest[head]));
  }
}

// Appends the budgets of the heads of a scope.
void Round(const Terms& terms, const BudgetScope& scope,
           std::span<const int32_t> held, std::span<const Ideal> ideals,
           std::vector<int32_t>* budgets) {
  if (terms.policy.rounding == Rounding::kPage) {
    RoundToPages(terms, scope, held, ideals, budgets);
  } else {
    RoundToTokens(scope, held, ideals, budgets);
  }
}

// Returns the caller's budgets, but no more than heads hold. With round(page)
// they are rounded up to whole pages, at least as many as the protected entries
// need. A budget may be 0.
std::vector<int32_t> ExternalBudgets(const Terms& terms,
                                     std::span<const int32_t> held,
                                     std::span<const int32_t> external) {
  BM_CHECK(external.size() == held.size());
  const bool by_page = terms.policy.rounding == Rounding::kPage;
  const int64_t unit = by_page ? terms.shape.page_size : 1;
  const int64_t min_units =
      by_page ? CountProtectedPages(terms.policy, terms.shape, terms.range) : 0;
  std::vector<int32_t> budgets;
  budgets.reserve(external.size());
  for (size_t index = 0; index < external.size(); ++index) {
    const int64_t wanted = std::max(external[index], 0);
    const int64_t units = std::max(CeilDiv(wanted, unit), min_units);
    budgets.push_back(
        static_cast<int32_t>(std::min(units * unit, int64_t{held[index]})));
  }
  return budgets;
}

std::span<const int32_t> OfScope(std::span<const int32_t> heads,
                                 const BudgetScope& scope) {
  return heads.subspan(static_cast<size_t>(scope.first_head),
                       static_cast<size_t>(scope.num_heads));
}

// With adaptive budgets every head gets its protected entries. The rest of the
// scope's total is shared in proportion to the weights.
std::vector<Ideal> WeighedIdeals(const EvictionPolicy& policy,
                                 const EvictionRange& range,
                                 const BudgetScope& scope,
                                 std::span<const int32_t> held,
                                 std::span<const double> weights) {
  const int64_t mean = scope.entries / scope.num_heads;
  const int64_t num_protected = ProtectedPositions(policy, range).count();
  std::vector<Ideal> ideals(held.size());
  int64_t rest = scope.entries;
  double sum = 0;
  for (size_t head = 0; head < held.size(); ++head) {
    ideals[head].fixed = std::min({mean, num_protected, int64_t{held[head]}});
    rest -= ideals[head].fixed;
    sum += weights[head];
  }
  const double unit = sum > 0 ? static_cast<double>(kWeightUnit) / sum : 0;
  for (size_t head = 0; head < held.size(); ++head) {
    ideals[head].weight =
        std::llround(static_cast<double>(rest) * weights[head] * unit);
  }
  return ideals;
}

}  // namespace

bool IsAdaptive(BudgetKind kind) {
  return kind == BudgetKind::kAdaKv || kind == BudgetKind::kAdaPyramid ||
         kind == BudgetKind::kGlobal;
}

std::vector<int32_t> AllocateBudgets(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     const EntriesView& entries,
                                     std::span<const int32_t> external) {
  CheckRange(shape, range);
  CheckEntries(shape, range, entries);
  const Request request{policy, range, entries};
  const Terms terms{policy, shape, range};
  std::vector<int32_t> held;
  held.reserve(entries.offsets.size() - 1);
  for (size_t head = 0; head + 1 < entries.offsets.size(); ++head) {
    held.push_back(static_cast<int32_t>(entries.offsets[head + 1] -
                                        entries.offsets[head]));
  }
  if (policy.budget.kind == BudgetKind::kExternal || policy.needs_table()) {
    return ExternalBudgets(terms, held, external);
  }
  std::vector<int32_t> budgets;
  budgets.reserve(held.size());
  for (const BudgetScope& scope : BudgetScopes(policy, target, shape, range)) {
    const std::vector<HeadSplit> splits = SplitHeads(request, scope);
    const std::vector<Ideal> ideals = MakeIdeals(request, scope, splits);
    Round(terms, scope, OfScope(held, scope), ideals, &budgets);
  }
  return budgets;
}

std::vector<int32_t> BudgetsByWeight(const EvictionPolicy& policy,
                                     const EvictionTarget& target,
                                     const HeadShape& shape,
                                     const EvictionRange& range,
                                     std::span<const int32_t> held,
                                     std::span<const double> weights,
                                     std::span<const int32_t> external) {
  CheckRange(shape, range);
  const int64_t num_heads = int64_t{shape.num_layers} * shape.num_heads;
  BM_CHECK(std::ssize(held) == num_heads);
  const Terms terms{policy, shape, range};
  if (policy.budget.kind == BudgetKind::kExternal || policy.needs_table()) {
    return ExternalBudgets(terms, held, external);
  }
  const bool is_adaptive = IsAdaptive(policy.budget.kind);
  BM_CHECK(!is_adaptive || std::ssize(weights) == num_heads);
  std::vector<int32_t> budgets;
  budgets.reserve(held.size());
  for (const BudgetScope& scope : BudgetScopes(policy, target, shape, range)) {
    const std::span<const int32_t> of_scope = OfScope(held, scope);
    const std::vector<Ideal> ideals =
        is_adaptive ? WeighedIdeals(
                          policy, range, scope, of_scope,
                          weights.subspan(static_cast<size_t>(scope.first_head),
                                          of_scope.size()))
                    : std::vector<Ideal>(of_scope.size(), Ideal{0, 1});
    Round(terms, scope, of_scope, ideals, &budgets);
  }
  return budgets;
}

std::vector<double> IdealBudgets(const EvictionPolicy& policy,
                                 const EvictionTarget& target,
                                 const HeadShape& shape,
                                 const EvictionRange& range,
                                 const EntriesView& entries) {
  CheckRange(shape, range);
  CheckEntries(shape, range, entries);
  const Request request{policy, range, entries};
  std::vector<double> ideals;
  for (const BudgetScope& scope : BudgetScopes(policy, target, shape, range)) {
    const std::vector<HeadSplit> splits = SplitHeads(request, scope);
    int64_t rest = scope.entries;
    int64_t weights = 0;
    const std::vector<Ideal> scoped = MakeIdeals(request, scope, splits);
    for (const Ideal& ideal : scoped) {
      rest -= ideal.fixed;
      weights += ideal.weight;
    }
    // If all weights are 0, the parts are equal, as in Apportion.
    const bool equal = weights == 0;
    const double lambda =
        static_cast<double>(rest) /
        static_cast<double>(equal ? scope.num_heads : weights);
    for (const Ideal& ideal : scoped) {
      ideals.push_back(static_cast<double>(ideal.fixed) +
                       lambda * static_cast<double>(equal ? 1 : ideal.weight));
    }
  }
  return ideals;
}

}  // namespace blockmgr
