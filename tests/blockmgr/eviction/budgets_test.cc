#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/blockmgr/eviction/random_case.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// Heads that hold every position below the cut, with these scores; nothing is
// protected.
EvictionCase FullHeads(int32_t page_size, int32_t tokens, Rounding rounding,
                       std::vector<std::vector<float>> scores) {
  EvictionCase eviction;
  const auto cut = static_cast<int32_t>(scores[0].size());
  eviction.shape = {1, static_cast<int32_t>(scores.size()), page_size};
  eviction.range = {cut, cut + 1};
  eviction.policy.scorer.kind = ScorerKind::kExternal;
  eviction.policy.rounding = rounding;
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = tokens;
  std::vector<int32_t> all(cut);
  std::iota(all.begin(), all.end(), 0);
  eviction.positions.assign(scores.size(), all);
  eviction.scores = std::move(scores);
  return eviction;
}

BudgetSpec AdaKv(double alpha, AdaKvMode mode = AdaKvMode::kBlend) {
  BudgetSpec budget;
  budget.kind = BudgetKind::kAdaKv;
  budget.alpha = alpha;
  budget.mode = mode;
  return budget;
}

BudgetSpec Pyramid(double beta, PyramidFormula formula) {
  BudgetSpec budget;
  budget.kind = BudgetKind::kPyramid;
  budget.beta = beta;
  budget.formula = formula;
  return budget;
}

std::vector<float> Constant(float value, int32_t count) {
  return std::vector<float>(count, value);
}

TEST(BudgetsTest, UniformTokensAreEqual) {
  const EvictionCase eviction =
      FullHeads(4, 5, Rounding::kToken,
                {Constant(1, 12), Constant(2, 12), Constant(3, 12)});
  EXPECT_THAT(Budgets(eviction), ElementsAre(5, 5, 5));
}

TEST(BudgetsTest, UniformPagesGoToLowerHeadsFirst) {
  // 3 * 6 = 18 entries = 4 pages of 4 for 3 heads.
  const EvictionCase eviction =
      FullHeads(4, 6, Rounding::kPage,
                {Constant(1, 12), Constant(2, 12), Constant(3, 12)});
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 4, 4));
}

TEST(BudgetsTest, AdaKvBlendsTheSharesOfTheTopScores) {
  // 3 heads * 10 slots: the 30 best are 20 of head 0 and 10 of head 1.
  // 20 * 0.8 + 10 * 0.2 = 18; 10 * 0.8 + 2 = 10; 0 + 2 = 2.
  std::vector<float> middle = Constant(1, 20);
  for (int i = 0; i < 10; ++i) middle[i] = 3;
  EvictionCase eviction = FullHeads(4, 10, Rounding::kToken,
                                    {Constant(4, 20), middle, Constant(2, 20)});
  eviction.policy.budget.kind = BudgetKind::kAdaKv;
  EXPECT_THAT(Budgets(eviction), ElementsAre(18, 10, 2));
  // As pages: 4.5, 2.5, 0.5 of 7; every head has at least one. The two that are
  // left share 6 as 3.86 and 2.14.
  eviction.policy.rounding = Rounding::kPage;
  EXPECT_THAT(Budgets(eviction), ElementsAre(16, 8, 4));
}

TEST(BudgetsTest, AdaKvAlphaOneIsUniform) {
  EvictionCase eviction =
      FullHeads(4, 7, Rounding::kToken, {Constant(4, 20), Constant(2, 20)});
  eviction.policy.budget = AdaKv(1.0);
  EXPECT_THAT(Budgets(eviction), ElementsAre(7, 7));
}

TEST(BudgetsTest, AdaKvAlphaZeroStillKeepsOneEntryPerHead) {
  EvictionCase eviction =
      FullHeads(4, 7, Rounding::kToken, {Constant(4, 20), Constant(2, 20)});
  eviction.policy.budget = AdaKv(0.0);
  EXPECT_THAT(Budgets(eviction), ElementsAre(13, 1));
}

TEST(BudgetsTest, AdaKvSharesOnlyThePast) {
  // The last 3 of each head are protected: 2 * (7 - 3) slots, all of head 0.
  EvictionCase eviction =
      FullHeads(4, 7, Rounding::kToken, {Constant(4, 20), Constant(2, 20)});
  eviction.policy.budget = AdaKv(0.5);
  eviction.policy.protect.recent = 4;  // one of them is beyond the cut
  EXPECT_THAT(Budgets(eviction), ElementsAre(3 + 6, 3 + 2));
}

TEST(BudgetsTest, LayersDoNotShareTheirTotals) {
  EvictionCase eviction = FullHeads(
      1, 4, Rounding::kToken,
      {Constant(9, 8), Constant(9, 8), Constant(1, 8), Constant(2, 8)});
  eviction.shape = {2, 2, 1};
  eviction.policy.budget = AdaKv(0.0);
  EXPECT_THAT(Budgets(eviction), ElementsAre(7, 1, 1, 7));
}

TEST(BudgetsTest, AHeadsExcessGoesToTheOthers) {
  EvictionCase eviction =
      FullHeads(4, 6, Rounding::kToken,
                {Constant(1, 12), Constant(1, 12), Constant(1, 12)});
  eviction.positions[1] = {3, 7};
  eviction.scores[1] = {1, 1};
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 2, 8));
  // 18 entries are 4 pages: one for the short head, 3 for the others.
  eviction.policy.rounding = Rounding::kPage;
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 2, 4));
}

TEST(BudgetsTest, EmptyHeadsGetNothing) {
  EvictionCase eviction =
      FullHeads(4, 2, Rounding::kToken, {Constant(1, 12), Constant(1, 12)});
  eviction.positions[0].clear();
  eviction.scores[0].clear();
  EXPECT_THAT(Budgets(eviction), ElementsAre(0, 4));
  eviction.positions[1].clear();
  eviction.scores[1].clear();
  EXPECT_THAT(Budgets(eviction), ElementsAre(0, 0));
}

TEST(BudgetsTest, PagesCoverTheProtectedSetWhateverTheTarget) {
  EvictionCase eviction =
      FullHeads(4, 1, Rounding::kPage, {Constant(1, 20), Constant(2, 20)});
  eviction.policy.protect = {.sinks = 3, .recent = 7};  // 3 + 6 below the cut
  EXPECT_THAT(Budgets(eviction), ElementsAre(12, 12));
}

TEST(BudgetsTest, ExternalTokensAreTheCallers) {
  EvictionCase eviction = FullHeads(
      4, 1, Rounding::kToken,
      {Constant(1, 12), Constant(2, 12), Constant(3, 12), Constant(4, 12)});
  eviction.policy.budget.kind = BudgetKind::kExternal;
  eviction.external = {5, 0, 99, -3};
  EXPECT_THAT(Budgets(eviction), ElementsAre(5, 0, 12, 0));
  eviction.policy.rounding = Rounding::kPage;
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 0, 12, 0));
  eviction.policy.protect = {.sinks = 1, .recent = 0};
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 4, 12, 4));
}

// 10 slots per head; floor(10 * 0.2) = 2 of every head come first. The other 24
// are the 18 fours and 6 of the threes that are left.
TEST(BudgetsTest, AdaKvFloorTakesEveryHeadsBestFirst) {
  std::vector<float> middle = Constant(1, 20);
  for (int i = 0; i < 10; ++i) middle[i] = 3;
  EvictionCase eviction = FullHeads(4, 10, Rounding::kToken,
                                    {Constant(4, 20), middle, Constant(2, 20)});
  eviction.policy.budget = AdaKv(0.2, AdaKvMode::kFloor);
  EXPECT_THAT(Budgets(eviction), ElementsAre(20, 8, 2));
  // floor(10 * 0.29) is 2 too; alpha = 1 leaves nothing to share.
  eviction.policy.budget.alpha = 0.29;
  EXPECT_THAT(Budgets(eviction), ElementsAre(20, 8, 2));
  eviction.policy.budget.alpha = 1.0;
  EXPECT_THAT(Budgets(eviction), ElementsAre(10, 10, 10));
}

TEST(BudgetsTest, GlobalSharesOverTheWholeModel) {
  EvictionCase eviction = FullHeads(
      1, 4, Rounding::kToken,
      {Constant(9, 8), Constant(9, 8), Constant(1, 8), Constant(2, 8)});
  eviction.shape = {2, 2, 1};
  eviction.policy.budget.kind = BudgetKind::kGlobal;
  // One for every head, the other 12 in the first layer: the lower head has 7.
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 6, 1, 1));
  // With a sink in every head: of the other 12, the lower head has 7.
  eviction.policy.protect.sinks = 1;
  EXPECT_THAT(Budgets(eviction), ElementsAre(8, 6, 1, 1));
}

// One head per layer, all scores equal.
EvictionCase Layers(int32_t num_layers, int32_t cut, int32_t tokens) {
  EvictionCase eviction =
      FullHeads(4, tokens, Rounding::kToken,
                std::vector<std::vector<float>>(num_layers, Constant(1, cut)));
  eviction.shape = {num_layers, 1, 4};
  return eviction;
}

TEST(BudgetsTest, PyramidFallsFromTwiceTheMeanLessItsPart) {
  for (const PyramidFormula formula :
       {PyramidFormula::kAdaKv, PyramidFormula::kKvPress}) {
    // 10 / 2 = 5 in the last layer, 2 * 10 - 5 = 15 in the first.
    EvictionCase eviction = Layers(3, 30, 10);
    eviction.policy.budget = Pyramid(2.0, formula);
    EXPECT_THAT(Budgets(eviction), ElementsAre(15, 10, 5));
    // At most what there is: 12 and 2 * 10 - 12.
    eviction = Layers(2, 12, 10);
    eviction.policy.budget = Pyramid(2.0, formula);
    EXPECT_THAT(Budgets(eviction), ElementsAre(12, 8));
    eviction = Layers(1, 30, 10);
    eviction.policy.budget = Pyramid(2.0, formula);
    EXPECT_THAT(Budgets(eviction), ElementsAre(10));
    eviction = Layers(3, 64, 16);
    eviction.policy.budget = Pyramid(2.0, formula);
    eviction.policy.rounding = Rounding::kPage;
    EXPECT_THAT(Budgets(eviction), ElementsAre(24, 16, 8));
  }
}

TEST(BudgetsTest, PyramidFormulasRoundDifferently) {
  EvictionCase eviction = Layers(4, 40, 10);
  // Steps of floor(10 / 3): 15, 12, 9, 6 are scaled from 42 to 40.
  eviction.policy.budget = Pyramid(2.0, PyramidFormula::kAdaKv);
  EXPECT_THAT(Budgets(eviction), ElementsAre(14, 11, 9, 6));
  eviction.policy.budget = Pyramid(2.0, PyramidFormula::kKvPress);
  EXPECT_THAT(Budgets(eviction), ElementsAre(15, 12, 8, 5));
  // 6 are protected: adakv's line has the other 4, 6 5 4 3 above them, scaled
  // from 42 to 40; kvpress's would end at 5 and gives equal budgets.
  eviction.policy.protect.sinks = 6;
  EXPECT_THAT(Budgets(eviction), ElementsAre(10, 10, 10, 10));
  eviction.policy.budget = Pyramid(2.0, PyramidFormula::kAdaKv);
  EXPECT_THAT(Budgets(eviction), ElementsAre(11, 10, 10, 9));
}

// The line of adakv, which there is below twice the mean, too.
TEST(BudgetsTest, PyramidOfFactoryIsLevelBelowTwiceTheMean) {
  for (const int32_t cut : {20, 19}) {
    EvictionCase eviction = Layers(3, cut, 10);
    eviction.policy.budget = Pyramid(2.0, PyramidFormula::kFactory);
    const int32_t slope = cut < 20 ? 0 : 5;
    EXPECT_THAT(Budgets(eviction), ElementsAre(10 + slope, 10, 10 - slope));
    eviction.policy.budget = Pyramid(2.0, PyramidFormula::kAdaKv);
    EXPECT_THAT(Budgets(eviction), ElementsAre(15, 10, 5));
    // Twice what is left beside 4 that are protected: 12 of 20 and 19.
    eviction.policy.protect.sinks = 4;
    const std::vector<int32_t> line = Budgets(eviction);
    eviction.policy.budget = Pyramid(2.0, PyramidFormula::kFactory);
    EXPECT_EQ(Budgets(eviction), line);
  }
}

// 13.5 and 4.5.
TEST(BudgetsTest, PyramidOfKvPressRoundsHalfToEven) {
  EvictionCase eviction = Layers(2, 40, 9);
  eviction.policy.budget = Pyramid(2.0, PyramidFormula::kKvPress);
  EXPECT_THAT(Budgets(eviction), ElementsAre(14, 4));
}

TEST(BudgetsTest, AdaPyramidSharesTheTotalsOfPyramid) {
  EvictionCase eviction = FullHeads(
      1, 6, Rounding::kToken,
      {Constant(4, 20), Constant(2, 20), Constant(1, 20), Constant(8, 20)});
  eviction.shape = {2, 2, 1};
  eviction.policy.budget = Pyramid(2.0, PyramidFormula::kKvPress);
  eviction.policy.budget.kind = BudgetKind::kAdaPyramid;
  // Layers have 2 * 9 and 2 * 3; of these, shares of 0.2 are equal:
  // 18 * 0.8 + 9 * 0.2 = 16.2 and 1.8; 0.6 and 5.4.
  eviction.policy.budget.alpha = 0.2;
  EXPECT_THAT(Budgets(eviction), ElementsAre(16, 2, 1, 5));
  eviction.policy.budget.alpha = 1.0;
  EXPECT_THAT(Budgets(eviction), ElementsAre(9, 9, 3, 3));
}

TEST(BudgetsTest, BudgetsOfATableAreTheCallers) {
  EvictionCase eviction =
      FullHeads(4, 1, Rounding::kPage, {Constant(1, 12), Constant(2, 12)});
  eviction.external = {5, 99};
  for (const BudgetKind kind : {BudgetKind::kHeadKv, BudgetKind::kLuKv}) {
    eviction.policy.budget.kind = kind;
    EXPECT_THAT(Budgets(eviction), ElementsAre(8, 12));
  }
}

// As after an eviction by another policy.
TEST(BudgetsTest, HeadsThatHoldLessThanTheirTablesBudgetsKeepAll) {
  EvictionCase eviction =
      FullHeads(4, 60, Rounding::kToken,
                {Constant(1, 100), Constant(2, 100), Constant(3, 100)});
  eviction.policy.budget.kind = BudgetKind::kHeadKv;
  eviction.policy.budget.share = 1.0;
  for (const auto& [head, held] : {std::pair(1, 40), std::pair(2, 87)}) {
    eviction.positions[head].resize(held);
    eviction.scores[head].resize(held);
  }
  const auto set_external = [&] {
    eviction.external =
        TableBudgets(eviction.policy, eviction.target, eviction.shape,
                     eviction.range, HeadScores{1, 3, {1, 2, 3}});
  };
  // The 20 + 3 that are left of 180 go to nobody, although head 0 holds more.
  set_external();
  EXPECT_THAT(eviction.external, ElementsAre(30, 60, 90));
  EXPECT_THAT(Budgets(eviction), ElementsAre(30, 40, 87));
  // Of 45 pages 7.5, 15 and 22.5, the tie goes to the lower head.
  eviction.policy.rounding = Rounding::kPage;
  set_external();
  EXPECT_THAT(eviction.external, ElementsAre(32, 60, 88));
  EXPECT_THAT(Budgets(eviction), ElementsAre(32, 40, 87));
  EXPECT_EQ(Total(eviction), 45);
  const auto kept = KeptPositions(eviction, Select(eviction));
  EXPECT_EQ(kept[1], eviction.positions[1]);
  EXPECT_EQ(kept[2], eviction.positions[2]);
}

TEST(BudgetsTest, IdealsComeBeforeRemaindersAndBounds) {
  using ::testing::DoubleNear;
  std::vector<float> middle = Constant(1, 20);
  for (int i = 0; i < 10; ++i) middle[i] = 3;
  EvictionCase eviction = FullHeads(4, 10, Rounding::kPage,
                                    {Constant(4, 20), middle, Constant(2, 20)});
  eviction.policy.budget = AdaKv(0.0);
  EXPECT_THAT(Ideals(eviction),
              ElementsAre(DoubleNear(20.0, 1e-9), DoubleNear(9.0, 1e-9),
                          DoubleNear(1.0, 1e-9)));
  eviction.policy.budget = AdaKv(0.2);
  EXPECT_THAT(Ideals(eviction),
              ElementsAre(DoubleNear(18.0, 1e-9), DoubleNear(10.0, 1e-9),
                          DoubleNear(2.0, 1e-9)));
  eviction.policy.budget = AdaKv(0.0);
  // Only 2 entries in all, for 30 slots: their heads' shares are scaled.
  eviction.positions = {{3}, {}, {5}};
  eviction.scores = {{1}, {}, {1}};
  EXPECT_THAT(Ideals(eviction),
              ElementsAre(DoubleNear(15.0, 1e-9), DoubleNear(0.0, 1e-9),
                          DoubleNear(15.0, 1e-9)));
  // Nobody has a claim: equal parts, so that the total is the total.
  eviction.positions = {{}, {}, {}};
  eviction.scores = {{}, {}, {}};
  EXPECT_THAT(Ideals(eviction),
              ElementsAre(DoubleNear(10.0, 1e-9), DoubleNear(10.0, 1e-9),
                          DoubleNear(10.0, 1e-9)));
}

TEST(BudgetsDeathTest, AbortsOnArraysThatDoNotFit) {
  EvictionCase eviction = FullHeads(4, 1, Rounding::kToken, {Constant(1, 12)});
  eviction.policy.budget.kind = BudgetKind::kExternal;
  EXPECT_DEATH(Budgets(eviction), "check failed");
  eviction.policy.budget.kind = BudgetKind::kUniform;
  eviction.scores[0].pop_back();
  EXPECT_DEATH(Budgets(eviction), "check failed");
}

}  // namespace
}  // namespace blockmgr
