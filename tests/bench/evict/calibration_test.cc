#include "bench/evict/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Calibration RandomCalibration(int32_t num_queries, int32_t length,
                              uint64_t seed) {
  std::mt19937_64 random(SplitMix64(seed));
  Calibration calibration{.num_queries = num_queries,
                          .num_layers = 2,
                          .num_heads = 3,
                          .length = length,
                          .oracle = {},
                          .scores = {}};
  const int32_t num_scores = 6 * length;
  for (int32_t i = 0; i < num_queries * num_scores; ++i) {
    const int32_t head = i / length % 6;
    calibration.oracle.push_back(static_cast<float>(
        (1 + head) * static_cast<double>(random() % 1'000'000)));
  }
  for (int32_t i = 0; i < num_scores; ++i) {
    calibration.scores.push_back(static_cast<float>(random() % 1000));
  }
  return calibration;
}

absl::StatusOr<LuKvProfile> Solve(const Calibration& context,
                                  const CalibrationOptions& options) {
  return SolveProfile(std::span(&context, 1), options);
}

// Of every rho of the profile, the fraction that head `head` evicts.
std::vector<float> Rates(const LuKvProfile& profile, size_t head) {
  std::vector<float> rates;
  const size_t num_heads = profile.r.size() / profile.rho.size();
  for (size_t row = 0; row < profile.rho.size(); ++row) {
    rates.push_back(profile.r[row * num_heads + head]);
  }
  return rates;
}

TEST(CalibrationTest, KeepOrderPutsSinksAndWindowFirst) {
  EXPECT_THAT(KeepOrder(std::vector<float>{1, 5, 2, 9, 2, 3}, 1, 2),
              ElementsAre(0, 4, 5, 3, 1, 2));
  EXPECT_THAT(KeepOrder(std::vector<float>{1, kNan, 2, -0.0f, 0.0f, 2}, 0, 0),
              ElementsAre(1, 2, 5, 0, 3, 4));
  EXPECT_THAT(KeepOrder(std::vector<float>{1, 2}, 1, 1), ElementsAre(0, 1));
}

// When the scorer's order is the oracle's, keeping the largest importances of
// all heads is best, and a sort finds them.
TEST(CalibrationTest, PerfectScorersKeepTheLargestImportances) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Calibration calibration = RandomCalibration(1, 50, seed);
    calibration.scores = calibration.oracle;
    ASSERT_OK_AND_ASSIGN(const LuKvProfile profile,
                         Solve(calibration, {.sinks = 0,
                                             .window = 0,
                                             .unit = 1,
                                             .min_keep = 0.0,
                                             .num_steps = 10}));
    std::vector<std::pair<float, size_t>> all;  // importance, head
    for (size_t i = 0; i < calibration.oracle.size(); ++i) {
      all.emplace_back(calibration.oracle[i], i / 50);
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    ASSERT_EQ(profile.rho.size(), 11u);
    for (size_t row = 0; row <= 10; ++row) {
      std::vector<int> kept(6);
      for (size_t i = 0; i < 300 - 30 * row; ++i) ++kept[all[i].second];
      EXPECT_FLOAT_EQ(profile.rho[row], static_cast<float>(row) / 10.0f);
      for (size_t head = 0; head < 6; ++head) {
        EXPECT_FLOAT_EQ(profile.r[row * 6 + head],
                        static_cast<float>(50 - kept[head]) / 50.0f)
            << "seed " << seed << " row " << row << " head " << head;
      }
    }
  }
}

TEST(CalibrationTest, AveragesOverQueries) {
  const CalibrationOptions options{.sinks = 2, .window = 3};
  const Calibration both = RandomCalibration(2, 80, 7);
  Calibration one = both;
  one.num_queries = 1;
  std::vector<LuKvProfile> singles;
  for (const ptrdiff_t query : {0, 1}) {
    one.oracle.assign(both.oracle.begin() + query * 480,
                      both.oracle.begin() + (query + 1) * 480);
    ASSERT_OK_AND_ASSIGN(singles.emplace_back(), Solve(one, options));
  }
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, Solve(both, options));
  ASSERT_EQ(profile.r.size(), singles[0].r.size());
  ASSERT_EQ(profile.r.size(), singles[1].r.size());
  for (size_t i = 0; i < profile.r.size(); ++i) {
    EXPECT_NEAR(profile.r[i], (singles[0].r[i] + singles[1].r[i]) / 2, 1e-6);
  }
  EXPECT_EQ(profile.num_queries, 2);
  EXPECT_EQ(profile.calibration_length, 80);
  EXPECT_EQ(profile.sinks, 2);
  EXPECT_EQ(profile.window, 3);
  EXPECT_EQ(profile.min_keep, 0.01f);
}

// A query counts the same whichever context it is about.
TEST(CalibrationTest, AveragesOverTheQueriesOfAllContexts) {
  const CalibrationOptions options{.sinks = 1, .window = 2};
  const std::vector<Calibration> contexts = {RandomCalibration(1, 80, 3),
                                             RandomCalibration(3, 80, 4)};
  ASSERT_OK_AND_ASSIGN(const LuKvProfile first, Solve(contexts[0], options));
  ASSERT_OK_AND_ASSIGN(const LuKvProfile second, Solve(contexts[1], options));
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile,
                       SolveProfile(contexts, options));
  EXPECT_EQ(profile.num_queries, 4);
  ASSERT_EQ(profile.r.size(), first.r.size());
  ASSERT_EQ(profile.r.size(), second.r.size());
  for (size_t i = 0; i < profile.r.size(); ++i) {
    EXPECT_NEAR(profile.r[i], (first.r[i] + 3 * second.r[i]) / 4, 1e-6);
  }
}

TEST(CalibrationTest, ContextsAreOfOneShape) {
  EXPECT_THAT(SolveProfile({}, {}), IsInvalid("contexts: expected at least 1"));
  std::vector<Calibration> contexts = {RandomCalibration(1, 30, 1),
                                       RandomCalibration(1, 31, 1)};
  EXPECT_THAT(SolveProfile(contexts, {}),
              IsInvalid("context 1: expected 2, 3, 30, got 2, 3, 31"));
  contexts[1].scores.pop_back();
  EXPECT_THAT(SolveProfile(contexts, {}), IsInvalid("scores: expected 186"));
}

TEST(CalibrationTest, ProfilesAreValidAndKeepTheMinimum) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    const auto length = static_cast<int32_t>(20 + random() % 100);
    const Calibration calibration = RandomCalibration(3, length, seed);
    CalibrationOptions options;
    options.sinks = static_cast<int32_t>(random() % 5);
    options.window = static_cast<int32_t>(random() % 10);
    options.unit = std::vector<int32_t>{1, 3, 8, 16}[random() % 4];
    options.min_keep = static_cast<double>(random() % 30) / 100.0;
    options.num_steps = static_cast<int32_t>(1 + random() % 200);
    ASSERT_OK_AND_ASSIGN(const LuKvProfile profile,
                         Solve(calibration, options));
    ASSERT_THAT(profile.Validate(), IsOk()) << "seed " << seed;
    const double min_kept = std::max<double>(options.sinks + options.window,
                                             options.min_keep * length);
    const size_t last = profile.rho.size() - 1;
    for (size_t i = 0; i < last * 6; ++i) {
      ASSERT_GE((1.0 - profile.r[i]) * length, min_kept - 1e-4)
          << "seed " << seed << " index " << i;
    }
    for (size_t row = 0; row <= last; ++row) {
      const auto begin = profile.r.begin() + static_cast<ptrdiff_t>(row) * 6;
      EXPECT_NEAR(std::accumulate(begin, begin + 6, 0.0) / 6.0,
                  profile.rho[row], 1e-6);
    }
  }
}

TEST(CalibrationTest, WholePagesAreKept) {
  const Calibration calibration = RandomCalibration(1, 64, 3);
  ASSERT_OK_AND_ASSIGN(
      const LuKvProfile profile,
      Solve(calibration, {.sinks = 1, .window = 1, .unit = 16}));
  // 6 heads of 4 pages, of which each keeps 1 at least, and nothing at rho 1.
  EXPECT_EQ(profile.rho.size(), 20u);
  for (const float rate : profile.r) {
    EXPECT_EQ(rate * 4.0f, std::round(rate * 4.0f));
  }
}

TEST(CalibrationTest, HeadsThatAreUsedMoreKeepMore) {
  Calibration calibration = RandomCalibration(1, 100, 1);
  // Head 0 of layer 0 is never used.
  std::fill_n(calibration.oracle.begin(), 100, 0.0f);
  ASSERT_OK_AND_ASSIGN(const LuKvProfile profile,
                       Solve(calibration, {.sinks = 0,
                                           .window = 0,
                                           .unit = 1,
                                           .min_keep = 0.0,
                                           .num_steps = 12}));
  // It loses all of its entries before others lose any but useless ones.
  EXPECT_GT(Rates(profile, 0)[2], 0.9f);
  EXPECT_LT(Rates(profile, 5)[2], 0.1f);
}

// The order is that of a scorer that knows the importances.
TEST(CalibrationTest, OracleOrderIsThatOfAPerfectScorer) {
  for (const int32_t unit : {1, 4}) {
    CalibrationOptions options{.sinks = 2, .window = 3, .unit = unit};
    const Calibration random = RandomCalibration(1, 50, 3);
    Calibration perfect = random;
    perfect.scores = perfect.oracle;
    ASSERT_OK_AND_ASSIGN(const LuKvProfile expected, Solve(perfect, options));
    options.oracle_order = true;
    ASSERT_OK_AND_ASSIGN(const LuKvProfile profile, Solve(random, options));
    EXPECT_EQ(profile.r, expected.r) << "unit " << unit;
    EXPECT_EQ(profile.rho, expected.rho);
  }
}

// One head uses its second entry most, so its first one alone is worth little.
TEST(CalibrationTest, SolverSharesAreOfTheBestBudgets) {
  const Calibration calibration{.num_queries = 1,
                                .num_layers = 1,
                                .num_heads = 2,
                                .length = 2,
                                .oracle = {1, 9, 4, 0},
                                .scores = {2, 1, 2, 1}};
  CalibrationOptions options{.sinks = 0, .min_keep = 0.0};
  const auto share = [&](double keep) {
    const absl::StatusOr<std::vector<double>> shares =
        SolverShares(std::span(&calibration, 1), options, keep);
    return shares.ok() ? shares->front() : -1.0;
  };
  EXPECT_EQ(share(0.25), 0.25);  // 1 of 4
  EXPECT_EQ(share(0.5), 1.0);
  options.oracle_order = true;
  EXPECT_EQ(share(0.25), 1.0);
  options.min_keep = 0.5;
  EXPECT_THAT(SolverShares(std::span(&calibration, 1), options, 0.25),
              IsInvalid("2 to 4, got 1"));
}

TEST(CalibrationTest, SolverSharesOfAPerfectScorerAreAll) {
  CalibrationOptions options{.sinks = 1, .window = 2};
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Calibration random = RandomCalibration(3, 40, seed);
    for (const bool oracle_order : {false, true}) {
      options.oracle_order = oracle_order;
      ASSERT_OK_AND_ASSIGN(const std::vector<double> shares,
                           SolverShares(std::span(&random, 1), options, 0.3));
      ASSERT_EQ(shares.size(), 3u);
      for (const double share : shares) {
        // Sums are added up in other orders.
        EXPECT_LE(share, 1.0 + 1e-9) << "seed " << seed;
        EXPECT_GT(share, oracle_order ? 1.0 - 1e-9 : 0.5) << "seed " << seed;
      }
    }
  }
}

// Whatever the budgets keep of nothing is all of it.
TEST(CalibrationTest, SharesOfAQueryThatUsesNothingAreOne) {
  Calibration calibration = RandomCalibration(2, 30, 1);
  std::fill_n(calibration.oracle.begin(), 180, 0.0f);
  ASSERT_OK_AND_ASSIGN(const std::vector<double> shares,
                       SolverShares(std::span(&calibration, 1), {}, 0.5));
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0], 1.0);
}

TEST(CalibrationTest, NamesWhatIsWrong) {
  const auto input_error = [](auto change) {
    Calibration calibration = RandomCalibration(1, 30, 1);
    change(calibration);
    return Solve(calibration, {}).status();
  };
  using C = Calibration;
  EXPECT_THAT(input_error([](C& c) { c.num_queries = 0; }),
              IsInvalid("queries"));
  EXPECT_THAT(input_error([](C& c) { c.num_layers = 0; }), IsInvalid("layers"));
  EXPECT_THAT(input_error([](C& c) { c.scores.pop_back(); }),
              IsInvalid("scores: expected 180"));
  EXPECT_THAT(input_error([](C& c) { c.oracle.pop_back(); }),
              IsInvalid("oracle: expected 180"));
  EXPECT_THAT(input_error([](C& c) { c.oracle[3] = kNan; }),
              IsInvalid("oracle[3]"));
  EXPECT_THAT(input_error([](C& c) { c.oracle[4] = -1.0f; }),
              IsInvalid("oracle[4]"));
  EXPECT_THAT(input_error([](C& c) { std::ranges::fill(c.oracle, 0.0f); }),
              IsInvalid("oracle: expected a number above 0, got none"));
  const auto option_error = [](const CalibrationOptions& options) {
    return Solve(RandomCalibration(1, 30, 1), options).status();
  };
  EXPECT_THAT(option_error({.sinks = -1}), IsInvalid("sinks"));
  EXPECT_THAT(option_error({.window = -1}), IsInvalid("window"));
  EXPECT_THAT(option_error({.sinks = 20, .window = 11}),
              IsInvalid("at most 30"));
  EXPECT_THAT(option_error({.unit = 0}), IsInvalid("unit"));
  EXPECT_THAT(option_error({.unit = 31}), IsInvalid("unit"));
  EXPECT_THAT(option_error({.min_keep = 1.5}), IsInvalid("min_keep"));
  EXPECT_THAT(option_error({.num_steps = 0}), IsInvalid("steps"));
}

}  // namespace
}  // namespace blockmgr
