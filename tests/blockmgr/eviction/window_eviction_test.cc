#include "blockmgr/eviction/window_eviction.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "blockmgr/eviction/policy.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

TEST(WindowEvictionTest, CoversWhatTheNextTokenAttendsTo) {
  // The token at position 40 attends to positions 25 to 40.
  EXPECT_EQ(WindowEviction::FirstOf(16, 40), 25);
  EXPECT_TRUE(WindowEviction::IsCovered(16, 32, 40));
  EXPECT_FALSE(WindowEviction::IsCovered(8, 32, 40));
  const WindowEviction eviction = WindowEviction::Of({}, 16, 32, 40);
  EXPECT_EQ(eviction.first, 25);
  EXPECT_EQ(eviction.range.cut, 32 - 25);
  EXPECT_EQ(eviction.range.length, 40 - 25);
}

TEST(WindowEvictionTest, AllOfAShortSequenceIsInTheWindow) {
  for (const int32_t length : {1, 15}) {
    EXPECT_EQ(WindowEviction::FirstOf(16, length), 0);
  }
  EXPECT_EQ(WindowEviction::FirstOf(16, 16), 1);
  EXPECT_EQ(WindowEviction::FirstOf(INT32_MAX, INT32_MAX - 1), 0);
}

TEST(WindowEvictionTest, AWindowOfZeroIsAllTokens) {
  EXPECT_EQ(WindowEviction::FirstOf(0, 40), 0);
  EXPECT_TRUE(WindowEviction::IsCovered(0, 16, 40));
}

TEST(WindowEvictionTest, SinksThatHaveFallenOutProtectNothing) {
  for (const char* text : {"streaming(sinks=6)", "knorm | protect(sinks=6)"}) {
    ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy(text));
    EXPECT_EQ(WindowEviction::Of(policy, 16, 8, 12).policy.protected_sinks(),
              6);
    const EvictionPolicy past = WindowEviction::Of(policy, 16, 32, 40).policy;
    EXPECT_EQ(past.protected_sinks(), 0);
    EXPECT_EQ(past.protected_recent(), policy.protected_recent());
  }
  ASSERT_OK_AND_ASSIGN(const EvictionPolicy policy, ParsePolicy("snapkv"));
  EXPECT_EQ(WindowEviction::Of(policy, 16, 32, 40).policy, policy);
}

TEST(EvictionTargetTest, WindowsHaveARatioOfTheirOwn) {
  EvictionTarget target;
  target.kind = EvictionTarget::Kind::kTokens;
  target.tokens = 5;
  EXPECT_OK(target.Validate());
  EXPECT_FALSE(target.evicts_in_windows());
  target.window_keep_ratio = {3, 10};
  EXPECT_OK(target.Validate());
  EXPECT_TRUE(target.evicts_in_windows());
  EXPECT_EQ(target.InWindow().TokensPerHead(100), 30);
  EXPECT_FALSE(target.InWindow().evicts_in_windows());
  target.window_keep_ratio = {3, 2};
  EXPECT_THAT(target.Validate(), IsInvalid("window_keep_ratio"));
}

}  // namespace
}  // namespace blockmgr
