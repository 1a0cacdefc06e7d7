#include "blockmgr/reclaim_order.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/blockmgr/region_history.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> Drain(ReclaimOrder order) {
  std::vector<int32_t> entries;
  const auto any = [&order] {
    for (int32_t i = 0; i < 8; ++i) {
      if (order.IsListed(i)) return true;
    }
    return false;
  };
  while (any()) {
    entries.push_back(order.next());
    order.Unlist(entries.back());
    order.CheckInvariants();
  }
  return entries;
}

TEST(ReclaimOrderTest, WhatIsSupersededGoesBeforeTheDefaultButNotAWish) {
  ReclaimOrder order(8);
  for (int32_t entry = 1; entry <= 5; ++entry) order.List(entry);
  order.SetRetention(1, {.priority = 0});
  order.SetRetention(2, {.priority = 50});
  order.SetSuperseded(2, true);  // a wish says more
  order.SetSuperseded(5, true);
  order.SetSuperseded(4, true);
  order.CheckInvariants();
  EXPECT_THAT(Drain(order), ElementsAre(1, 5, 4, 3, 2));
  order.SetSuperseded(5, false);  // of use after all
  order.SetRetention(4, {.priority = 34});
  order.SetSuperseded(4, false);  // a wish now
  EXPECT_THAT(Drain(order), ElementsAre(1, 4, 3, 5, 2));
}

TEST(ReclaimOrderTest, GrowsWithItsEntries) {
  ReclaimOrder order(2);
  order.List(1);
  order.Grow(8);
  order.List(7);
  EXPECT_THAT(Drain(order), ElementsAre(1, 7));
}

TEST(ReclaimOrderTest, StateHashSeesOrderAndWishes) {
  ReclaimOrder order(8);
  const uint64_t empty = order.StateHash();
  order.List(1);
  order.List(2);
  const uint64_t listed = order.StateHash();
  EXPECT_NE(listed, empty);
  order.Unlist(1);
  order.List(1);
  EXPECT_NE(order.StateHash(), listed);
  order.Unlist(1);
  order.Unlist(2);
  EXPECT_EQ(order.StateHash(), empty);
  order.SetRetention(3, {.priority = 36});
  EXPECT_NE(order.StateHash(), empty);
}

// Against a sort of everything.
TEST(ReclaimOrderTest, AgreesWithASort) {
  struct Naive {
    bool listed = false;
    Retention retention;
    int64_t place = 0;
    int64_t wish = 0;
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    ReclaimOrder order(16);
    std::vector<Naive> naive(16);
    int64_t now = 0;
    int64_t place = 0;
    order.SetTime(now);
    for (int32_t i = 0; i < 2000; ++i) {
      const int32_t entry = RandomInt(random, 0, 15);
      Naive& own = naive[static_cast<size_t>(entry)];
      const int32_t kind = RandomInt(random, 0, 9);
      if (kind < 6) {
        if (own.listed) {
          order.Unlist(entry);
        } else {
          order.List(entry);
          own.place = place++;
        }
        own.listed = !own.listed;
      } else if (kind < 9) {
        Retention wish;
        wish.priority = static_cast<uint8_t>(RandomInt(random, 0, 100));
        if (RandomChance(random, 0.5)) {
          wish.expires_ms = now + RandomInt(random, 0, 9);
        }
        order.SetRetention(entry, wish);
        if (wish.expires_ms <= now) wish = {};
        if (wish.priority != own.retention.priority) own.place = place++;
        own.retention = wish;
        own.wish = place++;
      } else {
        now += RandomInt(random, 0, 9);
        for (const int64_t told : {now, now - 5}) order.SetTime(told);
        std::vector<std::tuple<int64_t, int64_t, size_t>> over;
        for (size_t e = 0; e < naive.size(); ++e) {
          if (naive[e].retention.expires_ms <= now) {
            over.emplace_back(naive[e].retention.expires_ms, naive[e].wish, e);
          }
        }
        std::ranges::sort(over);
        for (const auto& [when, wish, e] : over) {
          if (naive[e].retention.priority != kDefaultPriority) {
            naive[e].place = place++;
          }
          naive[e].retention = {};
        }
      }
      order.CheckInvariants();
      const Naive* first = nullptr;
      for (const Naive& other : naive) {
        if (!other.listed) continue;
        const auto rank = [](const Naive& n) {
          return std::pair(n.retention.priority, n.place);
        };
        if (first == nullptr || rank(other) < rank(*first)) first = &other;
      }
      if (first != nullptr) {
        ASSERT_EQ(order.next(), first - naive.data()) << "operation " << i;
      }
    }
  }
}

}  // namespace
}  // namespace blockmgr
