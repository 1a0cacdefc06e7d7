#include "blockmgr/eviction/budget_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/eviction/lukv_solver.h"
#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/testing/case_count.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

EvictionPolicy Policy(BudgetKind kind, Rounding rounding) {
  EvictionPolicy policy;
  policy.scorer.kind = ScorerKind::kKnorm;
  policy.budget.kind = kind;
  policy.budget.profile = "a table";
  policy.rounding = rounding;
  return policy;
}

EvictionTarget Tokens(int32_t tokens) {
  return {.kind = EvictionTarget::Kind::kTokens, .ratio = {}, .tokens = tokens};
}

// What a solver makes of random gains, so that every row's mean is its rho and
// rates never fall.
LuKvProfile RandomProfile(const HeadShape& shape, uint64_t seed) {
  constexpr int64_t kLength = 200;
  std::mt19937_64 random(SplitMix64(seed));
  const int64_t num_heads = int64_t{shape.num_layers} * shape.num_heads;
  std::vector<int64_t> offsets = {0};
  std::vector<float> gains;
  for (int64_t head = 0; head < num_heads; ++head) {
    const auto rate = static_cast<float>(random() % 10);
    for (int64_t i = 0; i < kLength; ++i) {
      gains.push_back(std::exp(-rate * static_cast<float>(i) / kLength) *
                      static_cast<float>(random() % 1000));
    }
    offsets.push_back(std::ssize(gains));
  }
  const LuKvSolver solver(offsets, gains, std::vector<int32_t>(num_heads));
  LuKvProfile profile;
  profile.num_layers = shape.num_layers;
  profile.num_heads = shape.num_heads;
  for (int64_t step = 0; step <= 20; ++step) {
    profile.rho.push_back(static_cast<float>(step) / 20.0f);
    const std::vector<int32_t> budgets =
        solver.Budgets(num_heads * kLength * (20 - step) / 20);
    for (const int32_t budget : budgets) {
      profile.r.push_back(1.0f - static_cast<float>(budget) / kLength);
    }
  }
  return profile;
}

HeadScores DrawHeadScores(const HeadShape& shape, uint64_t seed) {
  std::mt19937_64 random(SplitMix64(seed));
  HeadScores table{shape.num_layers, shape.num_heads, {}};
  table.scores.resize(size_t{1} * shape.num_layers * shape.num_heads);
  for (float& score : table.scores) {
    score = static_cast<float>(random() % 1000) / 1000.0f;
    if (random() % 5 == 0) score *= 100.0f;
  }
  table.scores[random() % table.scores.size()] = 1.0f;
  return table;
}

// What the table gives each head before anything is rounded or bounded.
std::vector<double> NaiveIdeals(const EvictionPolicy& policy,
                                int64_t mean_tokens, double cut,
                                int64_t num_protected,
                                const BudgetTable& table) {
  const auto mean = static_cast<double>(mean_tokens);
  std::vector<double> ideals;
  if (const auto* profile = std::get_if<LuKvProfile>(&table)) {
    const double at = 1.0 - mean / cut;
    size_t high = 1;
    while (high + 1 < profile->rho.size() && profile->rho[high] < at) ++high;
    const size_t heads = profile->r.size() / profile->rho.size();
    const double low_rho = profile->rho[high - 1];
    const double share = (at - low_rho) / (profile->rho[high] - low_rho);
    for (size_t head = 0; head < heads; ++head) {
      const double low = profile->r[(high - 1) * heads + head];
      const double rate =
          low * (1.0 - share) + profile->r[high * heads + head] * share;
      ideals.push_back(cut - rate * cut);
    }
    return ideals;
  }
  const HeadScores& scores = std::get<HeadScores>(table);
  double sum = 0.0;
  for (const double score : scores.scores) {
    sum += std::pow(score, policy.budget.temp);
  }
  const double past = std::max(0.0, mean - static_cast<double>(num_protected));
  for (const double score : scores.scores) {
    const double part = std::pow(score, policy.budget.temp) / sum;
    ideals.push_back(part * (past / policy.budget.share) *
                         static_cast<double>(scores.scores.size()) +
                     mean - past / policy.budget.share);
  }
  return ideals;
}

// Ideals times the factor that makes their clamped sum `total`, by bisection.
std::vector<double> NaiveQuotas(const std::vector<double>& ideals, double total,
                                double min, double max) {
  double low = 0.0;
  double high = 1e30;
  std::vector<double> quotas;
  for (int i = 0; i < 400; ++i) {
    const double factor = low == 0.0 || high == 1e30
                              ? (low == 0.0 ? high * 1e-3 : low * 2.0)
                              : std::sqrt(low * high);
    quotas.clear();
    for (const double ideal : ideals) {
      quotas.push_back(std::clamp(factor * ideal, min, max));
    }
    const double sum = std::accumulate(quotas.begin(), quotas.end(), 0.0);
    (sum < total ? low : high) = factor;
  }
  return quotas;
}

struct RandomTableCase {
  EvictionPolicy policy;
  EvictionTarget target;
  HeadShape shape;
  EvictionRange range;
  BudgetTable table;

  explicit RandomTableCase(uint64_t seed) {
    std::mt19937_64 random(SplitMix64(seed));
    const auto below = [&](int32_t n) {
      return static_cast<int32_t>(random() % static_cast<uint64_t>(n));
    };
    const bool lukv = below(2) == 0;
    policy = Policy(lukv ? BudgetKind::kLuKv : BudgetKind::kHeadKv,
                    below(2) == 0 ? Rounding::kPage : Rounding::kToken);
    policy.protect = {.sinks = below(6), .recent = below(20)};
    policy.budget.share = 1.0 + below(30) / 10.0;
    policy.budget.temp = below(3);
    shape = {.num_layers = 1 + below(4),
             .num_heads = 1 + below(4),
             .page_size = 1 << below(6)};
    range.cut = 1 + below(500);
    range.length = range.cut + below(20);
    target = Tokens(1 + below(range.cut + 5));
    if (lukv) {
      table = RandomProfile(shape, seed);
    } else {
      table = DrawHeadScores(shape, seed);
    }
  }
};

// Half of them are of headkv, half of lukv.
uint64_t CountTableCases() { return CountCases(20'000 / kCaseDivisor); }

// Of `range`'s positions below the cut: sinks, and the end of the sequence.
int64_t NaiveProtected(const EvictionPolicy& policy,
                       const EvictionRange& range) {
  int64_t count = 0;
  for (int32_t p = 0; p < range.cut; ++p) {
    count +=
        p < policy.protect.sinks || p >= range.length - policy.protect.recent;
  }
  return count;
}

TEST(BudgetTableTest, SharesOutTheTotalInProportionUnderBounds) {
  for (uint64_t seed = 0, end = CountTableCases(); seed < end; ++seed) {
    const RandomTableCase c(seed);
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ASSERT_THAT(CheckTable(c.policy, c.shape, c.table), IsOk());
    const std::vector<int32_t> budgets =
        TableBudgets(c.policy, c.target, c.shape, c.range, c.table);
    const int64_t num_heads = int64_t{c.shape.num_layers} * c.shape.num_heads;
    ASSERT_EQ(std::ssize(budgets), num_heads);
    const int64_t mean = NaiveMean(c.policy, c.target, c.range);
    const int64_t num_protected = NaiveProtected(c.policy, c.range);
    const bool by_page = c.policy.rounding == Rounding::kPage;
    const int64_t unit = by_page ? c.shape.page_size : 1;
    int64_t min = std::max<int64_t>(1, (num_protected + unit - 1) / unit);
    int64_t total = std::max(num_heads * mean / unit, num_heads * min);
    const int64_t max = (c.range.cut + unit - 1) / unit;
    if (!by_page) {
      min = std::min(min, mean);
      total = num_heads * mean;
    } else if (mean == c.range.cut) {
      total = num_heads * max;
    }
    const std::vector<double> quotas = NaiveQuotas(
        NaiveIdeals(c.policy, mean, c.range.cut, num_protected, c.table),
        static_cast<double>(total), static_cast<double>(min),
        static_cast<double>(max));
    const double reached = std::accumulate(quotas.begin(), quotas.end(), 0.0);
    int64_t sum = 0;
    for (int64_t head = 0; head < num_heads; ++head) {
      const int64_t budget = budgets[head];
      const int64_t units = (budget + unit - 1) / unit;
      sum += units;
      ASSERT_TRUE(budget == units * unit || budget == c.range.cut);
      ASSERT_LE(budget, c.range.cut);
      ASSERT_GE(units, min);
      // Weights of 0 cannot be found by scaling: their shares are equal parts.
      if (reached < static_cast<double>(total) - 1e-6) continue;
      ASSERT_NEAR(static_cast<double>(units), quotas[head], 1.0 + 1e-5);
    }
    ASSERT_EQ(sum, total);
    if (by_page) {
      ASSERT_EQ(PageTotalExternal(budgets, c.policy, c.shape, c.range), total);
    }
  }
}

// Heads that kept their budgets and got new tokens hold what they are to keep
// next, but for the rounding and what minima of others took from them. Targets
// above the first cut are no such case: the mean grows with the cut.
TEST(BudgetTableTest, LaterBudgetsAreWithinWhatHeadsHold) {
  for (uint64_t seed = 0, end = CountTableCases(); seed < end; ++seed) {
    RandomTableCase c(seed);
    c.target.tokens = std::min(c.target.tokens, c.range.cut);
    const int32_t unit =
        c.policy.rounding == Rounding::kPage ? c.shape.page_size : 1;
    const std::vector<int32_t> kept =
        TableBudgets(c.policy, c.target, c.shape, c.range, c.table);
    const int64_t min = NaiveProtected(c.policy, c.range) + unit;
    double slack = 3.0 * unit;
    for (const double ideal :
         IdealTableBudgets(c.policy, c.target, c.shape, c.range, c.table)) {
      slack += std::max(0.0, static_cast<double>(min) - ideal);
    }
    const int32_t more = 1 + static_cast<int32_t>(SplitMix64(seed) % 300);
    c.range = {c.range.cut + more, c.range.length + more};
    const std::vector<int32_t> wanted =
        TableBudgets(c.policy, c.target, c.shape, c.range, c.table);
    for (size_t head = 0; head < kept.size(); ++head) {
      ASSERT_LT(wanted[head] - kept[head] - more, slack) << "seed " << seed;
    }
  }
}

TEST(BudgetTableTest, TakesTheTableAsItIsWhenNothingBindsIt) {
  const HeadShape shape{.num_layers = 1, .num_heads = 2, .page_size = 16};
  const EvictionRange range{.cut = 1000, .length = 1000};
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r = {0.0f, 0.0f, 0.25f, 0.75f, 1.0f, 1.0f};
  EvictionPolicy policy = Policy(BudgetKind::kLuKv, Rounding::kToken);
  EXPECT_THAT(TableBudgets(policy, Tokens(500), shape, range, profile),
              ElementsAre(750, 250));
  EXPECT_THAT(TableBudgets(policy, Tokens(1000), shape, range, profile),
              ElementsAre(1000, 1000));
  EXPECT_THAT(TableBudgets(policy, Tokens(250), shape, range, profile),
              ElementsAre(375, 125));
  // 62 pages: 46.5 and 15.5, the tie goes to the lower head.
  policy.rounding = Rounding::kPage;
  EXPECT_THAT(TableBudgets(policy, Tokens(500), shape, range, profile),
              ElementsAre(752, 240));
  // 124 pages, as equal as they are; of all of it the last pages are short.
  EXPECT_THAT(TableBudgets(policy, Tokens(999), shape, range, profile),
              ElementsAre(992, 992));
  EXPECT_THAT(TableBudgets(policy, Tokens(2000), shape, range, profile),
              ElementsAre(1000, 1000));
}

// Lowering the target adds no token to any head, before remainders: exactly.
TEST(BudgetTableTest, IdealsAndTheirFloorsNeverFallWhenTheTargetGrows) {
  uint64_t num_pairs = 0;
  for (uint64_t seed = 0; seed < CountTableCases() / 33; ++seed) {
    RandomTableCase c(seed);
    num_pairs += c.range.cut;
    if (seed % 4 == 0) c.policy.budget.share = std::nextafter(1.0, 2.0);
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const auto num_protected = NaiveProtected(c.policy, c.range);
    std::vector<double> fewer(16);
    for (int32_t tokens = 1; tokens <= c.range.cut; ++tokens) {
      c.target = Tokens(tokens);
      const std::vector<double> ideals =
          IdealTableBudgets(c.policy, c.target, c.shape, c.range, c.table);
      const int64_t mean = NaiveMean(c.policy, c.target, c.range);
      const std::vector<double> naive =
          NaiveIdeals(c.policy, mean, c.range.cut, num_protected, c.table);
      ASSERT_EQ(ideals.size(), naive.size());
      for (size_t head = 0; head < ideals.size(); ++head) {
        ASSERT_NEAR(ideals[head], naive[head], 1e-9 * naive[head] + 1e-9);
        ASSERT_GE(ideals[head], fewer[head]) << "tokens " << tokens;
        ASSERT_GE(std::floor(ideals[head]), std::floor(fewer[head]));
      }
      fewer = ideals;
    }
  }
  EXPECT_GT(num_pairs, CountTableCases() * 5);
}

TEST(BudgetTableTest, LuKvNeverTakesMoreThanARemainderBack) {
  const HeadShape shape{.num_layers = 3, .num_heads = 4};
  const EvictionRange range{.cut = 400, .length = 400};
  const EvictionPolicy policy = Policy(BudgetKind::kLuKv, Rounding::kToken);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const LuKvProfile profile = RandomProfile(shape, seed);
    std::vector<int32_t> fewer;
    // Below one entry per head on average minima bind.
    for (int32_t tokens = 40; tokens <= 400; ++tokens) {
      const std::vector<int32_t> budgets =
          TableBudgets(policy, Tokens(tokens), shape, range, profile);
      for (size_t head = 0; head < fewer.size(); ++head) {
        ASSERT_GE(budgets[head], fewer[head] - 1)
            << "seed " << seed << " tokens " << tokens << " head " << head;
      }
      fewer = budgets;
    }
    EXPECT_THAT(fewer, Each(400));
  }
}

TEST(BudgetTableTest, AllHeadsGetTheSameBelowTheProtectedSet) {
  const HeadShape shape{.num_layers = 1, .num_heads = 3, .page_size = 4};
  const EvictionRange range{.cut = 100, .length = 100};
  const HeadScores scores{1, 3, {1.0f, 100.0f, 0.0f}};
  EvictionPolicy policy = Policy(BudgetKind::kHeadKv, Rounding::kToken);
  policy.protect = {.sinks = 4, .recent = 10};
  EXPECT_THAT(TableBudgets(policy, Tokens(9), shape, range, scores), Each(9));
  // Pages cover the set in any case.
  policy.rounding = Rounding::kPage;
  EXPECT_THAT(TableBudgets(policy, Tokens(9), shape, range, scores), Each(16));
}

TEST(BudgetTableTest, HugeHeadsDoNotOverflow) {
  const HeadShape shape{.num_layers = 128, .num_heads = 256};
  constexpr int32_t kCut = 1 << 30;
  const EvictionRange range{.cut = kCut, .length = kCut};
  EvictionPolicy policy = Policy(BudgetKind::kHeadKv, Rounding::kToken);
  policy.budget.share = 1.0;
  HeadScores scores{128, 256, std::vector<float>(size_t{128} * 256, 0.0f)};
  scores.scores[77] = 1.0f;
  const std::vector<int32_t> budgets =
      TableBudgets(policy, Tokens(1 << 20), shape, range, scores);
  EXPECT_EQ(budgets[77], kCut);
  EXPECT_EQ(std::accumulate(budgets.begin(), budgets.end(), int64_t{0}),
            int64_t{1} << 35);
}

TEST(BudgetTableTest, CheckTableRefusesWhatDoesNotFit) {
  const HeadShape shape{.num_layers = 2, .num_heads = 3};
  const EvictionPolicy headkv = Policy(BudgetKind::kHeadKv, Rounding::kPage);
  const EvictionPolicy lukv = Policy(BudgetKind::kLuKv, Rounding::kPage);
  const EvictionPolicy uniform = Policy(BudgetKind::kUniform, Rounding::kPage);
  const HeadScores scores = DrawHeadScores(shape, 1);
  const LuKvProfile profile = RandomProfile(shape, 1);
  EXPECT_THAT(CheckTable(headkv, shape, scores), IsOk());
  EXPECT_THAT(CheckTable(lukv, shape, profile), IsOk());
  EXPECT_THAT(CheckTable(headkv, shape, profile),
              StatusIs(kInvalid, HasSubstr("expected one for headkv")));
  EXPECT_THAT(CheckTable(lukv, shape, scores),
              StatusIs(kInvalid, HasSubstr("expected one for lukv")));
  EXPECT_THAT(CheckTable(uniform, shape, scores), StatusIs(kInvalid));
  const HeadShape other{.num_layers = 3, .num_heads = 2};
  EXPECT_THAT(CheckTable(headkv, other, scores),
              StatusIs(kInvalid, HasSubstr("3 layers of 2")));
  EXPECT_THAT(CheckTable(lukv, other, profile),
              StatusIs(kInvalid, HasSubstr("3 layers of 2")));
  HeadScores bad = scores;
  bad.scores[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(CheckTable(headkv, shape, bad),
              StatusIs(kInvalid, HasSubstr("scores[4]")));
  bad = scores;
  bad.scores.pop_back();
  EXPECT_THAT(CheckTable(headkv, shape, bad),
              StatusIs(kInvalid, HasSubstr("6 values")));
  LuKvProfile broken = profile;
  broken.r[0] = 0.5f;
  EXPECT_THAT(CheckTable(lukv, shape, broken),
              StatusIs(kInvalid, HasSubstr("r[0][0]")));
  const HeadShape huge{.num_layers = 1 << 16, .num_heads = 1};
  EXPECT_THAT(CheckTable(headkv, huge, scores),
              StatusIs(kInvalid, HasSubstr("fewer than 65536")));
}

// By a plain walk over the heads, best first.
TEST(BudgetTableTest, DuoKeepsAllOfTheBestHeads) {
  const HeadShape shape{.num_layers = 2, .num_heads = 3, .page_size = 16};
  const EvictionRange range{.cut = 100, .length = 110};
  // Of the two heads with 0.9 the lower one is first.
  const HeadScores scores{2, 3, {0.1f, 0.9f, 0.5f, 0.9f, 0.2f, 0.0f}};
  EvictionPolicy policy = Policy(BudgetKind::kDuo, Rounding::kToken);
  policy.protect = {.sinks = 4, .recent = 20};
  ASSERT_THAT(CheckTable(policy, shape, scores), IsOk());
  // 4 sinks, and 10 of the last 20 positions are below the cut. Of 6 * 40
  // entries 84 are the heads', and 156 are left: 86, then 70.
  EXPECT_THAT(TableBudgets(policy, Tokens(40), shape, range, scores),
              ElementsAre(14, 100, 14, 84, 14, 14));
  EXPECT_THAT(IdealTableBudgets(policy, Tokens(40), shape, range, scores),
              ElementsAre(14, 100, 14, 84, 14, 14));
  // Pages: 1 of 7 is protected; 15 in all are 6 more for one head, 3 for one.
  policy.rounding = Rounding::kPage;
  EXPECT_THAT(TableBudgets(policy, Tokens(40), shape, range, scores),
              ElementsAre(16, 100, 16, 64, 16, 16));
  EXPECT_THAT(TableBudgets(policy, Tokens(100), shape, range, scores),
              Each(100));
  EXPECT_THAT(TableBudgets(policy, Tokens(1), shape, range, scores), Each(16));
  EXPECT_THAT(CheckTable(policy, shape, RandomProfile(shape, 1)),
              StatusIs(kInvalid, HasSubstr("expected one for duo")));
}

// Budgets by query heads are those by the means of their groups: as the
// released program, whose query heads have them, has it on average.
TEST(BudgetTableTest, QueryHeadsCountAsTheMeansOfTheirGroups) {
  const HeadShape shape{.num_layers = 2, .num_heads = 2, .page_size = 16};
  const EvictionRange range{.cut = 1000, .length = 1000};
  const HeadScores of_query_heads{.num_layers = 2,
                                  .num_heads = 6,
                                  .scores = {1, 2, 3, 0, 0, 3,  //
                                             4, 4, 4, 9, 0, 0},
                                  .of_query_heads = true};
  const HeadScores of_kv_heads{2, 2, {2, 1, 4, 3}};
  for (const char* text :
       {"knorm | headkv(profile=t)",
        "snapkv | headkv(profile=t,share=1) | round(token)"}) {
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy(text));
    ASSERT_THAT(CheckTable(policy, shape, of_query_heads), IsOk());
    EXPECT_EQ(TableBudgets(policy, Tokens(300), shape, range, of_query_heads),
              TableBudgets(policy, Tokens(300), shape, range, of_kv_heads))
        << text;
  }
  EXPECT_THAT(CheckTable(Policy(BudgetKind::kHeadKv, Rounding::kPage), {2, 4},
                         of_query_heads),
              StatusIs(kInvalid, HasSubstr("a multiple of the 4 KV heads, got "
                                           "2 of 6")));
  // Of 1,200 entries 2, 1, 4 and 3 parts of 10.
  ASSERT_OK_AND_ASSIGN(
      const EvictionPolicy plain,
      ParsePolicy("knorm | headkv(profile=t,share=1) | round(token)"));
  EXPECT_THAT(TableBudgets(plain, Tokens(300), shape, range, of_query_heads),
              ElementsAre(240, 120, 480, 360));
  // The means of the cubes are 12, 9, 64 and 243, which is 328 in all.
  ASSERT_OK_AND_ASSIGN(
      const EvictionPolicy cubes,
      ParsePolicy("knorm | headkv(profile=t,share=1,temp=3) | round(token)"));
  EXPECT_THAT(TableBudgets(cubes, Tokens(300), shape, range, of_query_heads),
              ElementsAre(44, 33, 234, 889));
}

}  // namespace
}  // namespace blockmgr
