#include "kernels/cuda/host/row_error.h"

#include <gtest/gtest.h>

#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {
namespace {

TEST(RowErrorTest, NamesEveryBitThatIsSet) {
  EXPECT_EQ(RowErrorText(0), "");
  EXPECT_EQ(RowErrorText(kPageOutOfPool), "pages outside the pool");
  EXPECT_EQ(RowErrorText(kSlotOutOfPool | kTilesOutOfRoom),
            "slots outside the pool, more tiles than there is room for");
  EXPECT_EQ(RowErrorText(kPositionOutOfCut | kOffsetsOutOfLists),
            "positions at or behind the cut, more entries than a list has room "
            "for");
}

TEST(RowErrorTest, HidesNoBitThatItDoesNotKnow) {
  EXPECT_EQ(RowErrorText(kBlockOutOfPool | 1u << 20),
            "blocks outside the pool, unknown bits 1048576");
}

}  // namespace
}  // namespace blockmgr
