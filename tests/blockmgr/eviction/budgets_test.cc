// One example by hand of each way to share a total out. All rules at random:
// select_property_test.cc.
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/blockmgr/eviction/random_case.h"

namespace blockmgr {
namespace {

using ScoreRows = std::vector<std::vector<float>>;

std::vector<float> Constant(float value, int32_t count) {
  return std::vector<float>(count, value);
}

// One head per layer, all scores equal.
ScoreRows Layers(int32_t num_layers, int32_t cut) {
  return ScoreRows(num_layers, Constant(1, cut));
}

// Heads that hold every position below the cut, with these scores.
EvictionCase FullHeads(const std::string& policy, int32_t tokens,
                       int32_t num_layers, const ScoreRows& scores) {
  EvictionCase eviction;
  const auto cut = static_cast<int32_t>(scores[0].size());
  const auto num_heads = static_cast<int32_t>(scores.size());
  eviction.shape = {num_layers, num_heads / num_layers, 4};
  eviction.range = {cut, cut + 1};
  eviction.policy = *ParsePolicy(policy);
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = tokens;
  std::vector<int32_t> all(cut);
  std::iota(all.begin(), all.end(), 0);
  eviction.positions.assign(scores.size(), all);
  eviction.scores = scores;
  return eviction;
}

void ExpectTokens(const char* budget, int32_t tokens, int32_t num_layers,
                  const ScoreRows& scores,
                  const std::vector<int32_t>& expected) {
  const std::string policy =
      absl::StrCat("external | ", budget, " | round(token)");
  EXPECT_EQ(Budgets(FullHeads(policy, tokens, num_layers, scores)), expected)
      << policy << ", " << tokens << " tokens";
}

// Pages have four tokens.
void ExpectPages(const char* budget, int32_t tokens, const ScoreRows& scores,
                 const std::vector<int32_t>& expected) {
  const std::string policy = absl::StrCat("external | ", budget);
  EXPECT_EQ(Budgets(FullHeads(policy, tokens, 1, scores)), expected)
      << policy << ", " << tokens << " tokens";
}

TEST(BudgetsTest, HeadsOfALayerShareItsTotal) {
  const ScoreRows two = {Constant(4, 20), Constant(2, 20)};
  const ScoreRows three = {Constant(1, 12), Constant(2, 12), Constant(3, 12)};
  ExpectTokens("uniform", 5, 1, three, {5, 5, 5});
  // 3 * 6 = 18 entries = 4 pages for 3 heads.
  ExpectPages("uniform", 6, three, {8, 4, 4});
  // Pages cover the 3 + 6 protected ones, whatever the target.
  ExpectPages("uniform | protect(sinks=3,recent=7)", 1, two, {12, 12});
  // 3 heads * 10 slots: the 30 best are 20 of head 0 and 10 of head 1.
  // 20 * 0.8 + 10 * 0.2 = 18; 10 * 0.8 + 2 = 10; 0 + 2 = 2.
  std::vector<float> middle = Constant(1, 20);
  for (int i = 0; i < 10; ++i) middle[i] = 3;
  const ScoreRows mixed = {Constant(4, 20), middle, Constant(2, 20)};
  ExpectTokens("adakv", 10, 1, mixed, {18, 10, 2});
  // 4.5, 2.5, 0.5 of 7; every head has at least one. The two that are left
  // share 6 as 3.86 and 2.14.
  ExpectPages("adakv", 10, mixed, {16, 8, 4});
  ExpectTokens("adakv(alpha=1)", 7, 1, two, {7, 7});
  ExpectTokens("adakv(alpha=0)", 7, 1, two, {13, 1});
  // The last 3 of each head are protected, as one of the 4 is beyond the cut:
  // 2 * (7 - 3) slots, all of head 0.
  ExpectTokens("adakv(alpha=0.5) | protect(recent=4)", 7, 1, two,
               {3 + 6, 3 + 2});
  // floor(10 * 0.29) = 2 of every head come first. The other 24 are the 18
  // fours and 6 of the threes that are left.
  ExpectTokens("adakv(alpha=0.29,mode=floor)", 10, 1, mixed, {20, 8, 2});
}

TEST(BudgetsTest, LayersShareIfTheRuleSaysSo) {
  const ScoreRows four = {Constant(9, 8), Constant(9, 8), Constant(1, 8),
                          Constant(2, 8)};
  ExpectTokens("adakv(alpha=0)", 4, 2, four, {7, 1, 1, 7});
  // One for every head, the other 12 in the first layer: the lower head has 7.
  ExpectTokens("global", 4, 2, four, {8, 6, 1, 1});
  // 10 / 2 = 5 in the last layer, 2 * 10 - 5 = 15 in the first.
  ExpectTokens("pyramid(beta=2)", 10, 3, Layers(3, 30), {15, 10, 5});
  // At most what there is: 12 and 2 * 10 - 12.
  ExpectTokens("pyramid(beta=2)", 10, 2, Layers(2, 12), {12, 8});
  // Steps of floor(10 / 3): 15, 12, 9, 6 are scaled from 42 to 40.
  ExpectTokens("pyramid(beta=2)", 10, 4, Layers(4, 40), {14, 11, 9, 6});
  ExpectTokens("pyramid(beta=2,formula=kvpress)", 10, 4, Layers(4, 40),
               {15, 12, 8, 5});
  // 13.5 and 4.5, half to even.
  ExpectTokens("pyramid(beta=2,formula=kvpress)", 9, 2, Layers(2, 40), {14, 4});
  // Level below twice the mean.
  ExpectTokens("pyramid(beta=2,formula=factory)", 10, 3, Layers(3, 19),
               {10, 10, 10});
  // Layers have 2 * 9 and 2 * 3; of these, shares of 0.2 are equal:
  // 18 * 0.8 + 9 * 0.2 = 16.2 and 1.8; 0.6 and 5.4.
  ExpectTokens(
      "ada_pyramid(beta=2,formula=kvpress,alpha=0.2)", 6, 2,
      {Constant(4, 20), Constant(2, 20), Constant(1, 20), Constant(8, 20)},
      {16, 2, 1, 5});
}

TEST(BudgetsDeathTest, AbortsOnArraysThatDoNotFit) {
  EvictionCase eviction =
      FullHeads("external | external", 1, 1, {Constant(1, 12)});
  EXPECT_DEATH(Budgets(eviction), "check failed");
  eviction.policy.budget.kind = BudgetKind::kUniform;
  eviction.scores[0].pop_back();
  EXPECT_DEATH(Budgets(eviction), "check failed");
}

}  // namespace
}  // namespace blockmgr
