// Evictions that the engine refuses: who goes on without, and who cannot.

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInternal = absl::StatusCode::kInternal;

std::vector<int32_t> Lengths(const std::vector<CanaryEviction>& evictions) {
  std::vector<int32_t> lengths;
  lengths.reserve(evictions.size());
  for (const CanaryEviction& eviction : evictions) {
    lengths.push_back(eviction.length);
  }
  return lengths;
}

class RefusalTest : public testing::TestWithParam<int32_t> {
 protected:
  static SchedulerOptions Options() { return PlainOptions(GetParam()); }
  // Runs until the request has been refused as many evictions.
  static void RunUntilRefused(SchedulerDriver* driver, uint64_t num_refused) {
    while (driver->ok() &&
           driver->scheduler().stats().num_refused_evictions < num_refused &&
           driver->scheduler().has_unfinished_requests()) {
      while (driver->Issue()) continue;
      driver->Answer();
    }
    EXPECT_EQ(driver->scheduler().stats().num_refused_evictions, num_refused);
  }
  // Has the engine refuse orders until it has refused the first one.
  static void RefuseOne(SchedulerDriver* driver) {
    driver->engine().RefuseOrders(true);
    RunUntilRefused(driver, 1);
    driver->engine().RefuseOrders(false);
  }
  static void ExpectComplete(SchedulerDriver* driver) {
    driver->Drain();
    for (const auto& [id, served] : driver->all()) {
      ASSERT_TRUE(served.finish.has_value());
      EXPECT_EQ(served.finish->reason, FinishReason::kLength)
          << served.finish->status;
    }
    driver->CheckQuiescent();
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, RefusalTest, testing::Values(1, 4));

TEST_P(RefusalTest, ARequestGoesOnWithoutItsEviction) {
  SchedulerDriver driver(SmallLayout(1, 60), Options(), {.refuse_one_in = 1});
  Request request = MakeRequest("a", 8, 9);
  request.eviction = Recency(3);
  const RequestId id = Submit(&driver, request);
  ExpectComplete(&driver);
  ASSERT_THAT(driver.served(id).evictions, SizeIs(1));
  EXPECT_THAT(driver.served(id).evictions[0].status,
              StatusIs(kInternal, HasSubstr("at random")));
  EXPECT_EQ(driver.scheduler().stats().num_refused_evictions, 1);
  EXPECT_EQ(driver.scheduler().stats().num_evictions, 0);
}

// What it has computed since, it has computed without.
TEST_P(RefusalTest, IsNotAskedForInARecomputation) {
  SchedulerDriver driver(SmallLayout(1, 60), Options());
  Request request = MakeRequest("a", 8, 9);
  request.eviction = Recency(3);
  const RequestId id = Submit(&driver, request);
  RefuseOne(&driver);
  driver.LoseEngine();
  ExpectComplete(&driver);
  EXPECT_THAT(driver.served(id).recorded, IsEmpty());
  EXPECT_EQ(driver.scheduler().stats().num_evictions, 0);
}

// A prompt of 20 blocks, in a pool of 12.
TEST_P(RefusalTest, WhoNeverFitsWithoutFailsWithTheEnginesReason) {
  SchedulerDriver driver(SmallLayout(2, 12), Options(), {.refuse_one_in = 1});
  Request request = MakeRequest("a", 40, 2);
  request.eviction = Recency(4, EvictionMode::kEveryChunk, 8);
  const RequestId id = Submit(&driver, request);
  const RequestId other = Submit(&driver, MakeRequest("b", 4, 3, 1));
  driver.Drain();
  const FinishEffect& finish = *driver.served(id).finish;
  EXPECT_EQ(finish.reason, FinishReason::kFailed);
  // Without those at 8 and at 16 it has 12 blocks when 24 tokens are computed;
  // without that one it would have 16 at the next.
  EXPECT_THAT(
      finish.status,
      StatusIs(kInternal,
               AllOf(HasSubstr("refused the eviction: refused at random"),
                     HasSubstr("without it the request needs 16 blocks at its "
                               "peak, the pool has 12"))));
  EXPECT_EQ(driver.served(other).finish->reason, FinishReason::kLength);
  driver.CheckQuiescent();
}

// Of 40 tokens in chunks of 8, four blocks: without one of the compressions
// twice as much comes before the next.
TEST_P(RefusalTest, TheNextChunksEvictionCoversWhatOneHasLeft) {
  SchedulerDriver driver(SmallLayout(2, 14), Options(), {.keeps_all = true});
  Request request = MakeRequest("a", 40, 2);
  request.eviction = Recency(4, EvictionMode::kEveryChunk, 8);
  const RequestId id = Submit(&driver, request);
  driver.RunUntil([&] { return !driver.served(id).recorded.empty(); });
  RefuseOne(&driver);
  driver.RunUntil([&] { return driver.served(id).recorded.size() >= 2; });
  EXPECT_THAT(Lengths(driver.served(id).recorded), ElementsAre(8, 24));
  // All over again, but for what was refused.
  driver.LoseEngine();
  ExpectComplete(&driver);
  EXPECT_THAT(Lengths(driver.served(id).recorded), ElementsAre(8, 24, 32, 40));
  EXPECT_EQ(driver.scheduler().stats().num_refused_evictions, 1);
}

TEST_P(RefusalTest, ADecodeEvictionIsTriedAgainAfterTheNextInterval) {
  SchedulerDriver driver(SmallLayout(2, 60), Options(), {.keeps_all = true});
  Request request = MakeRequest("a", 8, 25);
  request.eviction = Recency(4, EvictionMode::kDecode, 8);
  const RequestId id = Submit(&driver, request);
  driver.RunUntil([&] { return !driver.served(id).recorded.empty(); });
  RefuseOne(&driver);
  driver.RunUntil([&] { return driver.served(id).recorded.size() >= 2; });
  EXPECT_THAT(Lengths(driver.served(id).recorded), ElementsAre(8, 24));
  driver.LoseEngine();
  ExpectComplete(&driver);
  EXPECT_THAT(Lengths(driver.served(id).recorded), ElementsAre(8, 24));
}

// The last one: nothing that is listed comes behind it, and nothing lists it
// once more.
TEST_P(RefusalTest, TheLastDecodeEvictionIsNotListedAgain) {
  SchedulerDriver driver(SmallLayout(2, 60), Options(), {.keeps_all = true});
  Request request = MakeRequest("a", 8, 25);
  request.eviction = Recency(4, EvictionMode::kDecode, 8);
  const RequestId id = Submit(&driver, request);
  driver.RunUntil([&] { return driver.served(id).recorded.size() >= 2; });
  RefuseOne(&driver);
  driver.LoseEngine();
  ExpectComplete(&driver);
  EXPECT_THAT(Lengths(driver.served(id).recorded), ElementsAre(8, 16));
}

// What was carried out before may be refused in a replay.
TEST_P(RefusalTest, AReplayMayBeRefused) {
  SchedulerDriver driver(SmallLayout(1, 60), Options());
  const RequestId id = Submit(&driver, MakeRequest("a", 8, 9));
  driver.RunUntil([&] { return !driver.served(id).outputs.empty(); });
  ASSERT_OK(driver.Evict(id, RecencyCommand(3)));
  driver.RunUntil([&] { return !driver.served(id).recorded.empty(); });
  driver.LoseEngine();
  RefuseOne(&driver);
  driver.LoseEngine();
  ExpectComplete(&driver);
  EXPECT_THAT(driver.served(id).recorded, IsEmpty());
  EXPECT_EQ(driver.scheduler().stats().num_evictions, 1);
}

// A fork that waits for what its parent computes is compressed as that is, or
// by itself.
TEST_P(RefusalTest, ForksOfWhoWasRefusedGoOn) {
  for (const EvictionMode mode :
       {EvictionMode::kAfterPrefill, EvictionMode::kDecode}) {
    SchedulerDriver driver(SmallLayout(2, 60), Options(), {.keeps_all = true});
    Request request = MakeRequest("a", 16, 25);
    request.eviction = Recency(4, mode, 8);
    const RequestId id = Submit(&driver, request);
    Request fork = MakeRequest("b", 16, 25);
    fork.fork_of = "a";
    Submit(&driver, fork);
    driver.engine().RefuseOrders(true);
    RunUntilRefused(&driver, 1);
    fork.id = "c";
    Submit(&driver, fork);
    driver.RunUntil([&] { return driver.served(id).outputs.size() > 20; });
    // Its prompt ends behind all that was refused.
    fork.id = "d";
    const std::vector<int32_t>& outputs = driver.served(id).outputs;
    fork.prompt.insert(fork.prompt.end(), outputs.begin(), outputs.end());
    const RequestId late = Submit(&driver, fork);
    driver.engine().RefuseOrders(false);
    driver.RunUntil([&] { return !driver.served(late).outputs.empty(); });
    EXPECT_GT(driver.scheduler().stats().num_forks, 0);
    ExpectComplete(&driver);
  }
}

// Chunks of shared prompts: behind one that is missing nothing is published,
// and nobody waits for it.
TEST_P(RefusalTest, AShorterHistoryIsSharedWithNobody) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  options.min_prefix_wait_tokens = 2;
  SchedulerDriver driver(SmallLayout(2, 60), options, {.keeps_all = true});
  Request request = MakeRequest("a", 41, 9);
  request.eviction = Recency(4, EvictionMode::kEveryChunk, 8);
  request.eviction.share_prefix = true;
  const RequestId id = Submit(&driver, request);
  driver.RunUntil([&] { return !driver.served(id).recorded.empty(); });
  request.id = "b";
  const RequestId other = Submit(&driver, request);
  RefuseOne(&driver);
  driver.RunFullUntil([&] {
    for (const EvictionOrder& order : driver.plan().evictions) {
      if (driver.SlotOf(id) != order.slot) continue;
      EXPECT_EQ(order.region, kNoRegion);
    }
    return driver.served(id).finish.has_value();
  });
  ExpectComplete(&driver);
  EXPECT_THAT(Lengths(driver.served(id).recorded), ElementsAre(8, 24, 32, 40));
  EXPECT_THAT(Lengths(driver.served(other).recorded),
              ElementsAre(8, 16, 24, 32, 40));
}

// In place, an order takes blocks before they are published. After its refusal
// nothing behind them is published either.
TEST_P(RefusalTest, NobodyWaitsForBlocksThatARefusedOrderKeptPrivate) {
  SchedulerOptions options = Options();
  options.enable_prefix_caching = true;
  options.min_prefix_wait_tokens = 2;
  options.compaction = CompactionPreference::kInPlace;
  SchedulerDriver driver(SmallLayout(2, 200), options);
  Request request = MakeRequest("a", 161, 9);
  request.eviction = Recency(4, EvictionMode::kEveryChunk, 8);
  const RequestId id = Submit(&driver, request);
  driver.engine().RefuseOrders(true);
  RunUntilRefused(&driver, 1);
  const RequestId other = Submit(&driver, MakeRequest("b", 161, 2));
  driver.RunUntil([&] { return driver.CountTokensInPlan(other) > 0; });
  EXPECT_FALSE(driver.served(id).finish.has_value());
  ExpectComplete(&driver);
}

// Its tenant may have 15 blocks; a prompt of ten is two once it is compressed.
class RefusedQuotaTest : public RefusalTest {
 protected:
  static SchedulerOptions QuotaOptions() {
    SchedulerOptions options = Options();
    options.tenants["a"].max_blocks = 15;
    return options;
  }
  static Request Of(const std::string& id, int32_t num_prompt,
                    int32_t max_tokens, int32_t topic) {
    Request request = MakeRequest(id, num_prompt, max_tokens, topic);
    request.scope.tenant = "a";
    return request;
  }
  static int64_t Reserved(SchedulerDriver* driver) {
    return driver->scheduler().stats().tenants.front().reserved_blocks;
  }
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, RefusedQuotaTest,
                         testing::Values(1, 4));

TEST_P(RefusedQuotaTest, WhatIsNotGivenBackStaysReserved) {
  SchedulerDriver driver(SmallLayout(4, 60), QuotaOptions(),
                         {.refuse_one_in = 1});
  Request request = Of("a", 40, 8, 0);
  request.eviction = Recency(8);
  const RequestId id = Submit(&driver, request);
  driver.RunUntil([&] { return !driver.served(id).evictions.empty(); });
  // 47 positions in blocks of four.
  EXPECT_EQ(Reserved(&driver), 12);
  ExpectComplete(&driver);
  EXPECT_EQ(Reserved(&driver), 0);
}

TEST_P(RefusedQuotaTest, WhoNeedsMoreThanItsTenantMayHaveFails) {
  SchedulerDriver driver(SmallLayout(4, 60), QuotaOptions(),
                         {.refuse_one_in = 1});
  Request request = Of("a", 40, 30, 0);
  request.eviction = Recency(8);
  const RequestId id = Submit(&driver, request);
  driver.Drain();
  EXPECT_EQ(driver.served(id).finish->reason, FinishReason::kFailed);
  EXPECT_THAT(driver.served(id).finish->status,
              StatusIs(kInternal,
                       HasSubstr("without it the request needs 18 blocks at "
                                 "its peak, the quota max_blocks of its tenant "
                                 "is 15")));
  driver.CheckQuiescent();
}

// Beside the other it was admitted for what it needs compressed: it waits until
// the other has ended, and is computed again then.
TEST_P(RefusedQuotaTest, WhoNeedsMoreThanItsTenantHasLeftWaits) {
  SchedulerDriver driver(SmallLayout(4, 60), QuotaOptions(),
                         {.keeps_all = true});
  Request request = Of("a", 40, 8, 0);
  request.eviction = Recency(8, EvictionMode::kEveryChunk, 16);
  const RequestId id = Submit(&driver, request);
  // 8 blocks beside the 7 of the first, which needs 9 without an eviction.
  const RequestId other = Submit(&driver, Of("b", 4, 28, 1));
  driver.RunUntil([&] { return !driver.served(id).recorded.empty(); });
  RefuseOne(&driver);
  EXPECT_FALSE(driver.served(id).finish.has_value());
  EXPECT_LE(Reserved(&driver), 15);
  while (driver.ok() && !driver.served(other).finish.has_value()) {
    driver.Step();
    EXPECT_EQ(driver.CountTokensInPlan(id), 0);
    EXPECT_LE(Reserved(&driver), 15);
  }
  ExpectComplete(&driver);
  EXPECT_GT(driver.scheduler().stats().num_recomputed_tokens, 0);
}

}  // namespace
}  // namespace blockmgr
