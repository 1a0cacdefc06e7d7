#include "scheduler/chunking.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr {
namespace {

int32_t Share(int32_t budget, int32_t unit, std::vector<int32_t> gaps) {
  return EqualShare(budget, unit, &gaps);
}

TEST(EqualShareTest, DividesTheBudgetInWholeUnits) {
  EXPECT_EQ(Share(100, 1, {200, 300}), 50);
  EXPECT_EQ(Share(100, 16, {200, 300}), 48);
  EXPECT_EQ(Share(99, 1, {200, 300, 400}), 33);
  // A request that needs less than its share leaves the rest to others.
  EXPECT_EQ(Share(100, 1, {400, 20, 10, 300}), 35);
  // When all fit, the largest gap.
  EXPECT_EQ(Share(100, 16, {10, 40}), 40);
  EXPECT_EQ(Share(100, 16, {3}), 16);
  // At least one unit.
  for (const int32_t budget : {20, 0, -5}) {
    EXPECT_EQ(Share(budget, 16, {100, 100}), 16) << budget;
  }
  EXPECT_EQ(Share(100, 16, {}), 16);
}

// Handing out one token after the other to whoever has least gives as much.
TEST(EqualShareTest, AgreesWithHandingOutToken) {
  uint64_t random = 7;
  const auto below = [&random](uint64_t n) {
    random = SplitMix64(random);
    return static_cast<int32_t>(random % n);
  };
  for (int32_t round = 0; round < 500; ++round) {
    std::vector<int32_t> gaps(1 + below(6));
    for (int32_t& gap : gaps) gap = 1 + below(60);
    const int32_t budget = below(200);
    std::vector<int32_t> taken(gaps.size(), 0);
    bool progress = true;
    int32_t left = budget;
    while (progress) {
      progress = false;
      // A round that cannot serve everybody who lacks tokens serves nobody.
      const auto lacking =
          std::ranges::count_if(gaps, [](int32_t gap) { return gap > 0; });
      if (lacking == 0 || lacking > left) break;
      for (size_t i = 0; i < gaps.size(); ++i) {
        if (gaps[i] == 0) continue;
        --gaps[i];
        ++taken[i];
        --left;
        progress = true;
      }
    }
    std::vector<int32_t> wanted(gaps.size());
    for (size_t i = 0; i < gaps.size(); ++i) wanted[i] = gaps[i] + taken[i];
    EXPECT_EQ(Share(budget, 1, wanted),
              std::max(1, *std::ranges::max_element(taken)))
        << "round " << round;
  }
}

struct ChunkCase {
  const char* what;
  int32_t num_computed;
  int32_t num_known;
  int32_t token_budget;
  int32_t max_chunk;
  int32_t share;
  int32_t expected;
};

// A point after 20 tokens, if there is one, whose policy observes the last 6
// queries.
void ExpectTokensToRun(const std::vector<ChunkCase>& cases, bool has_point) {
  for (const ChunkCase& c : cases) {
    SCOPED_TRACE(c.what);
    RequestState request;
    request.tokens.resize(c.num_known);
    request.num_prompt = c.num_known;
    request.max_tokens = 5;
    request.max_chunk = c.max_chunk;
    if (has_point) {
      CompressionPoint& point = request.eviction.compressions.emplace_back();
      point.length = 20;
      point.policy.scorer.kind = ScorerKind::kSnapKv;
      point.policy.scorer.window = point.policy.scorer.obs_window = 6;
      ASSERT_EQ(point.policy.query_window(), 6);
    }
    const auto tokens_to_run = [&] {
      return CountTokensToRun(request, request.eviction,
                              {.num_computed = c.num_computed}, c.token_budget,
                              c.share);
    };
    EXPECT_EQ(tokens_to_run(), c.expected);
    if (!has_point || c.num_computed + c.expected != 20) continue;
    request.order_in_flight = true;
    EXPECT_EQ(tokens_to_run(), 0);
  }
}

TEST(TokensToRunTest, IsWhatIsLeftWithinTheLimits) {
  ExpectTokensToRun({{"the whole prompt", 0, 30, 100, 100, INT32_MAX, 30},
                     {"the rest", 20, 30, 100, 100, INT32_MAX, 10},
                     {"the step has no more", 0, 30, 8, 100, INT32_MAX, 8},
                     {"its chunks are smaller", 0, 30, 100, 7, INT32_MAX, 7},
                     {"the others get shares", 0, 30, 100, 100, 12, 12},
                     {"all is computed", 30, 30, 100, 100, INT32_MAX, 0}},
                    false);
}

TEST(TokensToRunTest, AStepEndsAtThePointAndHoldsItsWindow) {
  ExpectTokensToRun(
      {{"ends at the point", 0, 30, 100, 100, INT32_MAX, 20},
       {"leaves the window whole", 0, 30, 16, 100, INT32_MAX, 14},
       {"the window alone", 14, 30, 16, 100, INT32_MAX, 6},
       {"no share cuts the window", 14, 30, 16, 100, 4, 6},
       {"too few for the window", 14, 30, 4, 100, INT32_MAX, 0},
       {"the prompt ends before it", 0, 19, 100, 100, INT32_MAX, 19}},
      true);
}

}  // namespace
}  // namespace blockmgr
