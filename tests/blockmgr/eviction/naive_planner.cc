#include "tests/blockmgr/eviction/naive_planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace blockmgr {
namespace {

int64_t SumOf(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

struct Candidate {
  float score = 0;
  float second = 0;  // what critical's second stage ranks by
  int32_t head = 0;
  int32_t position = 0;
  bool is_protected = false;
};

// NaN, then descending.
int Compare(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(b) - std::isnan(a);
  return (a < b) - (a > b);
}

bool Better(const Candidate& a, const Candidate& b) {
  if (const int order = Compare(a.score, b.score)) return order < 0;
  if (a.head != b.head) return a.head < b.head;
  return a.position < b.position;
}

// Within one head.
bool BetterSecond(const Candidate& a, const Candidate& b) {
  if (const int order = Compare(a.second, b.second)) return order < 0;
  return a.position < b.position;
}

// Some heads that share a total; [first, first + count).
struct Scope {
  size_t first = 0;
  size_t count = 0;
  int64_t entries = 0;
  int64_t pages = 0;
};

// What the heads of a scope should get: fixed entries, and of the rest a share
// in proportion to the weights.
struct Shares {
  std::vector<int64_t> fixed;
  std::vector<int64_t> weights;
};

class Planner {
 public:
  explicit Planner(const EvictionCase& eviction) : e_(eviction) {
    for (int32_t p = 0; p < e_.range.cut; ++p) num_protected_ += Protects(p);
    mean_ = NaiveMean(e_.policy, e_.target, e_.range);
    min_pages_ = std::max<int64_t>(1, Pages(num_protected_));
    for (size_t head = 0; head < e_.positions.size(); ++head) {
      std::vector<Candidate> candidates;
      for (size_t i = 0; i < e_.positions[head].size(); ++i) {
        candidates.push_back(MakeCandidate(head, i));
      }
      heads_.push_back(std::move(candidates));
    }
  }

  NaivePlan Run() {
    NaivePlan plan;
    if (HasGivenBudgets(e_.policy)) {
      for (size_t head = 0; head < heads_.size(); ++head) {
        PlanGiven(head, &plan);
      }
    } else {
      for (const Scope& scope : Scopes()) PlanScope(scope, &plan);
      if (!by_page()) plan.page_total = TokenPageTotal();
    }
    for (size_t head = 0; head < heads_.size(); ++head) {
      plan.kept.push_back(Keep(heads_[head], plan.budgets[head]));
    }
    return plan;
  }

 private:
  Candidate MakeCandidate(size_t head, size_t i) const {
    Candidate candidate;
    candidate.position = e_.positions[head][i];
    candidate.score = e_.scores.empty() ? static_cast<float>(candidate.position)
                                        : e_.scores[head][i];
    candidate.head = static_cast<int32_t>(head);
    candidate.is_protected = Protects(candidate.position);
    if (!e_.products.empty()) {
      candidate.second = e_.products[head][i];
    } else if (!e_.value_norms.empty()) {
      const auto eps = static_cast<float>(e_.policy.selector.eps);
      candidate.second = (candidate.score + eps) * e_.value_norms[head][i];
    }
    return candidate;
  }
  bool by_page() const { return e_.policy.rounding == Rounding::kPage; }
  int64_t num_heads() const { return std::ssize(heads_); }
  int64_t Pages(int64_t entries) const {
    int64_t pages = 0;
    while (pages * e_.shape.page_size < entries) ++pages;
    return pages;
  }
  bool IsSink(int32_t position) const {
    int32_t own = 0;
    if (e_.policy.scorer.kind == ScorerKind::kStreaming) {
      own = e_.policy.scorer.sinks;
    } else if (e_.policy.scorer.kind == ScorerKind::kExpectedAttention) {
      own = e_.policy.scorer.n_sink;
    }
    return position < own || position < e_.policy.protect.sinks;
  }
  bool Protects(int32_t position) const {
    return IsSink(position) ||
           position + NaiveRecent(e_.policy) >= e_.range.length;
  }
  int64_t Held(size_t head) const { return std::ssize(heads_[head]); }
  int64_t Protected(size_t head) const {
    return std::count_if(heads_[head].begin(), heads_[head].end(),
                         [](const Candidate& c) { return c.is_protected; });
  }

  // Mean entries per head of every layer, as PyramidKV has them.
  std::vector<int64_t> PyramidMeans() const {
    const int64_t layers = e_.shape.num_layers;
    const int64_t cut = e_.range.cut;
    const double beta = e_.policy.budget.beta;
    std::vector<int64_t> means(layers, mean_);
    if (layers == 1) return means;
    const PyramidFormula formula = e_.policy.budget.formula;
    if (formula != PyramidFormula::kKvPress) {
      // The past only, in whole entries.
      const int64_t past = mean_ - num_protected_;
      const bool level = formula == PyramidFormula::kFactory && cut < 2 * past;
      if (past <= 0 || level) return means;
      auto least =
          static_cast<int64_t>(std::floor(static_cast<double>(past) / beta));
      int64_t most = 2 * past - least;
      if (most >= cut - num_protected_) {
        most = cut - num_protected_;
        least = 2 * past - most;
      }
      const int64_t step = (most - least) / (layers - 1);
      for (int64_t layer = 0; layer < layers; ++layer) {
        means[layer] = num_protected_ + most - layer * step;
      }
      return means;
    }
    const auto mean = static_cast<double>(mean_);
    double least = mean / beta;
    double most = 2 * mean - least;
    if (most >= static_cast<double>(cut - num_protected_)) {
      most = static_cast<double>(cut - num_protected_);
      least = 2 * mean - most;
    }
    if (most < least || least < static_cast<double>(num_protected_)) {
      return means;
    }
    const double step = (most - least) / static_cast<double>(layers - 1);
    for (int64_t layer = 0; layer < layers; ++layer) {
      // Half to even.
      means[layer] = static_cast<int64_t>(
          std::nearbyint(most - static_cast<double>(layer) * step));
    }
    return means;
  }

  // The total of a scope of so many heads, were it alone.
  int64_t PagesOf(int64_t heads) const {
    if (mean_ == e_.range.cut) return heads * Pages(e_.range.cut);
    return std::max(heads * mean_ / e_.shape.page_size, heads * min_pages_);
  }
  std::vector<Scope> Scopes() const {
    if (e_.policy.budget.kind == BudgetKind::kGlobal) {
      return {{0, heads_.size(), num_heads() * mean_, PagesOf(num_heads())}};
    }
    const int64_t heads = e_.shape.num_heads;
    const auto layers = static_cast<size_t>(e_.shape.num_layers);
    std::vector<int64_t> entries(layers, heads * mean_);
    std::vector<int64_t> pages(layers, PagesOf(heads));
    if (e_.policy.budget.kind == BudgetKind::kPyramid ||
        e_.policy.budget.kind == BudgetKind::kAdaPyramid) {
      const std::vector<int64_t> means = PyramidMeans();
      const int64_t least = std::clamp<int64_t>(num_protected_, 1, mean_);
      entries = ApportionNaively(num_heads() * mean_, means,
                                 std::vector(layers, heads * least),
                                 std::vector(layers, heads * e_.range.cut));
      pages = ApportionNaively(
          PagesOf(num_heads()), means, std::vector(layers, heads * min_pages_),
          std::vector(layers, heads * Pages(e_.range.cut)));
    }
    std::vector<Scope> scopes;
    for (size_t layer = 0; layer < layers; ++layer) {
      scopes.push_back({layer * static_cast<size_t>(heads),
                        static_cast<size_t>(heads), entries[layer],
                        pages[layer]});
    }
    return scopes;
  }

  // Of the `slots` best unprotected entries, how many each head has, when head
  // i takes its own floors[i] best first.
  std::vector<int64_t> CountBest(const Scope& scope, int64_t slots,
                                 const std::vector<int64_t>& floors) const {
    std::vector<int64_t> counts(scope.count, 0);
    std::vector<Candidate> pool;
    for (size_t i = 0; i < scope.count; ++i) {
      std::vector<Candidate> own = heads_[scope.first + i];
      std::erase_if(own, [](const Candidate& c) { return c.is_protected; });
      std::sort(own.begin(), own.end(), Better);
      for (const Candidate& candidate : own) {
        if (counts[i] < floors[i]) {
          ++counts[i];
          --slots;
        } else {
          pool.push_back(candidate);
        }
      }
    }
    std::sort(pool.begin(), pool.end(), Better);
    for (int64_t i = 0; i < slots && i < std::ssize(pool); ++i) {
      ++counts[static_cast<size_t>(pool[i].head) - scope.first];
    }
    return counts;
  }

  // Weights in thousandths.
  Shares MakeShares(const Scope& scope) const {
    const BudgetSpec& budget = e_.policy.budget;
    Shares shares{std::vector<int64_t>(scope.count, 0),
                  std::vector<int64_t>(scope.count, 1000)};
    if (budget.kind == BudgetKind::kUniform ||
        budget.kind == BudgetKind::kPyramid) {
      return shares;
    }
    const bool floor =
        budget.kind == BudgetKind::kAdaKv && budget.mode == AdaKvMode::kFloor;
    const int64_t alpha =
        budget.kind == BudgetKind::kGlobal ? 0 : e_.alpha_thousandths;
    const int64_t mean = scope.entries / static_cast<int64_t>(scope.count);
    int64_t slots = scope.entries;
    std::vector<int64_t> past(scope.count);
    std::vector<int64_t> floors(scope.count, 0);
    for (size_t i = 0; i < scope.count; ++i) {
      shares.fixed[i] = std::min(mean, Protected(scope.first + i));
      slots -= shares.fixed[i];
      past[i] = mean - shares.fixed[i];
      if (floor) floors[i] = past[i] * alpha / 1000;
      // Whole shares: nobody unprotected is left with none.
      const bool whole = floor || alpha == 0;
      if (whole && shares.fixed[i] == 0 && floors[i] == 0) floors[i] = 1;
    }
    const std::vector<int64_t> counts = CountBest(scope, slots, floors);
    for (size_t i = 0; i < scope.count; ++i) {
      shares.weights[i] = floor ? 1000 * counts[i]
                                : counts[i] * (1000 - alpha) + past[i] * alpha;
    }
    return shares;
  }

  void AppendIdeals(const Scope& scope, const Shares& shares,
                    NaivePlan* plan) const {
    const int64_t weights = SumOf(shares.weights);
    const int64_t rest = scope.entries - SumOf(shares.fixed);
    for (size_t i = 0; i < scope.count; ++i) {
      // Nobody has a claim: equal parts.
      const double part = weights == 0
                              ? 1.0 / static_cast<double>(scope.count)
                              : static_cast<double>(shares.weights[i]) /
                                    static_cast<double>(weights);
      plan->ideals.push_back(static_cast<double>(shares.fixed[i]) +
                             static_cast<double>(rest) * part);
    }
  }

  void PlanScope(const Scope& scope, NaivePlan* plan) const {
    const Shares shares = MakeShares(scope);
    AppendIdeals(scope, shares, plan);
    std::vector<int64_t> weights, low, high;
    int64_t total = by_page() ? scope.pages : scope.entries;
    for (size_t i = 0; i < scope.count; ++i) {
      const int64_t held = Held(scope.first + i);
      const int64_t fixed = shares.fixed[i];
      if (by_page()) {
        weights.push_back(shares.weights[i] + 1000 * fixed);
        high.push_back(Pages(held));
        low.push_back(std::min(min_pages_, high.back()));
      } else {
        weights.push_back(shares.weights[i]);
        high.push_back(held - fixed);
        low.push_back(fixed == 0 && held > 0);
        total -= fixed;
      }
    }
    const std::vector<int64_t> units =
        ApportionNaively(total, weights, low, high);
    for (size_t i = 0; i < scope.count; ++i) {
      const int64_t entries = by_page() ? units[i] * e_.shape.page_size
                                        : units[i] + shares.fixed[i];
      plan->budgets.push_back(
          static_cast<int32_t>(std::min(entries, Held(scope.first + i))));
    }
    plan->page_total += scope.pages;
  }

  // Every head may have a page that is not full.
  int64_t TokenPageTotal() const {
    const int64_t entries = num_heads() * (mean_ + e_.shape.page_size - 1);
    return std::min(entries / e_.shape.page_size,
                    num_heads() * Pages(e_.range.cut));
  }

  void PlanGiven(size_t head, NaivePlan* plan) const {
    int64_t budget = std::max(0, e_.external[head]);
    if (by_page()) {
      budget =
          std::max(Pages(budget), Pages(num_protected_)) * e_.shape.page_size;
    }
    plan->page_total += std::min(Pages(budget), Pages(e_.range.cut));
    plan->budgets.push_back(static_cast<int32_t>(std::min(budget, Held(head))));
  }

  // All protected, then the best; critical's two stages one after the other.
  std::vector<int32_t> KeepBest(std::vector<Candidate> candidates,
                                int64_t budget) const {
    const auto past_begin =
        std::partition(candidates.begin(), candidates.end(),
                       [](const Candidate& c) { return c.is_protected; });
    std::sort(past_begin, candidates.end(), Better);
    if (e_.policy.selector.kind == SelectorKind::kCritical) {
      const int64_t past = budget - (past_begin - candidates.begin());
      std::sort(past_begin + past * e_.first_thousandths / 1000,
                candidates.end(), BetterSecond);
    }
    std::vector<int32_t> kept;
    for (int64_t i = 0; i < budget; ++i) {
      kept.push_back(candidates[i].position);
    }
    return kept;
  }

  std::vector<int32_t> Keep(std::vector<Candidate> candidates,
                            int64_t budget) const {
    std::vector<int32_t> kept;
    const int64_t num_protected =
        std::count_if(candidates.begin(), candidates.end(),
                      [](const Candidate& c) { return c.is_protected; });
    if (budget >= num_protected) {
      kept = KeepBest(std::move(candidates), budget);
    } else {
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

int64_t NaiveRecent(const EvictionPolicy& policy) {
  if (policy.protect.recent >= 0) return policy.protect.recent;
  switch (policy.scorer.kind) {
    case ScorerKind::kSnapKv:
      return policy.scorer.window;
    case ScorerKind::kH2o:
      return policy.scorer.recent;
    default:
      return policy.scorer.kind == ScorerKind::kTova ? 1 : 0;
  }
}

int64_t NaiveMean(const EvictionPolicy& policy, const EvictionTarget& target,
                  const EvictionRange& range) {
  // Nothing is older than the window: nothing is evicted.
  if (range.length <= NaiveRecent(policy)) return range.cut;
  return std::max(1, target.TokensPerHead(range.cut));
}

NaivePlan PlanNaively(const EvictionCase& eviction) {
  return Planner(eviction).Run();
}

bool HasGivenBudgets(const EvictionPolicy& policy) {
  return policy.budget.kind == BudgetKind::kExternal ||
         policy.budget.kind == BudgetKind::kHeadKv ||
         policy.budget.kind == BudgetKind::kLuKv ||
         policy.budget.kind == BudgetKind::kDuo;
}

}  // namespace blockmgr
