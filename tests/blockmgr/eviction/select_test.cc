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
    for (int32_t i = 0; i < 6 - num_protected; ++i) expected.push_back(i);
    for (int32_t i = 12 - num_protected; i < 12; ++i) expected.push_back(i);
    EXPECT_EQ(Select(eviction).ranks, expected) << "window " << window;
  }
}

TEST(SelectTest, ExplicitRecentReplacesTheWindow) {
  EvictionCase eviction = OneHead(4, 1, {4, 3, 2, 1});
  eviction.policy.scorer.kind = ScorerKind::kSnapKv;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(3));
  eviction.policy.protect.recent = 0;
  EXPECT_THAT(Select(eviction).ranks, ElementsAre(0));
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

}  // namespace
}  // namespace blockmgr
