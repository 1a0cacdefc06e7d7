// The library against golden vectors of an independent float64 reference, whose
// own results were compared with the papers' and NVIDIA's code.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/golden.h"
#include "blockmgr/eviction/select.h"
#include "tests/blockmgr/eviction/naive_planner.h"
#include "tests/blockmgr/eviction/random_case.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr char kDirectory[] = BLOCKMGR_GOLDEN_DIR;

std::string Path(const char* file) {
  return absl::StrCat(kDirectory, "/", file);
}

TEST(GoldenTest, SelectsAsTheTieVectors) {
  ASSERT_OK_AND_ASSIGN(const auto cases,
                       ReadGoldenFile(Path("select_ties.txt")));
  int checked = 0;
  for (const GoldenCase& golden : cases) {
    if (golden.method != "uniform") continue;
    ++checked;
    for (const auto& [head, kept] : golden.kept) {
      std::vector<int32_t> ranks;
      TopK(golden.tables.at("s" + std::to_string(head)),
           golden.integers.at("k"), &ranks);
      EXPECT_EQ(ranks, kept) << golden.name << " head " << head;
    }
  }
  EXPECT_EQ(checked, 60);
}

// Shapes of a case with queries and keys.
struct AttentionShape {
  explicit AttentionShape(const GoldenCase& golden)
      : q_heads(golden.integers.at("H")),
        heads(golden.integers.at("KH")),
        tokens(golden.integers.at("T")),
        head_dim(golden.integers.at("D")),
        window(golden.integers.at("window")) {}
  int64_t group_size() const { return q_heads / heads; }
  int64_t num_past() const { return tokens - window; }

  int64_t q_heads, heads, tokens, head_dim, window;
};

// softmax of one query over keys [0, query].
std::vector<double> Attend(const AttentionShape& shape, const float* query,
                           const float* keys, int64_t position) {
  std::vector<double> weights;
  for (int64_t token = 0; token <= position; ++token) {
    double dot = 0;
    for (int64_t i = 0; i < shape.head_dim; ++i) {
      dot += double{query[i]} * keys[token * shape.head_dim + i];
    }
    weights.push_back(dot / std::sqrt(static_cast<double>(shape.head_dim)));
  }
  const double max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Mean attention of the window's queries over the past: [q_heads, num_past].
absl::StatusOr<std::vector<float>> WindowAttention(
    const GoldenCase& golden, const AttentionShape& shape) {
  const auto q = golden.inputs.at("Q").Generate();
  const auto k = golden.inputs.at("K").Generate();
  if (!q.ok()) return q.status();
  if (!k.ok()) return k.status();
  std::vector<float> attention;
  for (int64_t q_head = 0; q_head < shape.q_heads; ++q_head) {
    const float* keys =
        k->data() + q_head / shape.group_size() * shape.tokens * shape.head_dim;
    std::vector<double> mean(shape.num_past());
    for (int64_t position = shape.num_past(); position < shape.tokens;
         ++position) {
      const float* query =
          q->data() + (q_head * shape.tokens + position) * shape.head_dim;
      const std::vector<double> weights = Attend(shape, query, keys, position);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += weights[i];
    }
    for (const double weight : mean) {
      attention.push_back(
          static_cast<float>(weight / static_cast<double>(shape.window)));
    }
  }
  return attention;
}

ScorerSpec Scorer(const std::string& name) {
  ScorerSpec scorer;
  if (name == "snapkv_avg5") {
    scorer.pool = PoolKind::kAvg;
    scorer.kernel = 5;
    scorer.order = PoolOrder::kKvPress;
  }
  return scorer;  // snapkv_max7_adakv is the default
}

// The case as an eviction of all its tokens from a sequence one token longer,
// the window protected by the policy.
absl::StatusOr<EvictionCase> MakeEviction(const GoldenCase& golden) {
  const AttentionShape shape(golden);
  const auto attention = WindowAttention(golden, shape);
  if (!attention.ok()) return attention.status();
  EvictionCase eviction;
  eviction.policy.scorer =
      Scorer(golden.method.substr(golden.method.find('/') + 1));
  eviction.policy.protect.recent = static_cast<int32_t>(shape.window) + 1;
  eviction.policy.rounding = Rounding::kToken;
  eviction.target.kind = EvictionTarget::Kind::kTokens;
  eviction.target.tokens = static_cast<int32_t>(golden.integers.at("k"));
  eviction.shape = {1, static_cast<int32_t>(shape.heads), 1};
  eviction.range = {static_cast<int32_t>(shape.tokens),
                    static_cast<int32_t>(shape.tokens) + 1};
  std::vector<int32_t> all(shape.tokens);
  std::iota(all.begin(), all.end(), 0);
  const int64_t group_values = shape.group_size() * shape.num_past();
  for (int64_t head = 0; head < shape.heads; ++head) {
    std::vector<float> scores(shape.tokens);
    ReduceSnapKv(
        eviction.policy.scorer,
        std::span(*attention).subspan(head * group_values, group_values),
        static_cast<int32_t>(shape.group_size()),
        std::span(scores).first(shape.num_past()));
    eviction.positions.push_back(all);
    eviction.scores.push_back(std::move(scores));
  }
  return eviction;
}

void ExpectScores(const GoldenCase& golden, const EvictionCase& eviction) {
  const AttentionShape shape(golden);
  for (const auto& [head, scores] : golden.scores) {
    for (int64_t i = 0; i < shape.num_past(); ++i) {
      // The vectors have nine digits; ours are fp32 sums of few terms.
      ASSERT_NEAR(eviction.scores[head][i], scores[i], 2e-6 * scores[i])
          << golden.name << " head " << head << " position " << i;
    }
  }
}

// `window` more positions at the end than in the vector, for methods that list
// the past alone.
void ExpectKept(const GoldenCase& golden, const EvictionCase& eviction,
                int64_t window) {
  const auto kept = KeptPositions(eviction, Select(eviction));
  for (const auto& [head, positions] : golden.kept) {
    std::vector<int32_t> expected = positions;
    for (int64_t i = eviction.range.cut - window; i < eviction.range.cut; ++i) {
      expected.push_back(static_cast<int32_t>(i));
    }
    EXPECT_EQ(kept[head], expected) << golden.name << " head " << head;
  }
}

TEST(GoldenTest, SnapKvKeepsTheVectorsEntries) {
  ASSERT_OK_AND_ASSIGN(const auto cases, ReadGoldenFile(Path("qkv.txt")));
  int checked = 0;
  int smaller_than_window = 0;
  for (const GoldenCase& golden : cases) {
    if (golden.method != "uniform/snapkv_avg5" &&
        golden.method != "uniform/snapkv_max7_adakv") {
      continue;
    }
    ASSERT_OK_AND_ASSIGN(const EvictionCase eviction, MakeEviction(golden));
    ExpectScores(golden, eviction);
    // The reference keeps the oldest of a window it cannot keep whole; we keep
    // the most recent.
    if (golden.integers.at("k") < golden.integers.at("window")) {
      ++smaller_than_window;
      continue;
    }
    ++checked;
    ExpectKept(golden, eviction, 0);
  }
  std::cout << "snapkv: " << checked << " cases checked, "
            << smaller_than_window << " with less than the window skipped\n";
  EXPECT_EQ(checked + smaller_than_window, 48);
  EXPECT_GT(checked, smaller_than_window);
}

TEST(GoldenTest, AdaKvBlendKeepsTheVectorsEntries) {
  ASSERT_OK_AND_ASSIGN(const auto cases, ReadGoldenFile(Path("qkv.txt")));
  int checked = 0;
  int equal_budgets = 0;
  for (const GoldenCase& golden : cases) {
    if (golden.method != "adakv_blend/snapkv_max7_adakv") continue;
    ++checked;
    const int64_t window = golden.integers.at("window");
    ASSERT_OK_AND_ASSIGN(EvictionCase eviction, MakeEviction(golden));
    std::vector<int32_t> budgets = golden.budgets;
    for (int32_t& budget : budgets) budget += static_cast<int32_t>(window);
    // With the reference's budgets, its entries.
    eviction.policy.budget.kind = BudgetKind::kExternal;
    eviction.external = budgets;
    ExpectKept(golden, eviction, window);
    // Ours conserve the total; the reference's round each head by itself.
    eviction.policy.budget.kind = BudgetKind::kAdaKv;
    eviction.policy.budget.alpha = golden.numbers.at("alpha");
    const std::vector<int32_t> ours = Budgets(eviction);
    EXPECT_EQ(std::accumulate(ours.begin(), ours.end(), int64_t{0}),
              eviction.shape.num_heads * eviction.target.tokens);
    for (size_t head = 0; head < ours.size(); ++head) {
      EXPECT_LE(std::abs(ours[head] - budgets[head]), 1) << golden.name;
    }
    if (ours != budgets) continue;
    ++equal_budgets;
    ExpectKept(golden, eviction, window);
  }
  std::cout << "adakv: " << checked << " cases checked, " << equal_budgets
            << " with budgets equal to the reference's, "
            << checked - equal_budgets << " skipped\n";
  EXPECT_EQ(checked, 22);
  EXPECT_GT(equal_budgets, 0);
}

}  // namespace
}  // namespace blockmgr
