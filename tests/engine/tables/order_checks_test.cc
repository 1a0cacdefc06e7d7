#include "engine/tables/order_checks.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/tables/tables_fixture.h"
#include "tests/engine/tables/tables_state_fixture.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

class OrderChecksTest : public TablesStateTest {
 protected:
  OrderChecksTest() { plan_.destinations = Blocks(30, 1); }

  static EvictionOrder OrderIn(int32_t group) {
    EvictionOrder order;
    order.slot = kTestSlot;
    order.group = group;
    order.cut = 32;
    order.length = 40;
    order.num_destinations = 1;
    order.page_total = 4;
    order.policy.scorer.kind = ScorerKind::kStreaming;
    return order;
  }
  absl::Status Check(const EvictionOrder& order) const {
    return CheckEvictionOrder(state_, plan_, order);
  }

  StepPlan plan_;
};

TEST_F(OrderChecksTest, GroupsAreEvictedInOrder) {
  EXPECT_OK(Check(OrderIn(0)));
  EXPECT_OK(Check(OrderIn(1)));
  state_.committed.resize(4);
  state_.committed.back() = {.next_group = 1};
  EXPECT_THAT(Check(OrderIn(0)), IsRefused("second order for slot 3"));
  EXPECT_OK(Check(OrderIn(1)));
}

TEST_F(OrderChecksTest, AnOrderCoversSomethingOfAWindow) {
  EvictionOrder order = OrderIn(0);
  order.cut = 16;
  EXPECT_OK(Check(order));
  order.group = 1;
  EXPECT_THAT(Check(order), IsRefused("cut: expected one above 21, from which "
                                      "on the group attends, got 16"));
}

TEST_F(OrderChecksTest, AFullGroupGivesTheName) {
  EvictionOrder order = OrderIn(1);
  order.region = RegionId{5};
  EXPECT_THAT(Check(order), IsRefused("none of a group with a window, got 5"));
  order.group = 0;
  EXPECT_OK(Check(order));
  state_.regions[order.region];
  EXPECT_THAT(Check(order), IsRefused("a name that is not in use, got 5"));
}

TEST_F(OrderChecksTest, NoHeadKeepsMoreThanIsCovered) {
  const EvictionOrder full = OrderIn(0);
  const EvictionOrder window = OrderIn(1);
  const std::vector<int32_t> counts = {17, 0, 16, 16};
  EXPECT_OK(CheckKeptCounts(state_, full, counts));
  EXPECT_THAT(CheckKeptCounts(state_, window, counts),
              IsRefused("at most 16 entries for head index 0, got 17"));
}

}  // namespace
}  // namespace blockmgr
