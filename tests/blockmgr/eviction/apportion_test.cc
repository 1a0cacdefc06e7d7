#include "blockmgr/eviction/apportion.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/eviction/naive_planner.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> Shares(int64_t total, const std::vector<Claim>& claims) {
  return Apportion(total, claims);
}

TEST(ApportionTest, NobodyGetsNothing) {
  EXPECT_THAT(Shares(7, {}), IsEmpty());
}

TEST(ApportionTest, IsExactForTheLargestWeights) {
  // Weights near 2^62, one apart: doubles could not tell them from each other.
  constexpr int64_t kLarge = int64_t{1} << 62;
  constexpr int64_t kMany = int64_t{1} << 39;
  EXPECT_THAT(Shares(1, {{kLarge, 0, kMany}, {kLarge + 1, 0, kMany}}),
              ElementsAre(0, 1));
  EXPECT_THAT(Shares(kMany, {{kLarge, 0, kMany}, {kLarge, 0, kMany}}),
              ElementsAre(kMany / 2, kMany / 2));
}

TEST(ApportionTest, AgreesWithTheNaiveSearch) {
  for (uint64_t seed = 0; seed < 100'000; ++seed) {
    std::mt19937_64 random(SplitMix64(seed));
    const auto below = [&](uint64_t n) {
      return static_cast<int64_t>(random() % n);
    };
    std::vector<Claim> claims(1 + below(6));
    std::vector<int64_t> weights, low, high;
    int64_t sum_low = 0;
    const bool bounded = below(2) == 0;
    for (Claim& claim : claims) {
      claim.weight = below(3) == 0 ? 0 : below(20);
      claim.min = bounded ? below(4) : 0;
      claim.max = claim.min + (bounded ? below(8) : 1000);
      weights.push_back(claim.weight);
      low.push_back(claim.min);
      high.push_back(claim.max);
      sum_low += claim.min;
    }
    const int64_t total = sum_low + below(60);
    ASSERT_EQ(Apportion(total, claims),
              ApportionNaively(total, weights, low, high))
        << "seed " << seed << " total " << total << " weights "
        << absl::StrJoin(weights, " ") << " low " << absl::StrJoin(low, " ")
        << " high " << absl::StrJoin(high, " ");
  }
}

TEST(ApportionDeathTest, AbortsIfTheMinimaExceedTheTotal) {
  EXPECT_DEATH(Shares(1, {{1, 1, 2}, {1, 1, 2}}), "check failed");
}

// Small counterexamples, should there be any: rapidcheck shrinks them.
TEST(ApportionTest, HoldsWhatItsHeaderPromises) {
  const bool holds = rc::check("bounds, total and proportion", [] {
    std::vector<Claim> claims;
    int64_t least = 0;
    int64_t most = 0;
    for (int n = *rc::gen::inRange(1, 9); n > 0; --n) {
      const auto min = *rc::gen::inRange<int64_t>(0, 20);
      claims.push_back({.weight = *rc::gen::inRange<int64_t>(0, 1000),
                        .min = min,
                        .max = min + *rc::gen::inRange<int64_t>(0, 50)});
      least += claims.back().min;
      most += claims.back().max;
    }
    const int64_t total = least + *rc::gen::inRange<int64_t>(0, 300);
    const std::vector<int64_t> shares = Apportion(total, claims);
    RC_ASSERT(shares.size() == claims.size());
    RC_ASSERT(std::accumulate(shares.begin(), shares.end(), int64_t{0}) ==
              std::min(total, most));
    for (size_t i = 0; i < claims.size(); ++i) {
      RC_ASSERT(shares[i] >= claims[i].min);
      RC_ASSERT(shares[i] <= claims[i].max);
      // Who is bound by neither limit has its quota, but for one unit.
      for (size_t j = 0; j < i; ++j) {
        const auto is_free = [&](size_t k) {
          return shares[k] > claims[k].min && shares[k] < claims[k].max;
        };
        if (!is_free(i) || !is_free(j)) continue;
        const int64_t difference =
            shares[i] * claims[j].weight - shares[j] * claims[i].weight;
        RC_ASSERT(std::abs(difference) <= claims[i].weight + claims[j].weight);
      }
    }
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace blockmgr
