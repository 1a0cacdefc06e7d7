// Random evictions against the naive planner and against what must always hold.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

// The cases are cheap and many: fewer still under sanitizers.
constexpr uint64_t kDivisor = kBriefest ? 50 : kBrief ? 25 : 1;

int64_t CountPages(const std::vector<int32_t>& budgets, int32_t page_size) {
  int64_t pages = 0;
  for (const int32_t budget : budgets) pages += CeilDiv(budget, page_size);
  return pages;
}

bool IsPyramid(const EvictionPolicy& policy) {
  return policy.budget.kind == BudgetKind::kPyramid ||
         policy.budget.kind == BudgetKind::kAdaPyramid;
}

// Every scope's total, unless all of its heads keep everything. What a layer of
// a pyramid cannot hold is given up: there, only an upper bound.
void ExpectConserved(const EvictionCase& eviction,
                     const std::vector<int32_t>& budgets) {
  if (HasGivenBudgets(eviction.policy)) return;
  const int32_t page_size = eviction.shape.page_size;
  const int64_t mean =
      NaiveMean(eviction.policy, eviction.target, eviction.range);
  const bool whole_model = IsPyramid(eviction.policy) ||
                           eviction.policy.budget.kind == BudgetKind::kGlobal;
  const size_t num_scopes = whole_model ? 1 : eviction.shape.num_layers;
  const size_t num_heads = budgets.size() / num_scopes;
  for (size_t scope = 0; scope < num_scopes; ++scope) {
    int64_t held = 0, held_pages = 0, entries = 0, pages = 0;
    for (size_t head = scope * num_heads; head < (scope + 1) * num_heads;
         ++head) {
      const auto size = static_cast<int32_t>(eviction.positions[head].size());
      held += size;
      held_pages += CeilDiv(size, page_size);
      entries += budgets[head];
      pages += CeilDiv(budgets[head], page_size);
    }
    const bool by_token = eviction.policy.rounding == Rounding::kToken;
    const int64_t got = by_token ? entries : pages;
    const int64_t most =
        by_token ? std::min(held, static_cast<int64_t>(num_heads) * mean)
                 : std::min(held_pages,
                            Total(eviction) / static_cast<int64_t>(num_scopes));
    const bool full =
        held == static_cast<int64_t>(num_heads) * eviction.range.cut;
    if (IsPyramid(eviction.policy) && !full) {
      EXPECT_LE(got, most);
    } else {
      EXPECT_EQ(got, most);
    }
  }
}

void ExpectProtectedKept(const EvictionCase& eviction,
                         const std::vector<int32_t>& budgets,
                         const std::vector<std::vector<int32_t>>& kept) {
  const EvictionPolicy& policy = eviction.policy;
  for (size_t head = 0; head < kept.size(); ++head) {
    std::vector<int32_t> must_keep;
    for (const int32_t position : eviction.positions[head]) {
      if (position < policy.protected_sinks() ||
          position >= eviction.range.length - policy.protected_recent()) {
        must_keep.push_back(position);
      }
    }
    const bool covered =
        budgets[head] >= static_cast<int32_t>(must_keep.size());
    // Whole pages always cover the protected set.
    EXPECT_TRUE(covered || policy.rounding == Rounding::kToken);
    EXPECT_TRUE(!covered || std::includes(kept[head].begin(), kept[head].end(),
                                          must_keep.begin(), must_keep.end()));
  }
}

int64_t CountNan(const EvictionCase& eviction) {
  int64_t num_nan = 0;
  for (const std::vector<float>& scores : eviction.scores) {
    num_nan += std::count_if(scores.begin(), scores.end(),
                             [](float score) { return std::isnan(score); });
  }
  return num_nan;
}

void ExpectIdeals(const EvictionCase& eviction,
                  const std::vector<double>& expected) {
  if (HasGivenBudgets(eviction.policy)) return;
  const std::vector<double> ideals = Ideals(eviction);
  ASSERT_EQ(ideals.size(), expected.size());
  for (size_t head = 0; head < ideals.size(); ++head) {
    EXPECT_NEAR(ideals[head], expected[head], 1e-9) << "head " << head;
  }
}

void CheckCase(const EvictionCase& eviction) {
  const NaivePlan naive = PlanNaively(eviction);
  const std::vector<int32_t> budgets = Budgets(eviction);
  const KeepSets selected = Select(eviction);
  const std::vector<std::vector<int32_t>> kept =
      KeptPositions(eviction, selected);
  ASSERT_EQ(Total(eviction), naive.page_total);
  ASSERT_EQ(budgets, naive.budgets);
  ASSERT_EQ(kept, naive.kept);
  EXPECT_EQ(selected.num_nan, CountNan(eviction));
  EXPECT_LE(CountPages(budgets, eviction.shape.page_size), Total(eviction));
  for (size_t head = 0; head < kept.size(); ++head) {
    EXPECT_EQ(static_cast<int32_t>(kept[head].size()), budgets[head]);
    // Every head keeps one, unless it is told to keep none.
    const bool none = HasGivenBudgets(eviction.policy) && budgets[head] == 0;
    EXPECT_EQ(kept[head].empty(), eviction.positions[head].empty() || none);
  }
  ExpectConserved(eviction, budgets);
  ExpectProtectedKept(eviction, budgets, kept);
  ExpectIdeals(eviction, naive.ideals);
}

class SelectPropertyTest : public ::testing::TestWithParam<BudgetKind> {
 protected:
  // The parameter's budgets, everything else random.
  EvictionCase ParamCase(std::mt19937_64& random) const {
    EvictionCase eviction = RandomCase(random);
    eviction.policy.budget.kind = GetParam();
    return eviction;
  }
};

INSTANTIATE_TEST_SUITE_P(
    , SelectPropertyTest,
    ::testing::Values(BudgetKind::kUniform, BudgetKind::kPyramid,
                      BudgetKind::kAdaKv, BudgetKind::kAdaPyramid,
                      BudgetKind::kHeadKv, BudgetKind::kLuKv,
                      BudgetKind::kGlobal, BudgetKind::kExternal,
                      BudgetKind::kDuo),
    [](const auto& kind) { return std::string(EnumName(kind.param).data()); });

// A million in all.
TEST_P(SelectPropertyTest, AgreesWithTheNaivePlanner) {
  // 10^6 over all budgets.
  constexpr uint64_t kCases = 125'000 / kDivisor;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    const EvictionCase eviction = ParamCase(random);
    CheckCase(eviction);
    if (HasFailure()) FAIL() << "seed " << seed << ": " << Describe(eviction);
  }
}

// A second eviction sees what the first one left.
TEST_P(SelectPropertyTest, RepeatedEvictionsAgreeWithTheNaivePlanner) {
  for (uint64_t seed = 0; seed < 3'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 2);
    EvictionCase eviction = ParamCase(random);
    for (int round = 0; round < 3; ++round) {
      const auto kept = KeptPositions(eviction, Select(eviction));
      // The tail since then is covered too; every head holds all of it.
      const int32_t old_cut = eviction.range.cut;
      eviction.range.cut += eviction.shape.page_size * 2 - round;
      eviction.range.length = eviction.range.cut + round;
      for (size_t head = 0; head < kept.size(); ++head) {
        eviction.positions[head] = kept[head];
        for (int32_t p = old_cut; p < eviction.range.cut; ++p) {
          eviction.positions[head].push_back(p);
        }
      }
      DrawScores(random, &eviction);
      CheckCase(eviction);
      if (HasFailure()) {
        FAIL() << "seed " << seed << ": " << Describe(eviction);
      }
    }
  }
}

// Nested in the target: what a smaller target keeps, a larger one keeps too.
//
// For every budget and selector it holds when budgets never fall as the target
// grows, since one head's selection is nested in its budget. Budgets never fall
//   - before remainders, rounded down: uniform, adakv and global, whatever the
//     heads hold (IdealBudgets)
//   - uniform: always
//   - adakv with alpha = 0, alpha = 1 or mode=floor, and global: under
//     round(token), if every head holds all positions. Then ideals are whole
//     and no minimum binds.
// Elsewhere it may fail: largest remainders, of whole pages above all, can take
// a unit back from a head although the total grows, and pyramids move entries
// between layers.

void ExpectNested(const std::vector<std::vector<int32_t>>& fewer,
                  const std::vector<std::vector<int32_t>>& more) {
  ASSERT_EQ(fewer.size(), more.size());
  for (size_t head = 0; head < fewer.size(); ++head) {
    EXPECT_TRUE(std::includes(more[head].begin(), more[head].end(),
                              fewer[head].begin(), fewer[head].end()))
        << "head " << head;
  }
}

std::vector<std::vector<int32_t>> KeptAt(EvictionCase eviction,
                                         int32_t tokens) {
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = tokens;
  return KeptPositions(eviction, Select(eviction));
}

void ExpectNestedInTarget(const EvictionCase& eviction) {
  std::vector<std::vector<int32_t>> fewer = KeptAt(eviction, 1);
  for (int32_t tokens = 2; tokens <= eviction.range.cut; ++tokens) {
    std::vector<std::vector<int32_t>> more = KeptAt(eviction, tokens);
    ExpectNested(fewer, more);
    fewer = std::move(more);
  }
}

// As budgets of the caller: a kept set in proportion to the ideals.
std::vector<std::vector<int32_t>> KeptByIdeals(
    EvictionCase eviction, const std::vector<double>& ideals) {
  eviction.policy.budget.kind = BudgetKind::kExternal;
  eviction.policy.rounding = Rounding::kToken;
  for (size_t head = 0; head < ideals.size(); ++head) {
    // Ideals are quotients of whole numbers below 2^20: less than 1e-9 off.
    eviction.external[head] =
        static_cast<int32_t>(std::floor(ideals[head] + 1e-9));
  }
  return KeptPositions(eviction, Select(eviction));
}

TEST(NestingTest, IdealBudgetsNeverFallAndTheirFloorsKeepSupersets) {
  const uint64_t num_cases = CountCases(15'000 / kDivisor);
  for (uint64_t seed = 0; seed < num_cases; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 3);
    EvictionCase eviction = RandomCase(random);
    eviction.policy.budget.kind =
        std::array{BudgetKind::kUniform, BudgetKind::kAdaKv,
                   BudgetKind::kGlobal}[random() % 3];
    eviction.target.kind = EvictionTarget::Kind::kRatio;
    std::vector<double> last_ideals(eviction.positions.size(), 0.0);
    std::vector<std::vector<int32_t>> last_kept(eviction.positions.size());
    for (int32_t percent = 1; percent <= 100;
         percent += 1 + static_cast<int32_t>(random() % 30)) {
      eviction.target.ratio = {percent, 100};
      const std::vector<double> ideals = Ideals(eviction);
      for (size_t head = 0; head < ideals.size(); ++head) {
        EXPECT_GE(ideals[head], last_ideals[head] - 1e-9) << "head " << head;
      }
      auto kept = KeptByIdeals(eviction, ideals);
      ExpectNested(last_kept, kept);
      last_ideals = ideals;
      last_kept = std::move(kept);
    }
    if (::testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << Describe(eviction);
    }
  }
}

TEST(NestingTest, SmallerTargetsKeepSubsetsForUniform) {
  const uint64_t num_cases = CountCases(20'000 / kDivisor);
  for (uint64_t seed = 0; seed < num_cases; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 1);
    EvictionCase eviction = RandomCase(random);
    eviction.policy.budget.kind = BudgetKind::kUniform;
    ExpectNestedInTarget(eviction);
    if (::testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << Describe(eviction);
    }
  }
}

// Every head holds every position; of half of the cases none is protected.
EvictionCase FullCase(std::mt19937_64& random) {
  EvictionCase eviction = RandomCase(random);
  eviction.policy.rounding = Rounding::kToken;
  if (random() % 2 == 0) {
    eviction.policy.scorer = {};
    eviction.policy.scorer.kind = ScorerKind::kExternal;
    eviction.policy.protect = {};
  }
  for (std::vector<int32_t>& positions : eviction.positions) {
    positions.resize(eviction.range.cut);
    std::iota(positions.begin(), positions.end(), 0);
  }
  DrawScores(random, &eviction);
  return eviction;
}

TEST(NestingTest, SmallerTargetsKeepSubsetsForWholeIdeals) {
  const uint64_t num_cases = CountCases(15'000 / kDivisor);
  for (uint64_t seed = 0; seed < num_cases; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 4);
    EvictionCase eviction = FullCase(random);
    BudgetSpec& budget = eviction.policy.budget;
    budget.kind = random() % 2 == 0 ? BudgetKind::kAdaKv : BudgetKind::kGlobal;
    if (budget.mode == AdaKvMode::kBlend) {
      budget.alpha = static_cast<double>(random() % 2);
    }
    ExpectNestedInTarget(eviction);
    if (::testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << Describe(eviction);
    }
  }
}

// Scores that are attention: each head's sum to one, a few hold most of it.
void DrawProbabilities(std::mt19937_64& random, EvictionCase* eviction) {
  std::normal_distribution<double> logit(
      0.0, std::array{0.1, 1.0, 4.0}[random() % 3]);
  eviction->scores.clear();
  for (const std::vector<int32_t>& positions : eviction->positions) {
    std::vector<double> weights(positions.size());
    for (double& weight : weights) weight = std::exp(logit(random));
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<float> scores;
    scores.reserve(weights.size());
    for (const double weight : weights) {
      scores.push_back(static_cast<float>(weight / sum));
    }
    eviction->scores.push_back(std::move(scores));
  }
}

double KeptMass(EvictionCase eviction, const BudgetSpec& budget) {
  eviction.policy.budget = budget;
  const KeepSets kept = Select(eviction);
  double mass = 0;
  for (size_t head = 0; head < eviction.scores.size(); ++head) {
    for (int64_t i = kept.offsets[head]; i < kept.offsets[head + 1]; ++i) {
      mass += eviction.scores[head][kept.ranks[i]];
    }
  }
  return mass;
}

// Ada-KV's bound on the L1 error of attention (arXiv 2407.11550, theorem 3.1)
// is 2 - 2 * kept mass per head: its budgets are the best for the sum. Holds
// for scores that are the attention itself, unpooled, and totals that are
// equal; protected or not.
TEST(AdaKvBoundTest, KeepsNoLessMassThanUniform) {
  constexpr double kRounding = 1e-6;
  for (uint64_t seed = 0; seed < 30'000 / kDivisor; ++seed) {
    std::mt19937_64 random(SplitMix64(seed) + 5);
    EvictionCase eviction = FullCase(random);
    eviction.policy.scorer.kind = ScorerKind::kExternal;
    eviction.policy.selector = {};
    DrawProbabilities(random, &eviction);
    BudgetSpec adakv;
    adakv.kind = BudgetKind::kAdaKv;
    adakv.alpha = 0.0;
    BudgetSpec safeguarded = eviction.policy.budget;
    safeguarded.kind = BudgetKind::kAdaKv;
    safeguarded.mode = AdaKvMode::kFloor;
    BudgetSpec global;
    global.kind = BudgetKind::kGlobal;
    const double uniform_mass = KeptMass(eviction, {});
    const double adakv_mass = KeptMass(eviction, adakv);
    const double safeguarded_mass = KeptMass(eviction, safeguarded);
    EXPECT_GE(adakv_mass, uniform_mass - kRounding);
    EXPECT_GE(safeguarded_mass, uniform_mass - kRounding);
    EXPECT_GE(adakv_mass, safeguarded_mass - kRounding);
    EXPECT_GE(KeptMass(eviction, global), adakv_mass - kRounding);
    // So do all budgets between a head's count and its uniform share, but for
    // the entry that every head keeps, which may be in neither.
    BudgetSpec blended = adakv;
    blended.alpha = 0.5;
    const EvictionPolicy& policy = eviction.policy;
    if (policy.protected_sinks() == 0 && policy.protected_recent() == 0 &&
        NaiveMean(policy, eviction.target, eviction.range) > 1) {
      EXPECT_GE(KeptMass(eviction, blended), uniform_mass - kRounding);
    }
    if (::testing::Test::HasFailure()) {
      FAIL() << "seed " << seed << ": " << Describe(eviction);
    }
  }
}

}  // namespace
}  // namespace blockmgr
