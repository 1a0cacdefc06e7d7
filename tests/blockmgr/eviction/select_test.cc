#include "blockmgr/eviction/select.h"

#include <cmath>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/blockmgr/eviction/random_case.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

// One head with all positions below the cut, kept to `tokens` entries.
EvictionCase OneHead(int32_t cut, int32_t tokens, std::vector<float> scores) {
  EvictionCase eviction;
  eviction.shape = {1, 1, 1};
  eviction.range = {cut, cut + 1};
  eviction.policy.scorer.kind = ScorerKind::kExternal;
  eviction.policy.rounding = Rounding::kToken;
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = tokens;
  eviction.positions.resize(1, std::vector<int32_t>(cut));
  std::iota(eviction.positions[0].begin(), eviction.positions[0].end(), 0);
  if (!scores.empty()) eviction.scores = {std::move(scores)};
  return eviction;
}

TEST(SelectTest, KeepsTheBestScoresInPositionOrder) {
  EXPECT_THAT(Select(OneHead(6, 3, {1, 5, 2, 5, 3, 0})).ranks,
              ElementsAre(1, 3, 4));
}

TEST(SelectTest, BreaksTiesByLowerPosition) {
  EXPECT_THAT(Select(OneHead(6, 3, {7, 7, 7, 7, 7, 7})).ranks,
              ElementsAre(0, 1, 2));
}

TEST(SelectTest, ReturnsRanksNotPositions) {
  EvictionCase eviction = OneHead(8, 2, {1, 9, 9, 1});
  eviction.positions = {{0, 3, 5, 7}};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(1, 2));
}

TEST(SelectTest, KeepsAndCountsNaN) {
  const KeepSets kept =
      Select(OneHead(5, 2, {INFINITY, -NAN, 3, NAN, INFINITY}));
  EXPECT_THAT(kept.ranks, ElementsAre(1, 3));
  EXPECT_EQ(kept.num_nan, 2);
}

// Protection is a set: neither +inf nor NaN elsewhere displaces it.
TEST(SelectTest, ProtectsWhateverTheScores) {
  for (const float outside : {0.0f, 1.0f, INFINITY, NAN}) {
    for (const float inside : {0.0f, 1.0f, -INFINITY, NAN}) {
      std::vector<float> scores(10, outside);
      scores[0] = scores[8] = scores[9] = inside;
      EvictionCase eviction = OneHead(10, 4, scores);
      eviction.policy.protect = {.sinks = 1, .recent = 3};
      EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 8, 9));
    }
  }
}

// Windows around a page of 4, cut 12, length 14: the last two are beyond it.
TEST(SelectTest, ProtectsTheWindowAtEveryPageBoundary) {
  for (const int32_t window : {1, 2, 3, 4, 5, 6, 7}) {
    std::vector<float> scores(12);
    for (int32_t i = 0; i < 12; ++i) scores[i] = static_cast<float>(-i);
    EvictionCase eviction = OneHead(12, 6, scores);
    eviction.range.length = 14;
    eviction.policy.scorer.kind = ScorerKind::kSnapKv;
    eviction.policy.scorer.window = window;
    const int32_t num_protected = std::max(0, window - 2);
    std::vector<int32_t> expected;
    expected.reserve(6);
    for (int32_t i = 0; i < 6 - num_protected; ++i) expected.push_back(i);
    for (int32_t i = 12 - num_protected; i < 12; ++i) expected.push_back(i);
    EXPECT_EQ(Select(eviction).ranks, expected) << "window " << window;
  }
}

TEST(SelectTest, ExplicitRecentReplacesTheWindow) {
  EvictionCase eviction = OneHead(4, 1, {4, 3, 2, 1});
  eviction.policy.scorer.kind = ScorerKind::kSnapKv;
  eviction.policy.scorer.window = 3;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(3));
  eviction.policy.protect.recent = 0;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0));
}

TEST(SelectTest, NothingIsEvictedThatIsNotOlderThanTheWindow) {
  for (const Rounding rounding : {Rounding::kToken, Rounding::kPage}) {
    EvictionCase eviction = OneHead(4, 1, {4, 3, 2, 1});
    eviction.policy.rounding = rounding;
    eviction.policy.scorer.kind = ScorerKind::kSnapKv;
    eviction.policy.scorer.window = eviction.range.length;
    EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2, 3));
  }
}

TEST(SelectTest, SmallBudgetsKeepSinksThenTheMostRecent) {
  EvictionCase eviction = OneHead(10, 1, std::vector<float>(10, 1.0f));
  eviction.policy.protect = {.sinks = 3, .recent = 5};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0));
  eviction.target.tokens = 3;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2));
  eviction.target.tokens = 5;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2, 8, 9));
}

TEST(SelectTest, StreamingKeepsSinksAndTheMostRecent) {
  EvictionCase eviction = OneHead(10, 5, {});
  eviction.policy.scorer.kind = ScorerKind::kStreaming;
  eviction.policy.scorer.sinks = 2;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 7, 8, 9));
  eviction.target.tokens = 1;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0));
}

TEST(SelectTest, StreamingOrdersPositionsThatFloatsCannotTellApart) {
  EvictionCase eviction = OneHead(8, 2, {});
  eviction.policy.scorer.kind = ScorerKind::kStreaming;
  eviction.policy.scorer.sinks = 0;
  constexpr int32_t kLarge = 1 << 30;
  eviction.range = {kLarge + 8, kLarge + 9};
  eviction.positions = {{kLarge, kLarge + 1, kLarge + 2, kLarge + 3}};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(2, 3));
}

TEST(SelectTest, KeepsEverythingIfTheBudgetCoversIt) {
  EXPECT_THAT(Select(OneHead(4, 4, {1, 2, 3, 4})).ranks,
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Select(OneHead(4, 99, {1, 2, 3, 4})).ranks,
              ElementsAre(0, 1, 2, 3));
}

EvictionCase Critical(int32_t tokens, double first, std::vector<float> scores,
                      std::vector<float> value_norms) {
  const auto cut = static_cast<int32_t>(scores.size());
  EvictionCase eviction = OneHead(cut, tokens, std::move(scores));
  eviction.policy.selector.kind = SelectorKind::kCritical;
  eviction.policy.selector.first = first;
  eviction.value_norms = {std::move(value_norms)};
  return eviction;
}

TEST(SelectTest, CriticalTakesHalfByScoreThenByScoreTimesNorm) {
  // 5 and 4 by score; then 3, 2, 10, 0.01 are the products of the rest.
  EvictionCase eviction =
      Critical(4, 0.5, {5, 4, 3, 2, 1, 0}, {1, 1, 1, 1, 10, 100});
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2, 4));
  // 4, 3, 20, 100.
  eviction.policy.selector.eps = 1.0;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 4, 5));
  // The first stage is rounded down.
  eviction.target.tokens = 3;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 4, 5));
  eviction.policy.selector.first = 1.0;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2));
  eviction.policy.selector.first = 0.0;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 4, 5));
}

// 50 * 0.58 is 29, and 28.999999999999996 in doubles.
TEST(SelectTest, CriticalCountsTheFirstStageExactly) {
  std::vector<float> scores, norms;
  std::vector<int32_t> expected;
  for (int32_t i = 0; i < 60; ++i) {
    scores.push_back(static_cast<float>(100 - i));
    norms.push_back(static_cast<float>(std::pow(2.0, i)));
    if (i < 29 || i >= 60 - 21) expected.push_back(i);
  }
  EXPECT_EQ(Select(Critical(50, 0.58, scores, norms)).ranks, expected);
}

TEST(SelectTest, CriticalLeavesTheProtectedOutOfBothStages) {
  // 0 and the last two are kept; of the 4 that are left, 2 by score.
  EvictionCase eviction = Critical(7, 0.5, {9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 9},
                                   {0, 1, 1, 1, 1, 1, 1, 50, 100, 0, 0});
  eviction.policy.protect = {.sinks = 1, .recent = 3};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2, 7, 8, 9, 10));
}

TEST(SelectTest, CriticalBreaksTiesByPositionAndKeepsNaN) {
  EXPECT_THAT(Select(Critical(2, 0.0, {1, 1, 1, 1}, {2, 2, 2, 2})).ranks,
              ElementsAre(0, 1));
  EXPECT_THAT(Select(Critical(2, 0.5, {3, 2, 1, 0}, {1, 1, 1, NAN})).ranks,
              ElementsAre(0, 3));
  EXPECT_THAT(Select(Critical(2, 0.5, {3, 2, NAN, 0}, {1, 1, 0, 1})).ranks,
              ElementsAre(0, 2));
}

// Callers may have both arrays; which one counts is the policy's.
TEST(SelectTest, CriticalReadsProductsIfThePolicySaysSo) {
  EvictionCase eviction = Critical(1, 0.0, {1, 1, 1}, {1, 1, 5});
  eviction.products = {{1, 5, 1}};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(2));
  eviction.policy.selector.gqa_product = true;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(1));
}

TEST(SelectTest, CutsMayEndTheSequence) {
  EvictionCase eviction = OneHead(7, 3, {7, 6, 5, 4, 3, 2, 1});
  eviction.range.length = 7;
  eviction.policy.protect.recent = 2;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 5, 6));
}

TEST(SelectDeathTest, AbortsOnMissingNorms) {
  EvictionCase eviction = Critical(1, 0.5, {1, 2}, {1, 1});
  eviction.policy.selector.gqa_product = true;
  EXPECT_DEATH(Select(eviction), "check failed");
  eviction.policy.selector.gqa_product = false;
  eviction.value_norms[0].pop_back();
  EXPECT_DEATH(Select(eviction), "check failed");
}

}  // namespace
}  // namespace blockmgr
