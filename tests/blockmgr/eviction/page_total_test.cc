// Examples; random cases: select_property_test.cc.
#include <cstdint>
#include <random>
#include <vector>

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
