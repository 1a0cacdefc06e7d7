#include "scheduler/tenants.h"

#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

auto OverQuota(const char* tenant, const char* quota) {
  return StatusIs(absl::StatusCode::kResourceExhausted,
                  AllOf(HasSubstr(tenant), HasSubstr(quota)));
}

class TenantsTest : public testing::Test {
 protected:
  TenantId Submit(const std::string& name, const TenantDemand& demand = {}) {
    EXPECT_THAT(tenants_.CheckSubmit(name, demand), IsOk());
    const TenantId tenant = tenants_.Submit(name, demand);
    tenants_.CheckInvariants();
    return tenant;
  }

  SchedulerOptions options_;
  Tenants tenants_{options_};
};

TEST_F(TenantsTest, WithoutLimitsEverythingIsAllowed) {
  const TenantId tenant = Submit("a", {.prompt_tokens = 1 << 30});
  EXPECT_EQ(Submit("a", {.prompt_tokens = 1 << 30}), tenant);
  EXPECT_EQ(tenants_.queued_tokens(tenant), int64_t{2} << 30);
  EXPECT_TRUE(tenants_.MayReserve(tenant, INT32_MAX));
}

TEST_F(TenantsTest, RefusesMoreRequestsThanTheQuota) {
  options_.tenant_limits.max_requests = 2;
  options_.tenants["b"].max_requests = 1;
  const TenantId a = Submit("a");
  Submit("a");
  EXPECT_THAT(tenants_.CheckSubmit("a", {}), OverQuota("'a'", "max_requests"));
  Submit("b");
  EXPECT_THAT(tenants_.CheckSubmit("b", {}), OverQuota("'b'", "max_requests"));
  // Running ones count as well; those that have ended do not.
  tenants_.Admit(a, {}, true);
  EXPECT_FALSE(tenants_.CheckSubmit("a", {}).ok());
  tenants_.Finish(a, {}, true);
  EXPECT_THAT(tenants_.CheckSubmit("a", {}), IsOk());
}

TEST_F(TenantsTest, QueuedTokensAreOfPromptsThatWait) {
  options_.tenant_limits.max_queued_tokens = 100;
  const TenantDemand demand{.prompt_tokens = 60};
  const TenantId a = Submit("a", demand);
  EXPECT_THAT(tenants_.CheckSubmit("a", {.prompt_tokens = 40}), IsOk());
  EXPECT_THAT(tenants_.CheckSubmit("a", {.prompt_tokens = 41}),
              OverQuota("'a'", "max_queued_tokens"));
  const TenantId b = Submit("b", {.prompt_tokens = 7});
  EXPECT_EQ(tenants_.queued_tokens(), 67);
  tenants_.Finish(b, {.prompt_tokens = 7}, false);
  tenants_.Admit(a, demand, true);
  EXPECT_EQ(tenants_.queued_tokens(a), 0);
  EXPECT_EQ(tenants_.queued_tokens(), 0);
  // Preempted, it waits again, but its prompt was let in once.
  tenants_.Admit(a, demand, false);
  EXPECT_EQ(tenants_.queued_tokens(a), 0);
  tenants_.Finish(a, demand, true);
  Submit("a", demand);
  tenants_.Finish(a, demand, false);
  EXPECT_EQ(tenants_.queued_tokens(a), 0);
  EXPECT_EQ(tenants_.num_requests(a), 0);
}

TEST_F(TenantsTest, UsesAreOfThoseThatAreNamedAndTheRest) {
  options_.tenants["named"].weight = 2;
  options_.tenants["idle"].weight = 2;
  const TenantDemand demand{.prompt_tokens = 60, .peak_blocks = 5};
  tenants_.Admit(Submit("named", demand), demand, true);
  Submit("named", demand);
  Submit("a", {.prompt_tokens = 1});
  Submit("b", {.prompt_tokens = 2});
  const std::vector<TenantUse> uses = tenants_.Uses();
  ASSERT_EQ(uses.size(), 3u);
  const auto text = [](const TenantUse& use) {
    return absl::StrCat(use.name, " ", use.num_requests, " ", use.queued_tokens,
                        " ", use.reserved_blocks);
  };
  EXPECT_EQ(text(uses[0]), "idle 0 0 0");
  EXPECT_EQ(text(uses[1]), "named 2 60 5");
  EXPECT_EQ(text(uses[2]), "* 2 3 0");
}

TEST_F(TenantsTest, BlocksAreReservedWhileRequestsRun) {
  options_.tenant_limits.max_blocks = 10;
  EXPECT_THAT(tenants_.CheckSubmit("a", {.peak_blocks = 11}),
              OverQuota("'a'", "max_blocks"));
  const TenantDemand demand{.peak_blocks = 6};
  const TenantId a = Submit("a", demand);
  const TenantId b = Submit("b", demand);
  tenants_.Admit(a, demand, true);
  EXPECT_EQ(tenants_.reserved_blocks(a), 6);
  EXPECT_TRUE(tenants_.MayReserve(a, 4));
  EXPECT_FALSE(tenants_.MayReserve(a, 5));
  EXPECT_TRUE(tenants_.MayReserve(b, 10));
  tenants_.Reserve(a, -2);
  EXPECT_EQ(tenants_.reserved_blocks(a), 4);
  EXPECT_TRUE(tenants_.MayReserve(a, 6));
  EXPECT_FALSE(tenants_.MayReserve(a, 7));
  tenants_.Reserve(a, -4);
  EXPECT_TRUE(tenants_.MayReserve(a, 10));
}

TEST_F(TenantsTest, ServiceIsDividedByWeight) {
  options_.tenants["heavy"].weight = 4;
  const TenantId light = Submit("light");
  const TenantId heavy = Submit("heavy");
  tenants_.Serve(light, 100);
  tenants_.Serve(heavy, 400);
  EXPECT_EQ(tenants_.service(light), tenants_.service(heavy));
  EXPECT_GT(tenants_.service(light), 0);
}

// Being idle earns nothing, and what was used is not forgotten.
TEST_F(TenantsTest, WhoComesBackIsLiftedNotLowered) {
  const TenantId a = Submit("a");
  const TenantId b = Submit("b");
  tenants_.Serve(a, 100);
  const int64_t least = tenants_.service(a);
  tenants_.Lift(b, &least);
  EXPECT_EQ(tenants_.service(b), least);
  tenants_.Serve(b, 50);
  const int64_t more = tenants_.service(b);
  tenants_.Lift(b, &least);
  EXPECT_EQ(tenants_.service(b), more);
  // Nobody waits: as much as the last one that did.
  tenants_.Leave(b);
  const TenantId c = Submit("c");
  tenants_.Lift(c, nullptr);
  EXPECT_EQ(tenants_.service(c), more);
}

TEST_F(TenantsTest, AFullTableForgetsTheIdleTenantServedLeast) {
  options_.max_tenants = 2;
  const TenantId a = Submit("a");
  const TenantId b = Submit("b");
  EXPECT_THAT(tenants_.CheckSubmit("c", {}), OverQuota("'c'", "max_tenants"));
  tenants_.Serve(a, 10);
  tenants_.Finish(a, {}, false);
  tenants_.Finish(b, {}, false);
  EXPECT_EQ(Submit("c"), b);
  EXPECT_EQ(tenants_.service(b), 0);
  EXPECT_EQ(Submit("a"), a);
  EXPECT_GT(tenants_.service(a), 0);
  EXPECT_EQ(tenants_.size(), 2);
}

}  // namespace
}  // namespace blockmgr
