#include "blockmgr/base/check.h"

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(CheckTest, HoldingConditionIsEvaluatedOnceAndPasses) {
  int evaluations = 0;
  BM_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

TEST(CheckTest, IsOneStatement) {
  bool reached_else = false;
  // No braces on purpose: the macro must not swallow the else.
  // NOLINTBEGIN(readability-braces-around-statements)
  if (reached_else)
    BM_CHECK(false);
  else
    reached_else = true;
  // NOLINTEND(readability-braces-around-statements)
  EXPECT_TRUE(reached_else);
}

TEST(CheckDeathTest, FailureNamesFileAndCondition) {
  const int num_free = 3;
  EXPECT_DEATH(BM_CHECK(num_free == 4),
               "check_test.cc:[0-9]+: check failed: num_free == 4");
}

#ifdef NDEBUG
TEST(CheckDeathTest, DebugCheckIsNotEvaluatedWithoutAsserts) {
  bool evaluated = false;
  BM_DCHECK(evaluated = true);
  EXPECT_FALSE(evaluated);
}
#else
TEST(CheckDeathTest, DebugCheckAbortsWithAsserts) {
  EXPECT_DEATH(BM_DCHECK(1 + 1 == 3), "check failed: 1 \\+ 1 == 3");
}
#endif

}  // namespace
}  // namespace blockmgr
