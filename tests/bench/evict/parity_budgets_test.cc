// Against the formulas of the published programs, written out here in double
// and in whole numbers.
#include "bench/evict/parity_budgets.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/evict/parity.h"
#include "tests/testing/eviction_targets.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

ParityPolicy Parse(const std::string& text) {
  absl::StatusOr<ParityPolicy> policy = ParseParityPolicy(text);
  EXPECT_THAT(policy, IsOk()) << text;
  return policy.ok() ? *policy : ParityPolicy();
}

// So many thousandths are evicted.
EvictionTarget Evict(int32_t thousandths) {
  return {.kind = EvictionTarget::Kind::kRatio,
          .ratio = *KeepRatio::FromDouble((1000 - thousandths) / 1000.0),
          .tokens = 0};
}

EvictionRange Whole(int32_t length) {
  return {.cut = length, .length = length};
}

std::vector<int64_t> Means(const ParityPolicy& policy,
                           const EvictionTarget& target, int32_t num_layers,
                           int32_t length) {
  return ParityMeans({policy,
                      target,
                      {.num_layers = num_layers, .num_heads = 1},
                      Whole(length)});
}

// T, L, w, beta, and the thousandths that are evicted.
struct PyramidCase {
  int64_t length;
  int64_t layers;
  int64_t window;
  int64_t beta;
  int32_t evicted;

  double ratio() const { return evicted / 1000.0; }
  int64_t base() const {
    const auto count =
        static_cast<int64_t>((1.0 - ratio()) * static_cast<double>(length));
    return std::max<int64_t>(0, count - window);
  }
  std::string text(const char* formula, const char* parity) const {
    return absl::StrCat("snapkv(window=", window, ") | pyramid(beta=", beta,
                        ",formula=", formula, ") | topk | round(token) | ",
                        "parity(", parity, ")");
  }
};

std::vector<int64_t> NaiveKvPressLine(const PyramidCase& p) {
  const auto length = static_cast<double>(p.length);
  const auto window = static_cast<double>(p.window);
  const double cap = window + length * (1 - p.ratio());
  double least = (cap - window) / static_cast<double>(p.beta);
  double most = (cap - window) * 2 - least;
  if (most >= length - window) {
    most = length - window;
    least = (cap - window) * 2 - most;
  }
  const bool line =
      length >= most && most >= least && least >= window && p.layers > 1;
  std::vector<int64_t> means;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    const double mean =
        line ? most - static_cast<double>(layer) *
                          ((most - least) / static_cast<double>(p.layers - 1))
             : length * (1 - p.ratio());
    means.push_back(static_cast<int64_t>(std::nearbyint(mean)));
  }
  return means;
}

std::vector<int64_t> NaiveWholeLine(const PyramidCase& p, bool factory) {
  const int64_t base = p.base();
  int64_t least = base / p.beta;
  int64_t most = base * 2 - least;
  const int64_t past = std::max<int64_t>(0, p.length - p.window);
  if (most >= past) {
    most = past;
    least = base * 2 - most;
  }
  std::vector<int64_t> means;
  for (int64_t layer = 0; layer < p.layers; ++layer) {
    const bool level = p.layers == 1 || (factory && p.length < base * 2);
    means.push_back(level ? base
                          : most - layer * ((most - least) / (p.layers - 1)));
  }
  return means;
}

TEST(ParityMeansTest, PyramidsAreThePrograms) {
  Rng random(7);
  int num_slopes = 0;
  int num_level = 0;
  for (int i = 0; i < 20'000; ++i) {
    PyramidCase p{};
    p.length = RandomInt(random, 1, i % 2 == 0 ? 100 : 10'000);
    p.layers = RandomInt(random, 1, 40);
    p.window = RandomInt(random, 1, 70);  // at times more than there is
    p.beta = RandomInt(random, 1, 25);
    p.evicted = RandomInt(random, 0, 999);
    SCOPED_TRACE(absl::StrCat("case ", i));
    const auto layers = static_cast<int32_t>(p.layers);
    const auto length = static_cast<int32_t>(p.length);
    const EvictionTarget target = Evict(p.evicted);
    const std::vector<int64_t> line =
        Means(Parse(p.text("kvpress", "kvpress")), target, layers, length);
    ASSERT_EQ(line, NaiveKvPressLine(p));
    num_slopes += line.front() != line.back() ? 1 : 0;
    ASSERT_EQ(Means(Parse(p.text("adakv", "released")), target, layers, length),
              NaiveWholeLine(p, /*factory=*/false));
    const std::vector<int64_t> factory = NaiveWholeLine(p, /*factory=*/true);
    ASSERT_EQ(
        Means(Parse(p.text("factory", "released")), target, layers, length),
        factory);
    num_level += factory != NaiveWholeLine(p, /*factory=*/false) ? 1 : 0;
  }
  // Either branch was taken.
  EXPECT_GT(num_slopes, 1000);
  EXPECT_GT(num_level, 1000);
}

TEST(ParityMeansTest, CountsTokensAsTheyAre) {
  const ParityPolicy kvpress = Parse(
      "snapkv(window=2) | pyramid(beta=2,formula=kvpress) | topk | "
      "round(token) | parity(kvpress)");
  // 15 - 5 * layer / 2, half to even.
  EXPECT_THAT(Means(kvpress, KeepTokens(10), 3, 40), ElementsAre(15, 10, 5));
  EXPECT_THAT(Means(kvpress, KeepTokens(9), 2, 40), ElementsAre(14, 4));
  EXPECT_THAT(Means(kvpress, KeepTokens(0), 3, 40), Each(0));
  EXPECT_THAT(Means(kvpress, KeepTokens(99), 3, 40), Each(40));
  EXPECT_THAT(Means(kvpress, KeepTokens(9), 1, 40), ElementsAre(9));
  // No more than the window: the fallback.
  EXPECT_THAT(Means(kvpress, KeepTokens(1), 2, 2), ElementsAre(1, 1));
  for (const char* formula : {"adakv", "factory"}) {
    const ParityPolicy released = Parse(
        absl::StrCat("snapkv(window=2) | pyramid(beta=2,formula=", formula,
                     ") | topk | round(token) | parity(released)"));
    EXPECT_THAT(Means(released, KeepTokens(12), 3, 40), ElementsAre(15, 10, 5));
    EXPECT_THAT(Means(released, KeepTokens(12), 1, 40), ElementsAre(10));
    // A budget without anything beside the window.
    for (const int32_t tokens : {0, 1, 2}) {
      EXPECT_THAT(Means(released, KeepTokens(tokens), 3, 40), Each(0));
    }
    EXPECT_THAT(Means(released, KeepTokens(99), 3, 40), Each(38));
    EXPECT_THAT(Means(released, KeepTokens(2), 2, 2), Each(0));
    EXPECT_THAT(Means(released, KeepTokens(1), 2, 1), Each(0));
  }
}

TEST(ParityMeansTest, OthersAreTheCount) {
  // 10 * (1 - 0.9) is 0.99..98 in doubles.
  EXPECT_THAT(Means(Parse("external | uniform | topk | round(token) | "
                          "parity(kvpress)"),
                    Evict(900), 2, 10),
              ElementsAre(0, 0));
  EXPECT_THAT(Means(Parse("snapkv(window=3) | adakv | topk | round(token) | "
                          "parity(released)"),
                    Evict(500), 2, 10),
              ElementsAre(2, 2));
}

TEST(ParityTableTest, HeadKvIsTheReleasedCodeBesideItsWindow) {
  Rng random(3);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    const int64_t window = RandomInt(random, 0, 39);
    const int64_t beta = RandomInt(random, 1, 8);
    const int64_t temp = RandomInt(random, 0, 2);
    HeadScores table{2, 3, {}};
    for (int head = 0; head < 6; ++head) {
      table.scores.push_back(static_cast<float>(RandomInt(random, 1, 1000)));
    }
    const int32_t length = RandomInt(random, 1, 500);
    const int32_t tokens = RandomInt(random, 0, length + 4);
    ParityPolicy policy = Parse(absl::StrCat(
        window == 0 ? "knorm" : absl::StrCat("snapkv(window=", window, ")"),
        " | headkv(profile=x,share=", beta, ",temp=", temp,
        ") | topk | round(token) | parity(released)"));
    const std::vector<int32_t> budgets =
        ParityTableBudgets({policy,
                            KeepTokens(tokens),
                            {.num_layers = 2, .num_heads = 3},
                            Whole(length)},
                           table);
    const int64_t base =
        std::max<int64_t>(0, std::min(tokens, length) - window);
    const int64_t share = base / beta;
    double sum = 0;
    for (const double score : table.scores) sum += score;
    double powers = 0;
    for (const double score : table.scores) {
      powers += std::pow(score / sum, static_cast<double>(temp));
    }
    ASSERT_EQ(budgets.size(), 6u);
    for (size_t head = 0; head < 6; ++head) {
      const double part =
          std::pow(table.scores[head] / sum, static_cast<double>(temp)) /
          powers;
      const auto past = static_cast<int64_t>(
          std::nearbyint(part * static_cast<double>(share * 6) +
                         static_cast<double>(base - share)));
      ASSERT_EQ(budgets[head], tokens >= length
                                   ? length
                                   : std::min<int64_t>(past + window, length));
    }
  }
}

// One layer of two heads; r is its rho, give or take what row it is.
LuKvProfile TwoHeads(const std::vector<float>& grid) {
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = 2;
  profile.rho = grid;
  for (const float rho : grid) {
    const float apart = std::min(rho, 1.0f - rho) / 4.0f;
    profile.r.push_back(rho - apart);
    profile.r.push_back(rho + apart);
  }
  EXPECT_THAT(profile.Validate(), IsOk());
  return profile;
}

std::vector<int32_t> LuKv(const char* parity, const LuKvProfile& profile,
                          const EvictionTarget& target, int32_t length) {
  const ParityPolicy policy =
      Parse(absl::StrCat("snapkv(window=4) | lukv(profile=x) | topk | "
                         "round(token) | parity(",
                         parity, ")"));
  return ParityTableBudgets(
      {policy,
       target,
       {.num_layers = profile.num_layers, .num_heads = profile.num_heads},
       Whole(length)},
      profile);
}

// What the paper keeps at one row.
std::vector<int32_t> PaperAtRow(const LuKvProfile& profile, size_t row,
                                int32_t length) {
  std::vector<int32_t> budgets;
  for (size_t head = 0; head < 2; ++head) {
    budgets.push_back(static_cast<int32_t>(
        std::floor((1.0 - profile.r[row * 2 + head]) * length)));
  }
  return budgets;
}

// kvpress's 99 rows: of index round(100 r) - 1 within [0, 98], half to even in
// doubles, where 100 * 0.575 is below 57.5.
TEST(ParityTableTest, LuKvLooksUpTheProgramsRow) {
  std::vector<float> grid;
  for (int row = 0; row <= 100; ++row) {
    grid.push_back(static_cast<float>(row) / 100.0f);
  }
  const LuKvProfile profile = TwoHeads(grid);
  constexpr int32_t kLength = 100'000;
  for (int32_t evicted = 1; evicted < 1000; ++evicted) {
    const double rounded = std::nearbyint(evicted / 1000.0 * 100.0);
    const auto row = static_cast<size_t>(std::clamp(rounded, 1.0, 99.0));
    ASSERT_EQ(LuKv("released", profile, Evict(evicted), kLength),
              PaperAtRow(profile, row, kLength))
        << evicted << " thousandths";
  }
  EXPECT_THAT(LuKv("released", profile, Evict(0), kLength), Each(kLength));
  EXPECT_THAT(LuKv("kvpress", profile, Evict(0), kLength), Each(kLength));
  EXPECT_EQ(LuKv("released", profile, KeepTokens(0), kLength),
            PaperAtRow(profile, 99, kLength));
}

TEST(ParityTableTest, LuKvLooksUpTheNearestRowOfAnyGrid) {
  const LuKvProfile tenths = TwoHeads(
      {0.0f, 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 1.0f});
  constexpr int32_t kLength = 1000;
  for (int32_t evicted = 1; evicted < 1000; ++evicted) {
    if (evicted % 100 == 50) continue;  // as near to one as to the other
    const auto row =
        static_cast<size_t>(std::clamp(std::lround(evicted / 100.0), 1L, 9L));
    ASSERT_EQ(LuKv("released", tenths, Evict(evicted), kLength),
              PaperAtRow(tenths, row, kLength))
        << evicted << " thousandths";
  }
  // 0.125 is 12 hundredths, 0.175 is 18: of a grid of twentieths the even one.
  const LuKvProfile twentieths =
      TwoHeads({0.0f, 0.05f, 0.1f, 0.15f, 0.2f, 1.0f});
  EXPECT_EQ(LuKv("released", twentieths, Evict(125), kLength),
            PaperAtRow(twentieths, 2, kLength));
  EXPECT_EQ(LuKv("released", twentieths, Evict(175), kLength),
            PaperAtRow(twentieths, 4, kLength));
  // Nothing but the ends.
  const LuKvProfile ends = TwoHeads({0.0f, 1.0f});
  EXPECT_THAT(LuKv("released", ends, Evict(400), kLength), Each(kLength));
  EXPECT_THAT(LuKv("released", ends, Evict(600), kLength), Each(0));
  EXPECT_THAT(LuKv("kvpress", ends, Evict(600), kLength), Each(1));
}

// Rates in 64ths are exact in either precision; ties go to the lower head.
TEST(ParityTableTest, LuKvSharesOutEveryLayersTotalByLargestRemainder) {
  Rng random(11);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(absl::StrCat("case ", i));
    LuKvProfile profile;
    profile.num_layers = 2;
    profile.num_heads = 3;
    profile.r.assign(6, 0.0f);
    float sum = 0.0f;
    for (int head = 0; head < 6; ++head) {
      profile.r.push_back(static_cast<float>(RandomInt(random, 0, 64)) / 64.0f);
      sum += profile.r.back();
    }
    profile.r.insert(profile.r.end(), 6, 1.0f);
    if (sum == 0.0f || sum == 6.0f) continue;
    profile.rho = {0.0f, sum / 6.0f, 1.0f};
    ASSERT_THAT(profile.Validate(), IsOk());
    const int32_t length = RandomInt(random, 1, 300);
    std::vector<int32_t> expected;
    for (size_t layer = 0; layer < 2; ++layer) {
      std::vector<double> ideal;
      for (size_t head = 0; head < 3; ++head) {
        ideal.push_back((1.0 - profile.r[6 + layer * 3 + head]) * length);
      }
      const double total = std::clamp(
          std::nearbyint(ideal[0] + ideal[1] + ideal[2]), 3.0, 3.0 * length);
      std::vector<int> order = {0, 1, 2};
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return ideal[a] - std::floor(ideal[a]) >
               ideal[b] - std::floor(ideal[b]);
      });
      double left = total;
      for (const double share : ideal) left -= std::floor(share);
      for (double& share : ideal) share = std::floor(share);
      for (int rank = 0; rank < 3 && rank < left; ++rank) ++ideal[order[rank]];
      for (const double share : ideal) {
        expected.push_back(static_cast<int32_t>(
            std::clamp(share, 1.0, static_cast<double>(length))));
      }
    }
    ASSERT_EQ(LuKv("kvpress", profile, Evict(300), length), expected);
  }
}

// 4 heads of 10 positions with 6 on average: 24 in all, but programs lose some.
TEST(ParityTableTest, TotalsDrift) {
  const HeadShape shape{.num_layers = 2, .num_heads = 2};
  // 24 by score: rint of 0.5, 11.5, 4 and 8; nobody holds 12.
  EXPECT_THAT(ParityTableBudgets({Parse("knorm | headkv(profile=x,share=1) | "
                                        "round(token) | parity(released)"),
                                  KeepTokens(6), shape, Whole(10)},
                                 HeadScores{2, 2, {1, 23, 8, 16}}),
              ElementsAre(0, 10, 4, 8));
  LuKvProfile profile;
  profile.num_layers = 2;
  profile.num_heads = 2;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r = {0.0f, 0.0f, 0.0f, 0.0f, 0.25f, 0.25f,
               1.0f, 0.5f, 1.0f, 1.0f, 1.0f,  1.0f};
  // 0.75 * 10, twice, is rounded down; kvpress shares the 15 out.
  EXPECT_THAT(LuKv("released", profile, KeepTokens(6), 10),
              ElementsAre(7, 7, 0, 5));
  EXPECT_THAT(LuKv("kvpress", profile, KeepTokens(6), 10),
              ElementsAre(8, 7, 1, 5));
}

TEST(ParityTableTest, QueryHeadsCountAsTheMeansOfTheirGroups) {
  const HeadShape shape{.num_layers = 2, .num_heads = 2};
  const HeadScores of_query_heads{.num_layers = 2,
                                  .num_heads = 6,
                                  .scores = {1, 2, 3, 0, 0, 3,  //
                                             4, 4, 4, 9, 0, 0},
                                  .of_query_heads = true};
  const ParityPolicy policy = Parse(
      "snapkv | headkv(profile=t) | topk | round(token) | parity(released)");
  EXPECT_EQ(ParityTableBudgets({policy, KeepTokens(300), shape, Whole(1000)},
                               of_query_heads),
            ParityTableBudgets({policy, KeepTokens(300), shape, Whole(1000)},
                               HeadScores{2, 2, {2, 1, 4, 3}}));
}

// Every published program.
constexpr const char* kPrograms[] = {
    "knorm | uniform | round(token) | parity(kvpress)",
    "snapkv | uniform | critical | round(token) | parity(kvpress)",
    "streaming | uniform | round(token) | parity(kvpress)",
    "snapkv | pyramid(formula=kvpress) | round(token) | parity(kvpress)",
    "knorm | adakv(mode=floor) | round(token) | parity(kvpress)",
    "snapkv | adakv(mode=floor) | critical | round(token) | parity(kvpress)",
    "expected_attention | lukv(profile=t) | round(token) | parity(kvpress)",
    "snapkv | pyramid | round(token) | parity(released)",
    "snapkv | pyramid(formula=factory) | round(token) | parity(released)",
    "snapkv | adakv | round(token) | parity(released)",
    "snapkv | adakv | critical | round(token) | parity(released)",
    "snapkv | ada_pyramid | round(token) | parity(released)",
    "snapkv | headkv(profile=t) | round(token) | parity(released)",
    "knorm | lukv(profile=t) | round(token) | parity(released)"};

TEST(ParityKeepAllTest, ATargetOfAllThereIsEvictsNothing) {
  const HeadShape shape{.num_layers = 3, .num_heads = 2};
  const BudgetTable head_scores = HeadScores{3, 2, {1, 5, 0, 90, 2, 2}};
  LuKvProfile profile;
  profile.num_layers = 3;
  profile.num_heads = 2;
  profile.rho = {0.0f, 0.5f, 1.0f};
  profile.r.assign(6, 0.0f);
  for (int layer = 0; layer < 3; ++layer) {
    profile.r.insert(profile.r.end(), {0.25f, 0.75f});
  }
  profile.r.insert(profile.r.end(), 6, 1.0f);
  ASSERT_THAT(profile.Validate(), IsOk());
  const BudgetTable of_lukv = profile;
  Rng random(5);
  for (const char* text : kPrograms) {
    SCOPED_TRACE(text);
    const ParityPolicy policy = Parse(text);
    for (const int32_t cut : {1, 2, 7, 16, 31, 33, 100, 231}) {
      // An earlier eviction has left each head about two thirds.
      std::vector<int64_t> offsets = {0};
      std::vector<int32_t> positions;
      std::vector<float> scores;
      for (int head = 0; head < 6; ++head) {
        for (int32_t position = 0; position < cut; ++position) {
          if (RandomInt(random, 0, 2) == 0) continue;
          positions.push_back(position);
          scores.push_back(
              static_cast<float>(RandomInt(random, 0, 999) * (1 + head)));
        }
        offsets.push_back(std::ssize(positions));
      }
      const EntriesView entries{.offsets = offsets,
                                .positions = positions,
                                .scores = scores,
                                .value_norms = scores,
                                .products = {}};
      for (const EvictionTarget& target :
           {Evict(0), KeepTokens(cut), KeepTokens(5000)}) {
        std::vector<int32_t> external;
        if (policy.needs_table()) {
          const bool lukv = policy.budget.kind == BudgetKind::kLuKv;
          external = ParityTableBudgets({policy, target, shape, Whole(cut)},
                                        lukv ? of_lukv : head_scores);
          EXPECT_THAT(external, Each(cut));
        }
        EXPECT_EQ(
            SelectParity({policy, target, shape, Whole(cut)}, entries, external)
                .offsets,
            offsets);
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
