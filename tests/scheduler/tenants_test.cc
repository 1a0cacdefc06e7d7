#include "scheduler/tenants.h"

#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

// Quotas are tested with request_lifecycle_test.cc and
// scheduler_long_tenants_test.cc.
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
