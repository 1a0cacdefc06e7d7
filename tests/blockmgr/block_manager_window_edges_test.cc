// Windows where a sequence has gone back, or a part of them was lost.

#include <vector>

#include <gtest/gtest.h>

#include "tests/blockmgr/windows_fixture.h"

namespace blockmgr {
namespace {

using BlockManagerWindowEdgesTest = WindowsTest;

TEST_F(BlockManagerWindowEdgesTest, GoesBackByOneTokenOnlyOnceFromAPagesEdge) {
  Make(WithWindows(60, 0, {8}));
  const SequenceSlot slot = Compute(Prompt(1, 12), 12);
  ASSERT_TRUE(manager_->CanGoBack(slot, 11));
  manager_->CutBack(slot, 11);
  manager_->CheckInvariants();
  // The query at position 10 attends to position 3, whose page is gone.
  EXPECT_FALSE(manager_->CanGoBack(slot, 10));
  EXPECT_TRUE(manager_->CanGoBack(slot, 11));
  // Far enough from the edge it goes back twice.
  const SequenceSlot other = Compute(Prompt(2, 15), 15);
  manager_->CutBack(other, 13);
  ASSERT_TRUE(manager_->CanGoBack(other, 12));
  manager_->CutBack(other, 12);
  EXPECT_FALSE(manager_->CanGoBack(other, 10));
  manager_->CheckInvariants();
}

}  // namespace
}  // namespace blockmgr
