#include "tests/blockmgr/eviction/naive_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

struct Fraction {
  int64_t numerator;
  int64_t denominator;  // > 0
};

bool Less(const Fraction& a, const Fraction& b) {
  return a.numerator * b.denominator < b.numerator * a.denominator;
}

std::vector<int64_t> RoundByRemainder(int64_t total,
                                      const std::vector<Fraction>& quotas) {
  std::vector<int64_t> units;
  std::vector<std::pair<double, size_t>> fractions;
  for (size_t i = 0; i < quotas.size(); ++i) {
    units.push_back(quotas[i].numerator / quotas[i].denominator);
    total -= units.back();
    // Equal fractions come from equal integers here: all share a denominator.
    fractions.emplace_back(
        -static_cast<double>(quotas[i].numerator % quotas[i].denominator) /
            static_cast<double>(quotas[i].denominator),
        i);
  }
  std::sort(fractions.begin(), fractions.end());
  for (int64_t i = 0; i < total; ++i) ++units[fractions[i].second];
  return units;
}

// The units if lambda lies between `from` and `to`; empty if it does not.
std::vector<int64_t> TrySegment(int64_t total, Fraction from, Fraction to,
                                const std::vector<int64_t>& weights,
                                const std::vector<int64_t>& low,
                                const std::vector<int64_t>& high) {
  std::vector<int64_t> units(weights.size());
  std::vector<size_t> free;
  int64_t free_weight = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0 || !Less({low[i], weights[i]}, to)) {
      units[i] = low[i];
    } else if (!Less(from, {high[i], weights[i]})) {
      units[i] = high[i];
    } else {
      free.push_back(i);
      free_weight += weights[i];
      continue;
    }
    total -= units[i];
  }
  if (free.empty()) return total == 0 ? units : std::vector<int64_t>();
  const Fraction lambda = {total, free_weight};
  if (total < 0 || Less(lambda, from) || Less(to, lambda)) return {};
  std::vector<Fraction> quotas;
  for (const size_t i : free) {
    quotas.push_back({total * weights[i], free_weight});
  }
  const std::vector<int64_t> rounded = RoundByRemainder(total, quotas);
  for (size_t i = 0; i < free.size(); ++i) units[free[i]] = rounded[i];
  return units;
}

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

std::vector<int64_t> ApportionNaively(int64_t total,
                                      const std::vector<int64_t>& weights,
                                      const std::vector<int64_t>& low,
                                      const std::vector<int64_t>& high) {
  total = std::min(total, Sum(high));
  if (weights.empty()) return {};
  if (Sum(weights) == 0) {
    return ApportionNaively(total, std::vector<int64_t>(weights.size(), 1), low,
                            high);
  }
  // Everything that can grow is full and there is some left: the rest shares
  // it.
  int64_t most = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    most += weights[i] > 0 ? high[i] : low[i];
  }
  if (most < total) {
    std::vector<int64_t> zero_low, zero_high, units = high;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] > 0) {
        total -= high[i];
        continue;
      }
      zero_low.push_back(low[i]);
      zero_high.push_back(high[i]);
    }
    const std::vector<int64_t> zeros = ApportionNaively(
        total, std::vector<int64_t>(zero_low.size(), 1), zero_low, zero_high);
    size_t next = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) units[i] = zeros[next++];
    }
    return units;
  }
  std::vector<Fraction> bounds = {{0, 1}, {int64_t{1} << 20, 1}};
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    bounds.push_back({low[i], weights[i]});
    bounds.push_back({high[i], weights[i]});
  }
  std::sort(bounds.begin(), bounds.end(), Less);
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    if (!Less(bounds[i], bounds[i + 1])) continue;
    std::vector<int64_t> units =
        TrySegment(total, bounds[i], bounds[i + 1], weights, low, high);
    if (!units.empty()) return units;
  }
  ADD_FAILURE() << "no lambda found";
  return low;
}

namespace {

struct Candidate {
  float score = 0;
  int32_t head = 0;
  int32_t position = 0;
  bool is_protected = false;
};

bool Better(const Candidate& a, const Candidate& b) {
  const bool a_nan = std::isnan(a.score);
  const bool b_nan = std::isnan(b.score);
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.score != b.score) return a.score > b.score;
  if (a.head != b.head) return a.head < b.head;
  return a.position < b.position;
}

class Planner {
 public:
  explicit Planner(const EvictionCase& eviction) : e_(eviction) {
    for (int32_t p = 0; p < e_.range.cut; ++p) num_protected_ += Protects(p);
    mean_ = std::max(1, e_.target.TokensPerHead(e_.range.cut));
    min_pages_ = std::max<int64_t>(1, Pages(num_protected_));
    for (size_t head = 0; head < e_.positions.size(); ++head) {
      std::vector<Candidate> candidates;
      for (size_t i = 0; i < e_.positions[head].size(); ++i) {
        Candidate candidate;
        candidate.position = e_.positions[head][i];
        candidate.score = e_.scores.empty()
                              ? static_cast<float>(candidate.position)
                              : e_.scores[head][i];
        candidate.head = static_cast<int32_t>(head);
        candidate.is_protected = Protects(candidate.position);
        candidates.push_back(candidate);
      }
      heads_.push_back(std::move(candidates));
    }
  }

  NaivePlan Run() {
    NaivePlan plan;
    for (int32_t layer = 0; layer < e_.shape.num_layers; ++layer) {
      if (e_.policy.budget.kind == BudgetKind::kExternal) {
        PlanExternal(layer, &plan);
      } else if (by_page()) {
        PlanPages(layer, &plan);
      } else {
        PlanTokens(layer, &plan);
      }
    }
    const int64_t all = static_cast<int64_t>(heads_.size());
    if (!by_page() && e_.policy.budget.kind != BudgetKind::kExternal) {
      plan.page_total = std::min(
          (all * mean_ + all * (e_.shape.page_size - 1)) / e_.shape.page_size,
          all * Pages(e_.range.cut));
    }
    for (size_t head = 0; head < heads_.size(); ++head) {
      plan.kept.push_back(Keep(heads_[head], plan.budgets[head]));
    }
    return plan;
  }

 private:
  bool by_page() const { return e_.policy.rounding == Rounding::kPage; }
  int64_t Pages(int64_t entries) const {
    int64_t pages = 0;
    while (pages * e_.shape.page_size < entries) ++pages;
    return pages;
  }
  bool IsSink(int32_t position) const {
    const int32_t own = e_.policy.scorer.kind == ScorerKind::kStreaming
                            ? e_.policy.scorer.sinks
                            : 0;
    return position < own || position < e_.policy.protect.sinks;
  }
  bool Protects(int32_t position) const {
    int32_t recent = e_.policy.protect.recent;
    if (recent < 0) {
      recent = e_.policy.scorer.kind == ScorerKind::kSnapKv
                   ? e_.policy.scorer.window
                   : 0;
    }
    return IsSink(position) || position + recent >= e_.range.length;
  }
  const std::vector<Candidate>& Head(int32_t layer, int32_t head) const {
    return heads_[layer * e_.shape.num_heads + head];
  }
  int64_t Held(int32_t layer, int32_t head) const {
    return static_cast<int64_t>(Head(layer, head).size());
  }
  int64_t Protected(int32_t layer, int32_t head) const {
    const auto& all = Head(layer, head);
    return std::count_if(all.begin(), all.end(),
                         [](const Candidate& c) { return c.is_protected; });
  }

  // Ideal budgets above the fixed part, in thousandths.
  std::vector<int64_t> Weights(int32_t layer,
                               const std::vector<int64_t>& fixed) const {
    std::vector<int64_t> weights(e_.shape.num_heads, 1000);
    if (e_.policy.budget.kind == BudgetKind::kUniform) return weights;
    std::vector<Candidate> past;
    int64_t slots = 0;
    for (int32_t head = 0; head < e_.shape.num_heads; ++head) {
      slots += mean_ - fixed[head];
      weights[head] = (mean_ - fixed[head]) * e_.alpha_thousandths;
      for (const Candidate& candidate : Head(layer, head)) {
        if (!candidate.is_protected) past.push_back(candidate);
      }
    }
    std::sort(past.begin(), past.end(), Better);
    for (int64_t i = 0; i < slots && i < std::ssize(past); ++i) {
      weights[past[i].head - layer * e_.shape.num_heads] +=
          1000 - e_.alpha_thousandths;
    }
    return weights;
  }
  std::vector<int64_t> Fixed(int32_t layer) const {
    std::vector<int64_t> fixed(e_.shape.num_heads, 0);
    if (e_.policy.budget.kind == BudgetKind::kUniform) return fixed;
    for (int32_t head = 0; head < e_.shape.num_heads; ++head) {
      fixed[head] = std::min(mean_, Protected(layer, head));
    }
    return fixed;
  }

  void PlanPages(int32_t layer, NaivePlan* plan) {
    const int32_t num_heads = e_.shape.num_heads;
    const int64_t total = std::max(num_heads * mean_ / e_.shape.page_size,
                                   num_heads * min_pages_);
    const std::vector<int64_t> fixed = Fixed(layer);
    std::vector<int64_t> weights = Weights(layer, fixed);
    std::vector<int64_t> low, high;
    for (int32_t head = 0; head < num_heads; ++head) {
      weights[head] += 1000 * fixed[head];
      high.push_back(Pages(Held(layer, head)));
      low.push_back(std::min(min_pages_, high.back()));
    }
    const std::vector<int64_t> pages =
        ApportionNaively(total, weights, low, high);
    for (int32_t head = 0; head < num_heads; ++head) {
      plan->budgets.push_back(static_cast<int32_t>(
          std::min(pages[head] * e_.shape.page_size, Held(layer, head))));
    }
    plan->page_total += total;
  }

  void PlanTokens(int32_t layer, NaivePlan* plan) {
    const std::vector<int64_t> fixed = Fixed(layer);
    std::vector<int64_t> low, high;
    int64_t total = 0;
    for (int32_t head = 0; head < e_.shape.num_heads; ++head) {
      total += mean_ - fixed[head];
      high.push_back(Held(layer, head) - fixed[head]);
      low.push_back(fixed[head] == 0 && Held(layer, head) > 0);
    }
    const std::vector<int64_t> rest =
        ApportionNaively(total, Weights(layer, fixed), low, high);
    for (int32_t head = 0; head < e_.shape.num_heads; ++head) {
      plan->budgets.push_back(static_cast<int32_t>(fixed[head] + rest[head]));
    }
  }

  void PlanExternal(int32_t layer, NaivePlan* plan) {
    for (int32_t head = 0; head < e_.shape.num_heads; ++head) {
      int64_t budget = e_.external[layer * e_.shape.num_heads + head];
      budget = std::max<int64_t>(budget, 1);
      if (by_page()) {
        budget = std::max(Pages(budget), min_pages_) * e_.shape.page_size;
      }
      plan->page_total += std::min(Pages(budget), Pages(e_.range.cut));
      plan->budgets.push_back(
          static_cast<int32_t>(std::min(budget, Held(layer, head))));
    }
  }

  std::vector<int32_t> Keep(std::vector<Candidate> candidates,
                            int32_t budget) const {
    std::vector<int32_t> kept;
    const int64_t num_protected =
        std::count_if(candidates.begin(), candidates.end(),
                      [](const Candidate& c) { return c.is_protected; });
    if (budget < num_protected) {
      std::erase_if(candidates,
                    [](const Candidate& c) { return !c.is_protected; });
      while (std::ssize(kept) < budget &&
             std::ssize(kept) < std::ssize(candidates) &&
             IsSink(candidates[kept.size()].position)) {
        kept.push_back(candidates[kept.size()].position);
      }
      for (size_t i = candidates.size(); std::ssize(kept) < budget;) {
        kept.push_back(candidates[--i].position);
      }
    } else {
      std::sort(candidates.begin(), candidates.end(),
                [](const Candidate& a, const Candidate& b) {
                  if (a.is_protected != b.is_protected) return a.is_protected;
                  return Better(a, b);
                });
      for (int32_t i = 0; i < budget; ++i) {
        kept.push_back(candidates[i].position);
      }
    }
    std::sort(kept.begin(), kept.end());
    return kept;
  }

  const EvictionCase& e_;
  int64_t num_protected_ = 0;
  int64_t mean_ = 0;
  int64_t min_pages_ = 0;
  std::vector<std::vector<Candidate>> heads_;
};

}  // namespace

NaivePlan PlanNaively(const EvictionCase& eviction) {
  return Planner(eviction).Run();
}

}  // namespace blockmgr
