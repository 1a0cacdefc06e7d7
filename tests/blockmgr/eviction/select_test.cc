// Selection: the rules by example, and cases that the random ones of
// select_property_test.cc do not reach.
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

TEST(SelectTest, ReturnsRanksNotPositions) {
  EvictionCase eviction = OneHead(8, 2, {1, 9, 9, 1});
  eviction.positions = {{0, 3, 5, 7}};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(1, 2));
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

TEST(SelectTest, SmallBudgetsKeepSinksThenTheMostRecent) {
  EvictionCase eviction = OneHead(10, 1, std::vector<float>(10, 1.0f));
  eviction.policy.protect = {.sinks = 3, .recent = 5};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0));
  eviction.target.tokens = 3;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2));
  eviction.target.tokens = 5;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0, 1, 2, 8, 9));
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

// Callers may have both arrays; which one counts is the policy's.
TEST(SelectTest, CriticalReadsProductsIfThePolicySaysSo) {
  EvictionCase eviction = Critical(1, 0.0, {1, 1, 1}, {1, 1, 5});
  eviction.products = {{1, 5, 1}};
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(2));
  eviction.policy.selector.gqa_product = true;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(1));
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
