// Quotas and fair shares of tenants while 10,000 requests wait, compared with
// an account of every tenant kept by hand.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/long_queue.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using long_queue::kNumWaiting;
using long_queue::Live;
using long_queue::LongOptions;
using long_queue::LongQueue;
using ::testing::HasSubstr;

class LongTenantsTest : public testing::TestWithParam<bool> {
 protected:
  struct Account {
    int64_t service = 0;  // twentieths of a token by weight
    int32_t num_requests = 0;
    int64_t queued_tokens = 0;
    int32_t reserved_blocks = 0;
    int32_t num_waiting = 0;
  };

  static SchedulerOptions Options() {
    SchedulerOptions options = LongOptions(SchedulingPolicy::kFcfs);
    options.max_num_seqs = 8;
    options.fair_share = GetParam();
    options.tenants["heavy"].weight = 5;
    options.tenants["blocks"] = {.max_blocks = 7, .weight = 2};
    options.tenants["few"] = {.max_requests = 30, .weight = 4};
    options.tenants["tokens"].max_queued_tokens = 400;
    return options;
  }
  LongTenantsTest()
      : options_(Options()), queue_(1000, options_, [this](const Live& live) {
          return options_.fair_share ? AccountOf(live).service : 0;
        }) {
    queue_.on_token = [this](const Live& live) { Serve(live, 2); };
    queue_.on_finish = [this](const Live& live) {
      --AccountOf(live).num_requests;
      AccountOf(live).reserved_blocks -= live.peak_blocks();
    };
  }

  const TenantLimits& LimitsOf(const Live& live) const {
    const auto own = options_.tenants.find(live.request.scope.tenant);
    return own == options_.tenants.end() ? options_.tenant_limits : own->second;
  }
  Account& AccountOf(const Live& live) {
    return accounts_[live.request.scope.tenant];
  }
  void Serve(const Live& live, int64_t tokens) {
    AccountOf(live).service += tokens * 20 / LimitsOf(live).weight;
  }

  // The quota that it is over; empty: none.
  std::string Excess(const Live& live) {
    const TenantLimits& limits = LimitsOf(live);
    const Account& account = AccountOf(live);
    if (limits.max_requests > 0 &&
        account.num_requests + 1 > limits.max_requests) {
      return "max_requests";
    }
    if (limits.max_queued_tokens > 0 &&
        account.queued_tokens + live.num_prompt() > limits.max_queued_tokens) {
      return "max_queued_tokens";
    }
    return "";
  }
  void Submit(const std::string& tenant) {
    Live live{.request = MakeRequest("", random_.Between(1, 24),
                                     random_.Between(1, 4))};
    live.request.scope.tenant = tenant;
    const std::string excess = Excess(live);
    const absl::StatusOr<RequestId> id = queue_.TrySubmit(live);
    EXPECT_EQ(id.ok(), excess.empty()) << id.status();
    if (!id.ok()) {
      EXPECT_THAT(id.status().ToString(), HasSubstr(excess));
      ++num_refused_[excess];
      return;
    }
    Account& account = AccountOf(live);
    ++account.num_requests;
    account.queued_tokens += live.num_prompt();
    if (++account.num_waiting > 1) return;
    // Who was away is lifted to the least served of those that wait.
    int64_t least = INT64_MAX;
    for (const auto& [name, other] : accounts_) {
      if (&other == &account || other.num_waiting == 0) continue;
      least = std::min(least, other.service);
    }
    if (least == INT64_MAX || least <= account.service) return;
    account.service = least;
    ++num_lifted_;
  }

  // A step, in which each start is of the first whose tenant has blocks left.
  void Step() {
    const int32_t num_running = queue_.scheduler().num_running();
    std::set<std::string> barred;
    const auto started = queue_.Step([&](RequestId id) {
      RequestId first{0};
      while (true) {
        first = queue_.First([&](const Live& live) {
          return !barred.contains(live.request.scope.tenant);
        });
        const Live& live = queue_.waiting().at(first);
        const int32_t max_blocks = LimitsOf(live).max_blocks;
        if (max_blocks == 0 ||
            AccountOf(live).reserved_blocks + live.peak_blocks() <=
                max_blocks) {
          break;
        }
        barred.insert(live.request.scope.tenant);
      }
      ASSERT_EQ(id, first);
      const Live& live = queue_.waiting().at(id);
      Account& account = AccountOf(live);
      account.reserved_blocks += live.peak_blocks();
      account.queued_tokens -= live.num_prompt();
      --account.num_waiting;
      Serve(live, live.num_prompt());
    });
    num_started_ += static_cast<int32_t>(started.size());
    num_barred_ += static_cast<int32_t>(barred.size());
    EXPECT_EQ(num_running + std::ssize(started), options_.max_num_seqs);
  }

  const SchedulerOptions options_;
  std::map<std::string, Account> accounts_;
  LongQueue queue_;
  SeededRandom random_{5};
  std::map<std::string, int32_t> num_refused_;
  int32_t num_started_ = 0;
  int32_t num_barred_ = 0;  // tenants, of each step
  int32_t num_lifted_ = 0;
};

INSTANTIATE_TEST_SUITE_P(FairShare, LongTenantsTest, testing::Bool());

TEST_P(LongTenantsTest, StartsFollowServiceAndQuotas) {
  SCOPED_TRACE("seed 5");
  const std::vector<std::string> tenants = {"bulk", "heavy", "blocks", "few",
                                            "tokens"};
  while (num_started_ < static_cast<int32_t>(SlowCases(800)) && !HasFailure()) {
    while (queue_.num_waiting() < kNumWaiting) {
      Submit(tenants[random_.Between(0, 4)]);
    }
    for (int32_t i = random_.Between(0, 2); i > 0; --i) {
      Submit(random_.Between(0, 1) == 0 ? "few" : "tokens");
    }
    if (random_.Between(1, 12) == 1) Submit("rare");
    Step();
  }
  queue_.scheduler().CheckInvariants();
  EXPECT_GT(num_refused_["max_requests"], SlowFloor(50));
  EXPECT_GT(num_refused_["max_queued_tokens"], SlowFloor(50));
  EXPECT_GT(num_barred_, SlowFloor(50));
  if (options_.fair_share) {
    EXPECT_GT(num_lifted_, SlowFloor(10));
  }
}

}  // namespace
}  // namespace blockmgr
