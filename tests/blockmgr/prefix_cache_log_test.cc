#include "blockmgr/prefix_cache_log.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(PrefixCacheLogTest, KeepsTheLastChanges) {
  PrefixCacheLog log(3);
  EXPECT_EQ(log.begin(), 0u);
  EXPECT_EQ(log.end(), 0u);
  for (EntrySerial serial = 10; serial < 17; ++serial) {
    log.Append({.serial = serial, .entry = 1, .removed = serial % 2 == 0});
    EXPECT_EQ(log.end(), serial - 9);
    EXPECT_EQ(log.begin(), serial < 13 ? 0 : serial - 12);
    for (uint64_t i = log.begin(); i < log.end(); ++i) {
      EXPECT_EQ(log[i].serial, i + 10);
      EXPECT_EQ(log[i].entry, 1);
      EXPECT_EQ(log[i].removed, i % 2 == 0);
    }
  }
}

TEST(PrefixCacheLogTest, ReportsItsMemory) {
  EXPECT_EQ(PrefixCacheLog(1000).metadata_bytes(), 16000);
}

}  // namespace
}  // namespace blockmgr
