#include "scheduler/server/call_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(CallLimitTest, APlaceIsFreeWhenItsCallHasEnded) {
  CallLimit limit("Flush", 2);
  absl::StatusOr<CallLimit::Place> first = limit.Take();
  ASSERT_OK(first);
  ASSERT_OK_AND_ASSIGN(CallLimit::Place second, limit.Take());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(limit.Take(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         ::testing::HasSubstr("Flush: expected at most 2")));
  }
  const CallLimit::Place copy = second;
  second.reset();
  EXPECT_FALSE(limit.Take().ok());
  *first = nullptr;
  EXPECT_OK(limit.Take());
}

}  // namespace
}  // namespace blockmgr
