#include "scheduler/server/rate_limited_warning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/captured_log.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;

TEST(RateLimitedWarningTest, IsNotRepeatedSoon) {
  const CapturedLog log;
  RateLimitedWarning first;
  RateLimitedWarning second;
  for (int i = 0; i < 1000; ++i) first.Warn("one");
  second.Warn("two");
  EXPECT_EQ(log.num_lines(), 2);
  EXPECT_THAT(log.text(), HasSubstr("one (1 such since the last warning)"));
  EXPECT_THAT(log.text(), HasSubstr("two (1 such since the last warning)"));
}

}  // namespace
}  // namespace blockmgr
