// Evictions of running requests that were asked for from outside.
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CommandsTest, ObservesQueriesThatAreKept) {
  SchedulerOptions options = PlainOptions();
  options.query_window = 0;
  SchedulerDriver driver(SmallLayout(4, 200), options);
  const RequestId plain = Submit(&driver, MakeRequest("a", 40, 20));
  Request observed = MakeRequest("b", 40, 20, 1);
  observed.eviction = Recency(20);
  ASSERT_OK_AND_ASSIGN(observed.eviction.policy,
                       ParsePolicy("snapkv(window=4)"));
  const RequestId kept = Submit(&driver, std::move(observed));
  driver.RunUntil([&] {
    return driver.served(plain).outputs.size() >= 2 &&
           driver.served(kept).outputs.size() >= 2;
  });
  EvictionCommand command = RecencyCommand(4);
  ASSERT_OK_AND_ASSIGN(command.policy, ParsePolicy("snapkv(window=2)"));
  EXPECT_THAT(driver.Evict(plain, command),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("got query_window 0")));
  EXPECT_THAT(driver.Evict(plain, RecencyCommand(4)), IsOk());
  EXPECT_THAT(driver.Evict(kept, command), IsOk());
  driver.Drain();
  driver.CheckQuiescent();
}

TEST(CommandsTest, AreWithdrawnUntilTheyAreOrdered) {
  SchedulerDriver driver(SmallLayout(4, 200), PlainOptions());
  const RequestId id = Submit(&driver, MakeRequest("a", 40, 20));
  driver.RunUntil([&] { return driver.served(id).outputs.size() >= 2; });
  ASSERT_OK_AND_ASSIGN(const uint64_t first,
                       driver.scheduler().Evict(id, RecencyCommand(4)));
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(id, first + 1));
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(RequestId{99}, first));
  EXPECT_TRUE(driver.scheduler().WithdrawEviction(id, first));
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(id, first));
  driver.Step();
  EXPECT_THAT(driver.served(id).evictions, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const uint64_t second,
                       driver.Evict(id, RecencyCommand(4)));
  driver.Issue();
  EXPECT_FALSE(driver.scheduler().WithdrawEviction(id, second));
  driver.Drain();
  EXPECT_THAT(driver.served(id).evictions, SizeIs(1));
  driver.CheckQuiescent();
}

}  // namespace
}  // namespace blockmgr
