// What evictions free counts no longer against a tenant's quota of blocks.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_driver.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

class QuotaEvictionTest : public testing::Test {
 protected:
  explicit QuotaEvictionTest(bool caching = false,
                             const CanaryOptions& engine = {
                                 .keeps_all = true}) {
    SchedulerOptions options = PlainOptions();
    options.enable_prefix_caching = caching;
    options.tenants["a"].max_blocks = 15;
    driver_.emplace(SmallLayout(4, 60), options, engine);
  }
  // A prompt of ten blocks, which are two after it.
  static Request Evicting(const std::string& id, int32_t topic = 0) {
    Request request = MakeRequest(id, 40, 8, topic);
    request.eviction = Recency(8);
    request.scope.tenant = "a";
    return request;
  }
  RequestId Submit(Request request) {
    return blockmgr::Submit(&*driver_, std::move(request));
  }
  bool Runs(RequestId id) const { return driver_->CountTokensInPlan(id) > 0; }
  bool HasEnded(RequestId id) const {
    return driver_->served(id).finish.has_value();
  }
  int64_t reserved() {
    const SchedulerStats stats = driver_->scheduler().stats();
    EXPECT_EQ(stats.tenants.front().name, "a");
    return stats.tenants.front().reserved_blocks;
  }
  void End() {
    driver_->Finish();
    EXPECT_EQ(reserved(), 0);
  }

  std::optional<SchedulerDriver> driver_;
};

// Until the first has been compressed there is no room for the second.
TEST_F(QuotaEvictionTest, MoreRunAsSoonAsOneIsCompressed) {
  const RequestId first = Submit(Evicting("first"));
  const RequestId second = Submit(Evicting("second", 1));
  ASSERT_TRUE(driver_->Issue());
  EXPECT_TRUE(Runs(first));
  EXPECT_FALSE(Runs(second));
  EXPECT_EQ(reserved(), 10);
  driver_->Answer();
  // Of positions 0 to 46 the first 36 are two blocks, the others three.
  EXPECT_EQ(reserved(), 5);
  ASSERT_TRUE(driver_->Issue());
  EXPECT_TRUE(Runs(first));
  EXPECT_TRUE(Runs(second));
  EXPECT_EQ(reserved(), 15);
  driver_->Answer();
  EXPECT_EQ(reserved(), 10);
  EXPECT_FALSE(HasEnded(first));
  End();
}

TEST_F(QuotaEvictionTest, WhatIsStillToComeStaysReserved) {
  // 59 positions, 15 blocks, of which the last ten are to come.
  Request request = MakeRequest("long", 20, 40);
  request.scope.tenant = "a";
  const RequestId id = Submit(std::move(request));
  driver_->Step();
  EXPECT_EQ(reserved(), 15);
  ASSERT_OK(driver_->Evict(id, RecencyCommand(4)));
  driver_->RunUntil([&] { return !driver_->served(id).evictions.empty(); });
  // One block for the first 20 positions; the 39 behind them are ten.
  EXPECT_EQ(driver_->served(id).evictions.front().cut, 20);
  EXPECT_EQ(reserved(), 11);
  End();
}

// A command has covered what the next planned eviction would: that is futile,
// and what the command has left stays.
TEST_F(QuotaEvictionTest, AnOvertakenEvictionGivesNothingBack) {
  Request request = MakeRequest("r", 16, 47);
  request.eviction = Recency(8, EvictionMode::kDecode, 16);
  request.scope.tenant = "a";
  const RequestId id = Submit(std::move(request));
  driver_->RunUntilOutputs(id, 30);
  ASSERT_OK(driver_->Evict(id, RecencyCommand(20)));
  const size_t before = driver_->served(id).evictions.size();
  driver_->RunUntil(
      [&] { return driver_->served(id).evictions.size() > before; });
  // As far as the one at 48 tokens will reach.
  EXPECT_EQ(driver_->served(id).evictions.back().cut, 44);
  // Five blocks for the first 44 positions, five for the 18 behind them.
  EXPECT_EQ(reserved(), 10);
  End();
}

TEST_F(QuotaEvictionTest, WhoIsComputedAgainReservesAllAgain) {
  const RequestId id = Submit(Evicting("r"));
  driver_->Step();
  EXPECT_EQ(reserved(), 5);
  driver_->LoseEngine();
  EXPECT_EQ(reserved(), 0);
  ASSERT_TRUE(driver_->Issue());
  EXPECT_TRUE(Runs(id));
  EXPECT_EQ(reserved(), 10);
  driver_->Answer();
  EXPECT_EQ(reserved(), 5);
  End();
}

class QuotaRefusalTest : public QuotaEvictionTest {
 protected:
  QuotaRefusalTest() : QuotaEvictionTest(false, {.refuse_one_in = 1}) {}
};

TEST_F(QuotaRefusalTest, ARefusedEvictionFreesNothing) {
  Request request = MakeRequest("r", 40, 8);
  request.scope.tenant = "a";
  const RequestId id = Submit(std::move(request));
  driver_->Step();
  EXPECT_EQ(reserved(), 12);
  ASSERT_OK(driver_->Evict(id, RecencyCommand(4)));
  driver_->RunUntil([&] { return !driver_->served(id).evictions.empty(); });
  EXPECT_FALSE(driver_->served(id).evictions.front().status.ok());
  EXPECT_EQ(reserved(), 12);
  End();
}

class QuotaSharingTest : public QuotaEvictionTest {
 protected:
  QuotaSharingTest() : QuotaEvictionTest(true) {}
};

// It starts with what another one has left of the same prompt.
TEST_F(QuotaSharingTest, AStartOnACompressedPrefixReservesWhatFollows) {
  Request request = Evicting("first");
  request.prompt.push_back(7);
  request.eviction.share_prefix = true;
  Submit(request);
  driver_->Drain();
  request.id = "second";
  const RequestId id = Submit(request);
  ASSERT_TRUE(driver_->Issue());
  EXPECT_EQ(driver_->CountTokensInPlan(id), 1);
  // Two blocks for the first 36 positions, three for the twelve behind them.
  EXPECT_EQ(reserved(), 5);
  driver_->Answer();
  End();
}

}  // namespace
}  // namespace blockmgr
