#include "blockmgr/cooling_entries.h"

#include <cstdint>
#include <map>

#include <gtest/gtest.h>

#include "tests/testing/random.h"

namespace blockmgr {
namespace {

TEST(CoolingEntriesTest, LeaveInTheOrderInWhichTheyCame) {
  CoolingEntries entries(8);
  EXPECT_EQ(entries.Front(), CoolingEntries::kNone);
  entries.Add(5, 1);
  entries.Add(2, 3);
  entries.Add(20, 1);  // there was no room for it
  EXPECT_EQ(entries.num_blocks(), 5);
  EXPECT_TRUE(entries.Contains(20));
  EXPECT_FALSE(entries.Contains(21));
  EXPECT_FALSE(entries.Contains(1 << 20));
  EXPECT_EQ(entries.Front(), 5);
  entries.Remove(5, 1);
  EXPECT_EQ(entries.Front(), 2);
  EXPECT_EQ(entries.num_blocks(), 4);
}

TEST(CoolingEntriesTest, AgreesWithAMapByArrival) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    CoolingEntries entries(10);
    std::map<int32_t, int32_t> arrivals;  // by entry
    int32_t num_arrived = 0;
    int32_t num_blocks = 0;
    for (int32_t i = 0; i < 2000; ++i) {
      const int32_t entry = RandomInt(rng, 0, 29);
      ASSERT_EQ(entries.Contains(entry), arrivals.contains(entry));
      if (arrivals.contains(entry)) {
        entries.Remove(entry, entry + 1);
        arrivals.erase(entry);
        num_blocks -= entry + 1;
      } else {
        entries.Add(entry, entry + 1);
        arrivals[entry] = num_arrived++;
        num_blocks += entry + 1;
      }
      int32_t first = CoolingEntries::kNone;
      for (const auto& [other, arrival] : arrivals) {
        if (first < 0 || arrival < arrivals.at(first)) first = other;
      }
      if (RandomInt(rng, 0, 2) == 0) {
        ASSERT_EQ(entries.Front(), first);
      }
      ASSERT_EQ(entries.num_blocks(), num_blocks);
    }
  }
}

TEST(CoolingEntriesTest, ASteadyStateKeepsItsMemory) {
  CoolingEntries entries(100);
  const auto turn = [&entries](int32_t i) {
    entries.Add(i % 100, 1);
    if (i >= 50) entries.Remove((i - 50) % 100, 1);
    entries.Front();
  };
  for (int32_t i = 0; i < 1000; ++i) turn(i);
  const int64_t before = entries.metadata_bytes();
  for (int32_t i = 1000; i < 10000; ++i) turn(i);
  EXPECT_EQ(entries.metadata_bytes(), before);
}

}  // namespace
}  // namespace blockmgr
