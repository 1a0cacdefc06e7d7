// Which prefixes a waiting request is offered. How matches are found is tested
// with BlockManager, compressed prefixes with shared_compression_test.cc, and
// that accumulated scores take none with eviction_requests_test.cc.
#include "scheduler/prefix_finder.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

class PrefixHitTest : public testing::Test {
 protected:
  PrefixHitTest() : driver_(SmallLayout(2, 60), Options()) {
    Submit(&driver_, MakeRequest("first", 16, 1));
    driver_.Drain();
  }

  static SchedulerOptions Options() { return CachingOptions(); }
  int32_t CountCachedTokens(Request request) {
    const RequestId id = Submit(&driver_, std::move(request));
    driver_.Drain();
    return driver_.served(id).finish->num_cached_tokens;
  }

  SchedulerDriver driver_;
};

TEST_F(PrefixHitTest, LeavesAtLeastOneTokenToCompute) {
  EXPECT_EQ(CountCachedTokens(MakeRequest("a", 1, 1)), 0);
  EXPECT_EQ(CountCachedTokens(MakeRequest("b", 2, 1)), 0);
  EXPECT_EQ(CountCachedTokens(MakeRequest("c", 3, 1)), 2);
  EXPECT_EQ(CountCachedTokens(MakeRequest("d", 8, 1)), 6);
  EXPECT_EQ(CountCachedTokens(MakeRequest("e", 9, 1)), 8);
  EXPECT_EQ(CountCachedTokens(MakeRequest("f", 16, 1)), 14);
  // Here the cache ends.
  EXPECT_EQ(CountCachedTokens(MakeRequest("g", 40, 1)), 16);
  EXPECT_EQ(CountCachedTokens(MakeRequest("h", 16, 1, 3)), 0);
}

TEST_F(PrefixHitTest, LeavesTheObservationWindowToCompute) {
  Request request = MakeRequest("a", 12, 4);
  request.eviction = SnapKv(3, 4);
  EXPECT_EQ(CountCachedTokens(request), 8);  // not 10 of 12 - 3
  request.id = "b";
  request.eviction = SnapKv(4, 4);
  EXPECT_EQ(CountCachedTokens(request), 8);
  request.id = "c";
  request.eviction = SnapKv(5, 6);
  EXPECT_EQ(CountCachedTokens(request), 6);
  request.id = "d";
  request.eviction = Recency(4);
  EXPECT_EQ(CountCachedTokens(request), 10);
}

TEST_F(PrefixHitTest, CompressedPastsAreNotPublished) {
  Request request = MakeRequest("a", 13, 12, 5);
  request.eviction = Recency(4);
  const RequestId id = Submit(&driver_, request);
  driver_.Drain();
  // The prompt was computed before the eviction, the outputs after it.
  Request longer = request;
  longer.id = "b";
  longer.eviction = {};
  const std::vector<int32_t>& outputs = driver_.served(id).outputs;
  longer.prompt.insert(longer.prompt.end(), outputs.begin(), outputs.end());
  EXPECT_EQ(CountCachedTokens(longer), 12);
}

}  // namespace
}  // namespace blockmgr
