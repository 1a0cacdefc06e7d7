// Against a naive program in double with sorted lists, written from the
// published programs' descriptions. Scores and norms are small dyadic numbers,
// so that products are exact in either precision and ties abound.
#include "bench/evict/parity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/eviction_targets.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

constexpr double kBig = 3.4028234663852886e38;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Row = std::vector<double>;

// Indices, best first; ties to the lower index.
std::vector<int> Order(const Row& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return scores[a] > scores[b]; });
  return order;
}

std::vector<int32_t> Best(const Row& scores, int k) {
  std::vector<int> order = Order(scores);
  std::vector<int32_t> best(
      order.begin(), order.begin() + std::min<int64_t>(k, std::ssize(order)));
  std::sort(best.begin(), best.end());
  return best;
}

// How many of the k best of all rows each row has.
std::vector<int> Share(const std::vector<Row>& rows, int k) {
  Row flat;
  for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  const std::vector<int> order = Order(flat);
  std::vector<int> counts(rows.size());
  for (int i = 0; i < std::min<int64_t>(k, std::ssize(order)); ++i) {
    ++counts[order[i] / rows[0].size()];
  }
  return counts;
}

void ForceBest(Row* row, int count) {
  const std::vector<int> order = Order(*row);
  for (int i = 0; i < count; ++i) (*row)[order[i]] = kBig;
}

struct Case {
  ParityPolicy policy;
  EvictionTarget target;
  int num_layers = 1;
  int num_heads = 1;
  int length = 1;
  std::vector<int64_t> offsets;
  std::vector<int32_t> positions;
  std::vector<float> scores;
  std::vector<float> norms;

  HeadShape shape() const { return {num_layers, num_heads, 16}; }
  EvictionRange range() const { return {length, length}; }
  EntriesView view() const {
    return {.offsets = offsets,
            .positions = positions,
            .scores = scores,
            .value_norms = norms,
            .products = {}};
  }
  Row Scores(int layer, int head) const {
    const auto begin = scores.begin() + offsets[layer * num_heads + head];
    return Row(begin, begin + length);
  }
  Row Norms(int layer, int head) const {
    const auto begin = norms.begin() + offsets[layer * num_heads + head];
    return Row(begin, begin + length);
  }
  // What programs call the count, and the number they truncate to get it.
  double ideal() const {
    if (target.kind == EvictionTarget::Kind::kTokens) return target.tokens;
    const double r = std::strtod(
        absl::StrCat(target.ratio.denominator - target.ratio.numerator, "e-",
                     std::lround(std::log10(target.ratio.denominator)))
            .c_str(),
        nullptr);
    return (1 - r) * length;
  }
  int k() const { return static_cast<int>(ideal()); }
  bool is_ada() const {
    return policy.budget.kind == BudgetKind::kAdaKv ||
           policy.budget.kind == BudgetKind::kAdaPyramid;
  }
};

// What every head of the layer gets, the window included for kvpress alone; of
// pyramids the line as their programs draw it.
int LayerCount(const Case& c, int layer) {
  const bool released = c.policy.parity == Parity::kReleased;
  const int window = c.policy.scorer.window;
  const int base = released ? std::max(0, c.k() - window) : c.k();
  if (c.policy.budget.kind != BudgetKind::kPyramid &&
      c.policy.budget.kind != BudgetKind::kAdaPyramid) {
    return base;
  }
  const int last = c.num_layers - 1;
  const int beta = static_cast<int>(c.policy.budget.beta);
  if (released) {
    const bool level = c.policy.budget.formula == PyramidFormula::kFactory &&
                       c.length < base * 2;
    if (last == 0 || level) return base;
    const int most = std::min(base * 2 - base / beta, c.length - window);
    return most - layer * ((most - (base * 2 - most)) / last);
  }
  const double mean = window + c.ideal() - window;
  const double most = std::min(mean * 2 - mean / beta, 1.0 * c.length - window);
  const double least = mean * 2 - most;
  const bool line = last > 0 && most >= least && least >= window;
  return static_cast<int>(std::nearbyint(
      line ? most - layer * ((most - least) / last) : c.ideal()));
}

// kvpress: CriticalKV, AdaKV, CriticalAdaKV and plain top k.
std::vector<std::vector<int32_t>> NaiveKvPress(const Case& c, int layer) {
  std::vector<Row> rows;
  double max = -1e300;
  const int window =
      c.policy.scorer.kind == ScorerKind::kSnapKv ? c.policy.scorer.window : 0;
  for (int head = 0; head < c.num_heads; ++head) {
    rows.push_back(c.Scores(layer, head));
    for (int i = 0; i < c.length - window; ++i) {
      max = std::max(max, rows.back()[i]);
    }
  }
  for (Row& row : rows) {
    for (int i = c.length - window; i < c.length; ++i) row[i] = max + 1;
  }
  const bool ada = c.policy.budget.kind == BudgetKind::kAdaKv;
  const int safe = ada ? static_cast<int>(c.k() * c.policy.budget.alpha) : 0;
  std::vector<Row> forced = rows;
  for (Row& row : forced) ForceBest(&row, safe);
  std::vector<int> budgets(c.num_heads, LayerCount(c, layer));
  if (ada) budgets = Share(forced, c.k() * c.num_heads);
  std::vector<std::vector<int32_t>> kept;
  for (int head = 0; head < c.num_heads; ++head) {
    if (c.policy.selector.kind == SelectorKind::kTopK) {
      kept.push_back(Best(forced[head], budgets[head]));
      continue;
    }
    const double first = c.policy.selector.first;
    const int count =
        ada ? std::max(static_cast<int>(budgets[head] * first), safe)
            : static_cast<int>(c.ideal() * first);
    Row products = c.Norms(layer, head);
    for (int i = 0; i < c.length; ++i) {
      products[i] *= rows[head][i] + c.policy.selector.eps;
    }
    const std::vector<int> order = Order(forced[head]);
    for (int i = 0; i < count; ++i) products[order[i]] = kBig;
    kept.push_back(Best(products, budgets[head]));
  }
  return kept;
}

// Ada-KV's code, and CriticalKV's algorithm 1 under its budgets.
std::vector<std::vector<int32_t>> NaiveReleased(const Case& c, int layer) {
  const int window = c.policy.scorer.window;
  const int past = c.length - window;
  const double alpha = c.policy.budget.alpha;
  std::vector<Row> rows;
  for (int head = 0; head < c.num_heads; ++head) {
    rows.push_back(c.Scores(layer, head));
    rows.back().resize(past);
  }
  const int base = LayerCount(c, layer);
  const std::vector<int> counts = Share(rows, base * c.num_heads);
  std::vector<std::vector<int32_t>> kept;
  for (int head = 0; head < c.num_heads; ++head) {
    int budget = std::min(base, past);
    // With all there is to keep, nobody asks what is lost to rounding.
    if (c.is_ada() && c.k() < c.length) {
      budget = static_cast<int>(std::min<int64_t>(
          past,
          std::lrint(counts[head] * double{static_cast<float>(1 - alpha)} +
                     static_cast<int>(base * alpha))));
    }
    if (c.policy.selector.kind == SelectorKind::kTopK) {
      kept.push_back(Best(rows[head], budget));
    } else {
      const int first = static_cast<int>(budget * c.policy.selector.first);
      Row products = c.Norms(layer, head);
      products.resize(past);
      for (int i = 0; i < past; ++i) {
        products[i] *= rows[head][i] + c.policy.selector.eps;
      }
      ForceBest(&rows[head], first);
      for (int i = 0; i < past; ++i) {
        if (rows[head][i] == kBig) products[i] = kBig;
      }
      kept.push_back(Best(products, budget));
    }
    for (int i = past; i < c.length; ++i) kept.back().push_back(i);
  }
  return kept;
}

Case RandomParityCase(const std::string& policy, uint64_t seed) {
  SeededRandom random(seed);
  Case c;
  c.policy = *ParseParityPolicy(policy);
  c.policy.budget.alpha = random.Between(0, 10) / 10.0;
  c.policy.budget.beta = 1 << random.Between(0, 4);
  c.policy.selector.first = random.Between(0, 10) / 10.0;
  c.policy.selector.eps = 0.125 * random.Between(0, 2);
  c.num_layers = 1 + random.Between(0, 2);
  c.num_heads = 1 + random.Between(0, 3);
  c.length = 9 + random.Between(0, 59);
  if (random.Between(0, 1) == 0) {
    c.target = KeepTokens(1 + random.Between(0, c.length - 1));
  } else {
    c.target.ratio =
        *KeepRatio::FromDouble((1 + random.Between(0, 98)) / 100.0);
  }
  const int variety = 1 << random.Between(0, 7);
  c.offsets = {0};
  for (int head = 0; head < c.num_layers * c.num_heads; ++head) {
    const int factor = 1 + random.Between(0, 2);
    for (int i = 0; i < c.length; ++i) {
      c.positions.push_back(i);
      c.scores.push_back(0.25f * static_cast<float>(factor) *
                         static_cast<float>(random.Between(0, variety - 1)));
      c.norms.push_back(static_cast<float>(random.Between(0, 6)));
      if (c.policy.scorer.kind == ScorerKind::kSnapKv &&
          i >= c.length - c.policy.scorer.window) {
        c.scores.back() = kInfinity;
      }
    }
    c.offsets.push_back(static_cast<int64_t>(c.positions.size()));
  }
  return c;
}

void ExpectSame(const Case& c) {
  const KeepSets kept =
      SelectParity({c.policy, c.target, c.shape(), c.range()}, c.view(), {});
  size_t index = 0;
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const auto expected = c.policy.parity == Parity::kReleased
                              ? NaiveReleased(c, layer)
                              : NaiveKvPress(c, layer);
    for (const std::vector<int32_t>& positions : expected) {
      const std::vector<int32_t> got(
          kept.ranks.begin() + kept.offsets[index],
          kept.ranks.begin() + kept.offsets[index + 1]);
      ASSERT_EQ(got, positions) << "head " << index;
      ++index;
    }
  }
  EXPECT_EQ(kept.offsets.size(), index + 1);
}

class ParityTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ParityTest, SelectsAsTheNaiveProgram) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ExpectSame(RandomParityCase(GetParam(), seed));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, ParityTest,
    ::testing::Values(
        "external | uniform | topk | round(token) | parity(kvpress)",
        "external | uniform | critical | round(token) | parity(kvpress)",
        "external | adakv(mode=floor) | topk | round(token) | parity(kvpress)",
        "external | adakv(mode=floor) | critical | round(token) | "
        "parity(kvpress)",
        "snapkv(window=6) | uniform | topk | round(token) | parity(kvpress)",
        "snapkv(window=6) | uniform | critical | round(token) | "
        "parity(kvpress)",
        "snapkv(window=6) | adakv(mode=floor) | topk | round(token) | "
        "parity(kvpress)",
        "snapkv(window=6) | adakv(mode=floor) | critical | round(token) | "
        "parity(kvpress)",
        "snapkv(window=6) | adakv | topk | round(token) | parity(released)",
        "snapkv(window=6) | adakv | critical | round(token) | "
        "parity(released)",
        "snapkv(window=6) | pyramid(formula=kvpress) | topk | round(token) | "
        "parity(kvpress)",
        "snapkv(window=6) | pyramid | topk | round(token) | parity(released)",
        "snapkv(window=6) | pyramid | critical | round(token) | "
        "parity(released)",
        "snapkv(window=6) | pyramid(formula=factory) | topk | round(token) | "
        "parity(released)",
        "snapkv(window=6) | ada_pyramid | topk | round(token) | "
        "parity(released)",
        "snapkv(window=6) | ada_pyramid | critical | round(token) | "
        "parity(released)"));

// One layer, one head, `length` entries without scores of their own.
Case Plain(const std::string& policy, int length) {
  Case c;
  c.policy = *ParseParityPolicy(policy);
  c.length = length;
  c.offsets = {0, length};
  c.positions.resize(length);
  std::iota(c.positions.begin(), c.positions.end(), 0);
  return c;
}

std::vector<int32_t> Kept(const Case& c,
                          const std::vector<int32_t>& external = {}) {
  return SelectParity({c.policy, c.target, c.shape(), c.range()}, c.view(),
                      external)
      .ranks;
}

TEST(ParityScoresTest, WindowIsAboveTheLayersBest) {
  Case c;
  c.policy = *ParseParityPolicy(
      "snapkv(window=2) | uniform | topk | round(token) | parity(kvpress)");
  c.num_layers = 2;
  c.num_heads = 2;
  c.length = 4;
  c.offsets = {0, 4, 8, 12, 16};
  for (int head = 0; head < 4; ++head) {
    for (int i = 0; i < 4; ++i) c.positions.push_back(i);
  }
  c.scores = {1,  2,  kInfinity, kInfinity, 5,  3,  kInfinity, kInfinity,
              -4, -7, kInfinity, kInfinity, -9, -8, kInfinity, kInfinity};
  EXPECT_THAT(
      ParityScores({c.policy, c.target, c.shape(), c.range()}, c.view()),
      ElementsAre(1, 2, 6, 6, 5, 3, 6, 6, -4, -7, -3, -3, -9, -8, -3, -3));
  // Ties inside the window: the oldest stay, not the most recent.
  c.target = KeepTokens(1);
  EXPECT_THAT(Kept(c), ElementsAre(2, 2, 2, 2));
}

TEST(ParityScoresTest, SinksAreAboveTheLayersBest) {
  Case c = Plain(
      "expected_attention(n_sink=1) | uniform | topk | round(token) | "
      "parity(kvpress)",
      3);
  c.scores = {kInfinity, 0.5f, 0.25f};
  EXPECT_THAT(
      ParityScores({c.policy, c.target, c.shape(), c.range()}, c.view()),
      ElementsAre(1.5f, 0.5f, 0.25f));
}

TEST(ParityScoresTest, ExternalScoresAreLeftAlone) {
  Case c =
      Plain("external | uniform | topk | round(token) | parity(kvpress)", 3);
  c.scores = {kInfinity, 0.5f, -kInfinity};
  EXPECT_THAT(
      ParityScores({c.policy, c.target, c.shape(), c.range()}, c.view()),
      ElementsAre(kInfinity, 0.5f, -kInfinity));
}

TEST(ParityScoresTest, StreamingKeepsSinksAndTheLast) {
  Case c = Plain(
      "streaming(sinks=2) | uniform | topk | round(token) | "
      "parity(kvpress)",
      8);
  c.target = KeepTokens(5);
  EXPECT_THAT(Kept(c), ElementsAre(0, 1, 5, 6, 7));
  // Fewer than the sinks: the first.
  c.target.tokens = 1;
  EXPECT_THAT(Kept(c), ElementsAre(0));
}

TEST(ParitySelectTest, CountsNaNAndKeepsIt) {
  Case c =
      Plain("external | uniform | topk | round(token) | parity(kvpress)", 3);
  c.scores = {5.0f, std::nanf(""), kInfinity};
  c.target = KeepTokens(1);
  const KeepSets kept =
      SelectParity({c.policy, c.target, c.shape(), c.range()}, c.view(), {});
  EXPECT_THAT(kept.ranks, ElementsAre(1));
  EXPECT_EQ(kept.num_nan, 1);
}

TEST(ParitySelectTest, HeadKvKeepsTheWindowBeside) {
  Case c = Plain(
      "snapkv(window=2) | headkv(profile=x) | topk | round(token) | "
      "parity(released)",
      6);
  c.scores = {1, 4, 3, 2, kInfinity, kInfinity};
  EXPECT_THAT(Kept(c, {4}), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(Kept(c, {2}), ElementsAre(4, 5));
  EXPECT_THAT(Kept(c, {0}), ElementsAre(4, 5));
  EXPECT_THAT(Kept(c, {99}), ElementsAre(0, 1, 2, 3, 4, 5));
  // Nothing but the window.
  c.policy.scorer.window = 6;
  EXPECT_THAT(Kept(c, {1}), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(ParitySelectTest, LuKvOfKvPressForcesTheFirstFourAndTheLast) {
  Case c = Plain(
      "snapkv(window=2) | lukv(profile=x) | topk | round(token) | "
      "parity(kvpress)",
      9);
  c.scores = {1, 9, 3, 2, 5, 6, 7, kInfinity, kInfinity};
  // The window is 10, the forced are 11.
  EXPECT_THAT(
      ParityScores({c.policy, c.target, c.shape(), c.range()}, c.view()),
      ElementsAre(11, 11, 11, 11, 5, 6, 7, 10, 11));
  EXPECT_THAT(Kept(c, {1}), ElementsAre(0));
  EXPECT_THAT(Kept(c, {5}), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(Kept(c, {7}), ElementsAre(0, 1, 2, 3, 6, 7, 8));
  // The paper's budgets leave the scorer's window where it is.
  c.policy.parity = Parity::kReleased;
  EXPECT_THAT(Kept(c, {3}), ElementsAre(1, 7, 8));
  EXPECT_THAT(Kept(c, {1}), ElementsAre(7));
  EXPECT_THAT(Kept(c, {0}), ElementsAre());
  // Shorter than what is forced.
  c = Plain(
      "external | lukv(profile=x) | topk | round(token) | parity(kvpress)", 3);
  c.scores = {1, 3, 2};
  EXPECT_THAT(Kept(c, {2}), ElementsAre(0, 1));
}

}  // namespace
}  // namespace blockmgr
