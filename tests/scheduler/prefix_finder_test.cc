// Which prefixes a waiting request is offered. How matches are found is tested
// with BlockManager, compressed prefixes with shared_compression_test.cc.
#include "scheduler/prefix_finder.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

class PrefixFinderTest : public ::testing::Test {
 protected:
  PrefixFinderTest() {
    request_.tokens.resize(13);
    std::iota(request_.tokens.begin(), request_.tokens.end(), 1);
    request_.chain.Extend(request_.tokens, 4);
  }
  // Another sequence computes the first num_tokens tokens.
  void Compute(int32_t num_tokens) {
    const SequenceSlot slot = manager_.Open(request_.chain, PrefixMatch{});
    const std::vector<TokenDemand> demands = {{slot, num_tokens}};
    std::vector<int64_t> offsets = {0};
    std::vector<BlockId> blocks;
    ASSERT_TRUE(manager_.Reserve(demands, &offsets, &blocks));
    manager_.Dispatch(StepId{1});
    manager_.Acknowledge(StepId{1});
    manager_.Commit(slot, num_tokens, request_.tokens, request_.chain);
    manager_.Close(slot);
  }

  BlockManager manager_{SmallLayout(4, 32), 4, true};
  SchedulerOptions options_;
  PrefixFinder finder_{manager_, options_};
  RequestState request_;
};

TEST_F(PrefixFinderTest, FindsWhatWasComputed) {
  EXPECT_EQ(finder_.Find(request_, request_.eviction).num_tokens, 0);
  Compute(8);
  EXPECT_EQ(finder_.Find(request_, request_.eviction).num_tokens, 8);
}

TEST_F(PrefixFinderTest, LeavesTheLastTokenToCompute) {
  Compute(12);
  EXPECT_EQ(finder_.Find(request_, request_.eviction).num_tokens, 12);
  request_.tokens.resize(12);
  EXPECT_EQ(finder_.Find(request_, request_.eviction).num_tokens, 8);
}

TEST_F(PrefixFinderTest, FindsNothingWhereScoresAreAccumulated) {
  Compute(12);
  EvictionPlan plan;
  plan.scorer_state = ScorerState::kQueryStatistics;
  EXPECT_EQ(finder_.Find(request_, plan).num_tokens, 0);
}

TEST_F(PrefixFinderTest, LeavesObservationWindowsToCompute) {
  Compute(12);
  EvictionPlan plan;
  CompressionPoint& point = plan.compressions.emplace_back();
  point.length = 12;
  point.policy.scorer.kind = ScorerKind::kSnapKv;
  point.policy.scorer.window = 3;
  const int32_t window = point.policy.query_window();
  EXPECT_EQ(finder_.Find(request_, plan).num_tokens, (12 - window) / 4 * 4);
}

}  // namespace
}  // namespace blockmgr
