#include "tests/blockmgr/eviction/random_case.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace blockmgr {
namespace {

// Uniform in [low, high].
int32_t Between(std::mt19937_64& random, int32_t low, int32_t high) {
  return low +
         static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
}

bool Chance(std::mt19937_64& random, int32_t percent) {
  return Between(random, 0, 99) < percent;
}

// Around the boundaries of pages.
int32_t RandomCount(std::mt19937_64& random, int32_t page_size) {
  switch (Between(random, 0, 5)) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return page_size - 1;
    case 3:
      return page_size;
    case 4:
      return page_size + 1;
    default:
      return Between(random, 0, 4 * page_size);
  }
}

// Around the boundaries of pages, or everything.
int32_t RandomProtected(std::mt19937_64& random, int32_t page_size) {
  if (Chance(random, 3)) return std::numeric_limits<int32_t>::max();
  return RandomCount(random, page_size);
}

SelectorSpec RandomSelector(std::mt19937_64& random, ScorerKind scorer,
                            int32_t first_thousandths) {
  SelectorSpec selector;
  selector.kind = static_cast<SelectorKind>(Chance(random, 30));
  selector.first = first_thousandths / 1000.0;
  selector.eps = std::array{0.0, 1e-4, 1.0}[random() % 3];
  const bool per_query_head =
      scorer == ScorerKind::kSnapKv || scorer == ScorerKind::kTova;
  selector.gqa_product = per_query_head && Chance(random, 30);
  return selector;
}

EvictionPolicy RandomPolicy(std::mt19937_64& random, int32_t page_size,
                            const EvictionCase& eviction) {
  EvictionPolicy policy;
  policy.scorer.kind = static_cast<ScorerKind>(Between(random, 0, 8));
  policy.scorer.window = std::max(1, RandomProtected(random, page_size));
  policy.scorer.recent = RandomProtected(random, page_size);
  policy.scorer.sinks = RandomProtected(random, page_size);
  policy.scorer.n_sink = RandomProtected(random, page_size);
  policy.budget.kind = static_cast<BudgetKind>(Between(random, 0, 7));
  policy.budget.mode = static_cast<AdaKvMode>(Between(random, 0, 1));
  policy.budget.alpha = eviction.alpha_thousandths / 1000.0;
  policy.budget.formula = static_cast<PyramidFormula>(Between(random, 0, 2));
  policy.budget.beta = std::array{1.0, 1.5, 2.0, 3.0, 20.0, 1e9}[random() % 6];
  policy.budget.profile = "table";
  policy.selector =
      RandomSelector(random, policy.scorer.kind, eviction.first_thousandths);
  if (Chance(random, 30)) {
    policy.protect.sinks = RandomProtected(random, page_size);
  }
  if (Chance(random, 50)) {
    policy.protect.recent = RandomProtected(random, page_size);
  }
  policy.rounding = static_cast<Rounding>(Between(random, 0, 1));
  return policy;
}

EvictionTarget RandomTarget(std::mt19937_64& random, int32_t cut) {
  EvictionTarget target;
  if (Chance(random, 50)) {
    target.ratio = {Between(random, 1, 100), 100};
  } else {
    target.kind = EvictionTarget::Kind::kTokens;
    target.tokens = Between(random, 0, cut + 2);
  }
  return target;
}

std::vector<int32_t> RandomPositions(std::mt19937_64& random, int32_t cut) {
  const int32_t percent = std::array{0, 20, 60, 95, 100}[random() % 5];
  std::vector<int32_t> positions;
  for (int32_t position = 0; position < cut; ++position) {
    if (Chance(random, percent)) positions.push_back(position);
  }
  return positions;
}

// Whole pages and tokens beyond them, as managers ask for, or anything.
EvictionRange RandomRange(std::mt19937_64& random, int32_t page_size) {
  EvictionRange range;
  if (Chance(random, 50)) {
    range.cut = page_size * Between(random, 1, 4);
    range.length = range.cut + std::max(1, RandomCount(random, page_size));
  } else {
    range.cut = Between(random, 1, 4 * page_size);
    range.length = range.cut + RandomCount(random, page_size);
  }
  return range;
}

}  // namespace

std::vector<float> RandomScores(std::mt19937_64& random, size_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::array<float, 10> special = {
      std::numeric_limits<float>::quiet_NaN(),
      -std::numeric_limits<float>::quiet_NaN(),
      kInfinity,
      -kInfinity,
      0.0f,
      -0.0f,
      1.0f,
      -1.0f,
      std::numeric_limits<float>::denorm_min(),
      -std::numeric_limits<float>::max()};
  const int32_t style = Between(random, 0, 4);
  const float equal = special[random() % special.size()];
  std::vector<float> scores(count);
  for (float& score : scores) {
    switch (style) {
      case 0:
        score = std::ldexp(static_cast<float>(random() >> 40), -24);
        break;
      case 1:
        score = static_cast<float>(Between(random, -1, 2));
        break;
      case 2:
        score = equal;
        break;
      case 3:
        score = special[random() % special.size()];
        break;
      default:
        score = std::bit_cast<float>(static_cast<uint32_t>(random()));
    }
  }
  return scores;
}

namespace {

std::vector<float> Flatten(const std::vector<std::vector<float>>& heads) {
  std::vector<float> flat;
  for (const std::vector<float>& head : heads) {
    flat.insert(flat.end(), head.begin(), head.end());
  }
  return flat;
}

// The sizes of values are not negative.
std::vector<float> RandomNorms(std::mt19937_64& random, size_t count) {
  std::vector<float> norms = RandomScores(random, count);
  for (float& norm : norms) norm = std::abs(norm);
  return norms;
}

}  // namespace

EvictionCase RandomCase(std::mt19937_64& random) {
  EvictionCase eviction;
  const int32_t page_size = std::array{1, 2, 3, 4, 5, 8}[random() % 6];
  eviction.shape = {Between(random, 1, 3), Between(random, 1, 4), page_size};
  eviction.range = RandomRange(random, page_size);
  eviction.alpha_thousandths =
      std::array{0, 200, 500, 1000, Between(random, 0, 1000)}[random() % 5];
  eviction.first_thousandths =
      std::array{0, 500, 580, 1000, Between(random, 0, 1000)}[random() % 5];
  eviction.policy = RandomPolicy(random, page_size, eviction);
  eviction.target = RandomTarget(random, eviction.range.cut);
  const bool uneven = Chance(random, 50);
  const int32_t num_heads =
      eviction.shape.num_layers * eviction.shape.num_heads;
  std::vector<int32_t> all(eviction.range.cut);
  for (int32_t i = 0; i < eviction.range.cut; ++i) all[i] = i;
  for (int32_t head = 0; head < num_heads; ++head) {
    eviction.positions.push_back(
        uneven ? RandomPositions(random, eviction.range.cut) : all);
    eviction.external.push_back(Between(random, -1, eviction.range.cut + 2));
  }
  DrawScores(random, &eviction);
  return eviction;
}

void DrawScores(std::mt19937_64& random, EvictionCase* eviction) {
  const EvictionPolicy& policy = eviction->policy;
  const bool critical = policy.selector.kind == SelectorKind::kCritical;
  eviction->scores.clear();
  eviction->value_norms.clear();
  eviction->products.clear();
  for (const std::vector<int32_t>& positions : eviction->positions) {
    const size_t count = positions.size();
    if (policy.scorer.kind != ScorerKind::kStreaming) {
      eviction->scores.push_back(RandomScores(random, count));
    }
    if (critical && policy.selector.gqa_product) {
      eviction->products.push_back(RandomScores(random, count));
    } else if (critical) {
      eviction->value_norms.push_back(RandomNorms(random, count));
    }
  }
}

std::string Describe(const EvictionCase& eviction) {
  std::string text = absl::StrCat(
      FormatPolicy(eviction.policy), "; target ",
      eviction.target.kind == EvictionTarget::Kind::kTokens
          ? absl::StrCat(eviction.target.tokens)
          : eviction.target.ratio.ToString(),
      "; layers ", eviction.shape.num_layers, " heads ",
      eviction.shape.num_heads, " page_size ", eviction.shape.page_size,
      " cut ", eviction.range.cut, " length ", eviction.range.length);
  for (size_t head = 0; head < eviction.positions.size(); ++head) {
    absl::StrAppend(&text, "\n head ", head, " external ",
                    eviction.external[head], " positions ",
                    absl::StrJoin(eviction.positions[head], " "));
    if (!eviction.scores.empty()) {
      absl::StrAppend(&text, " scores ",
                      absl::StrJoin(eviction.scores[head], " "));
    }
    if (!eviction.value_norms.empty()) {
      absl::StrAppend(&text, " norms ",
                      absl::StrJoin(eviction.value_norms[head], " "));
    }
    if (!eviction.products.empty()) {
      absl::StrAppend(&text, " products ",
                      absl::StrJoin(eviction.products[head], " "));
    }
  }
  return text;
}

FlatEntries::FlatEntries(const EvictionCase& eviction)
    : offsets_{0},
      scores_(Flatten(eviction.scores)),
      value_norms_(Flatten(eviction.value_norms)),
      products_(Flatten(eviction.products)) {
  for (const std::vector<int32_t>& head : eviction.positions) {
    positions_.insert(positions_.end(), head.begin(), head.end());
    offsets_.push_back(static_cast<int64_t>(positions_.size()));
  }
}

std::vector<int32_t> Budgets(const EvictionCase& eviction) {
  const FlatEntries entries(eviction);
  return AllocateBudgets(eviction.policy, eviction.target, eviction.shape,
                         eviction.range, entries.view(), eviction.external);
}

KeepSets Select(const EvictionCase& eviction) {
  const FlatEntries entries(eviction);
  return SelectEntries(eviction.policy, eviction.target, eviction.shape,
                       eviction.range, entries.view(), eviction.external);
}

int64_t Total(const EvictionCase& eviction) {
  return HasGivenBudgets(eviction.policy)
             ? PageTotalExternal(eviction.external, eviction.policy,
                                 eviction.shape, eviction.range)
             : PageTotal(eviction.policy, eviction.target, eviction.shape,
                         eviction.range);
}

std::vector<double> Ideals(const EvictionCase& eviction) {
  const FlatEntries entries(eviction);
  return IdealBudgets(eviction.policy, eviction.target, eviction.shape,
                      eviction.range, entries.view());
}

std::vector<std::vector<int32_t>> KeptPositions(const EvictionCase& eviction,
                                                const KeepSets& kept) {
  std::vector<std::vector<int32_t>> positions(eviction.positions.size());
  for (size_t head = 0; head < positions.size(); ++head) {
    for (int64_t i = kept.offsets[head]; i < kept.offsets[head + 1]; ++i) {
      positions[head].push_back(eviction.positions[head][kept.ranks[i]]);
    }
  }
  return positions;
}

}  // namespace blockmgr
