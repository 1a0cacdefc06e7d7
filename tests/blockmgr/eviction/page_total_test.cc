#include <cstdint>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/page_math.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

EvictionTarget Tokens(int32_t tokens) {
  EvictionTarget target;
  target.kind = EvictionTarget::Kind::kTokens;
  target.tokens = tokens;
  return target;
}

EvictionPolicy Unprotected(Rounding rounding) {
  EvictionPolicy policy;
  policy.protect.recent = 0;
  policy.rounding = rounding;
  return policy;
}

TEST(PageTotalTest, FloorsTheLayersEntriesToPages) {
  const EvictionPolicy policy = Unprotected(Rounding::kPage);
  const EvictionRange range = {160, 161};
  // 8 heads * 20 entries = 160 entries = 10 pages in each of 3 layers.
  EXPECT_EQ(PageTotal(policy, Tokens(20), {3, 8, 16}, range), 30);
  // 8 * 21 = 168 entries = 10.5 pages.
  EXPECT_EQ(PageTotal(policy, Tokens(21), {3, 8, 16}, range), 30);
  EXPECT_EQ(PageTotal(policy, Tokens(22), {3, 8, 16}, range), 33);
}

TEST(PageTotalTest, UsesTheExactRatio) {
  EvictionTarget target;
  target.ratio = {29, 100};
  const EvictionPolicy policy = Unprotected(Rounding::kPage);
  EXPECT_EQ(PageTotal(policy, target, {1, 1, 1}, {100, 101}), 29);
}

TEST(PageTotalTest, LeavesEveryHeadAPage) {
  const EvictionPolicy policy = Unprotected(Rounding::kPage);
  EXPECT_EQ(PageTotal(policy, Tokens(0), {2, 4, 16}, {160, 161}), 8);
  EXPECT_EQ(PageTotal(policy, Tokens(3), {2, 4, 16}, {160, 161}), 8);
}

// Protected positions below the cut, for observation windows around a page.
TEST(PageTotalTest, CoversTheProtectedPositionsBelowTheCut) {
  struct Row {
    int32_t window;
    int32_t length;
    int64_t pages;  // per head
  };
  // Cut 64 of page size 16; positions >= length - window are protected.
  const Row rows[] = {{1, 65, 1},  {15, 65, 1}, {16, 65, 1}, {17, 65, 1},
                      {18, 65, 2}, {17, 80, 1}, {32, 80, 1}, {33, 80, 2},
                      {16, 96, 1}, {48, 96, 1}, {49, 96, 2}, {9999, 65, 4}};
  for (const Row& row : rows) {
    EvictionPolicy policy;
    policy.scorer.window = row.window;
    EXPECT_EQ(PageTotal(policy, Tokens(1), {1, 2, 16}, {64, row.length}),
              2 * row.pages)
        << "window " << row.window << " length " << row.length;
  }
}

TEST(PageTotalTest, CountsSinksAndRecentOnce) {
  EvictionPolicy policy;
  policy.scorer.kind = ScorerKind::kStreaming;
  policy.scorer.sinks = 4;
  policy.protect = {.sinks = 10, .recent = 24};  // the larger number of sinks
  // [0, 10) and [41, 64): 33 positions.
  EXPECT_EQ(PageTotal(policy, Tokens(1), {1, 1, 16}, {64, 65}), 3);
  policy.protect = {.sinks = 50, .recent = 50};  // overlap: all 64
  EXPECT_EQ(PageTotal(policy, Tokens(1), {1, 1, 16}, {64, 65}), 4);
  policy.protect = {.sinks = 2'000'000'000, .recent = 2'000'000'000};
  EXPECT_EQ(PageTotal(policy, Tokens(1), {1, 1, 16}, {64, 65}), 4);
}

TEST(PageTotalTest, AddsAPartialPagePerHeadForTokens) {
  const EvictionPolicy policy = Unprotected(Rounding::kToken);
  // (2 * 4 * 20 + 15 * 8) / 16 = 17.5.
  EXPECT_EQ(PageTotal(policy, Tokens(20), {2, 4, 16}, {160, 161}), 17);
  EXPECT_EQ(PageTotal(policy, Tokens(0), {2, 4, 16}, {160, 161}), 8);
  // Never more than what there is.
  EXPECT_EQ(PageTotal(policy, Tokens(159), {2, 4, 16}, {160, 161}), 80);
}

TEST(PageTotalTest, GlobalAndPyramidFloorTheModelsEntries) {
  EvictionPolicy policy = Unprotected(Rounding::kPage);
  // 24 heads * 21 entries = 504 = 31.5 pages; floored by layer, 30.
  for (const BudgetKind kind :
       {BudgetKind::kGlobal, BudgetKind::kPyramid, BudgetKind::kAdaPyramid}) {
    policy.budget.kind = kind;
    EXPECT_EQ(PageTotal(policy, Tokens(21), {3, 8, 16}, {160, 161}), 31);
    EXPECT_EQ(PageTotal(policy, Tokens(1), {3, 8, 16}, {160, 161}), 24);
    EXPECT_EQ(PageTotal(policy, Tokens(160), {3, 8, 16}, {160, 161}), 240);
  }
}

// Formulas move pages between layers, and none adds one.
TEST(PageTotalTest, EveryFormulaKeepsTheModelsTotal) {
  EvictionPolicy policy = Unprotected(Rounding::kPage);
  policy.budget.kind = BudgetKind::kPyramid;
  for (const PyramidFormula formula :
       {PyramidFormula::kAdaKv, PyramidFormula::kKvPress,
        PyramidFormula::kFactory}) {
    policy.budget.formula = formula;
    // 160 positions: more than twice 79, fewer than twice 81.
    EXPECT_EQ(PageTotal(policy, Tokens(79), {3, 8, 16}, {160, 161}), 118);
    EXPECT_EQ(PageTotal(policy, Tokens(81), {3, 8, 16}, {160, 161}), 121);
  }
}

// Known without dividing it.
TEST(PageTotalTest, IsTheSumOverItsScopes) {
  std::mt19937 random(7);
  const auto up_to = [&random](int32_t most) {
    return 1 + static_cast<int32_t>(random() % most);
  };
  for (int32_t trial = 0; trial < 2000; ++trial) {
    SCOPED_TRACE(trial);
    EvictionPolicy policy = Unprotected(Rounding::kPage);
    for (const BudgetKind kind :
         {BudgetKind::kUniform, BudgetKind::kAdaKv, BudgetKind::kPyramid,
          BudgetKind::kAdaPyramid, BudgetKind::kGlobal}) {
      policy.budget.kind = kind;
      policy.budget.beta = up_to(40);
      policy.protect = {.sinks = up_to(40) - 1, .recent = up_to(80) - 1};
      const HeadShape shape = {up_to(12), up_to(9), 1 << up_to(5)};
      const int32_t cut = up_to(400);
      const EvictionRange range = {cut, cut + up_to(20) - 1};
      const EvictionTarget target = Tokens(up_to(500) - 1);
      int64_t sum = 0;
      for (const BudgetScope& scope :
           BudgetScopes(policy, target, shape, range)) {
        sum += scope.pages;
      }
      ASSERT_EQ(PageTotal(policy, target, shape, range), sum);
    }
  }
}

TEST(PageTotalTest, TakesCutsWithinPagesAndAtTheEnd) {
  EvictionPolicy policy = Unprotected(Rounding::kPage);
  // 2 * 32 entries = 4 pages. 2 * 33 entries = 4.125 pages, but 33 positions
  // are all there are, and need 3 each.
  EXPECT_EQ(PageTotal(policy, Tokens(32), {1, 2, 16}, {33, 33}), 4);
  EXPECT_EQ(PageTotal(policy, Tokens(33), {1, 2, 16}, {33, 33}), 6);
  policy.rounding = Rounding::kToken;
  EXPECT_EQ(PageTotal(policy, Tokens(33), {1, 2, 16}, {33, 33}), 6);
  EXPECT_EQ(PageTotal(policy, Tokens(1), {1, 2, 16}, {1, 1}), 2);
  // The whole observation window lies below the cut.
  EXPECT_EQ(PageTotal(EvictionPolicy(), Tokens(1), {1, 2, 16}, {64, 64}), 4);
  EXPECT_EQ(PageTotal(EvictionPolicy(), Tokens(1), {1, 2, 16}, {33, 33}), 4);
  EXPECT_EQ(PageTotal(EvictionPolicy(), Tokens(1), {1, 2, 16}, {20, 20}), 4);
}

TEST(PageTotalTest, DoesNotOverflowForLongSequences) {
  constexpr int32_t kCut = 1 << 30;
  EXPECT_EQ(PageTotal(Unprotected(Rounding::kPage), Tokens(kCut),
                      {128, 128, 16}, {kCut, kCut + 1}),
            int64_t{128} * 128 * (kCut / 16));
  EXPECT_EQ(PageTotal(Unprotected(Rounding::kToken), Tokens(kCut),
                      {128, 128, 16}, {kCut, kCut + 1}),
            int64_t{128} * 128 * (kCut / 16));
  for (const BudgetKind kind : {BudgetKind::kGlobal, BudgetKind::kPyramid}) {
    EvictionPolicy policy = Unprotected(Rounding::kPage);
    policy.budget.kind = kind;
    EXPECT_EQ(PageTotal(policy, Tokens(kCut), {128, 128, 16}, {kCut, kCut + 1}),
              int64_t{128} * 128 * (kCut / 16));
  }
}

TEST(PageTotalExternalTest, SumsWholePages) {
  const std::vector<int32_t> budgets = {0, 1, 16, 17, -5, 999};
  const HeadShape shape = {2, 3, 16};
  const EvictionRange range = {64, 65};
  EXPECT_EQ(
      PageTotalExternal(budgets, Unprotected(Rounding::kToken), shape, range),
      0 + 1 + 1 + 2 + 0 + 4);
  EvictionPolicy policy;  // window 32 of length 65: 31 positions below the cut
  EXPECT_EQ(PageTotalExternal(budgets, policy, shape, range),
            2 + 2 + 2 + 2 + 2 + 4);
}

TEST(PageTotalDeathTest, AbortsOnBrokenRanges) {
  const EvictionPolicy policy;
  EXPECT_DEATH(PageTotal(policy, Tokens(1), {1, 1, 16}, {0, 10}), "check");
  EXPECT_DEATH(PageTotal(policy, Tokens(1), {1, 1, 16}, {33, 32}), "check");
  EXPECT_DEATH(PageTotal(policy, Tokens(1), {0, 1, 16}, {32, 40}), "check");
  EXPECT_DEATH(PageTotal(policy, Tokens(1), {1, 1, 0}, {32, 40}), "check");
}

TEST(PageTotalDeathTest, AbortsOnBudgetsThatNeedMore) {
  EvictionPolicy policy = Unprotected(Rounding::kToken);
  for (const BudgetKind kind : {BudgetKind::kExternal, BudgetKind::kHeadKv,
                                BudgetKind::kLuKv, BudgetKind::kDuo}) {
    policy.budget.kind = kind;
    EXPECT_DEATH(PageTotal(policy, Tokens(1), {1, 1, 16}, {32, 40}), "check");
  }
  EXPECT_DEATH(
      PageTotalExternal(std::vector<int32_t>{1, 1},
                        Unprotected(Rounding::kPage), {1, 1, 16}, {32, 40}),
      "check");
}

}  // namespace
}  // namespace blockmgr
