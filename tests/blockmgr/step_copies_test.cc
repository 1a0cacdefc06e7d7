#include "blockmgr/step_copies.h"

#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

CopyOnWrite Copy(int32_t slot, int32_t source, int32_t num_tokens,
                 int32_t group = 0) {
  return {.slot = SequenceSlot{slot},
          .blocks = {BlockId{source}, kNullBlock},
          .num_tokens = num_tokens,
          .group = group};
}

TEST(StepCopiesTest, KnowsWhoLeavesABlock) {
  StepCopies copies;
  EXPECT_EQ(copies.LeavingOf(BlockId{7}), StepCopies::Leaving());
  copies.Add(Copy(1, 7, 3));
  copies.Add(Copy(2, 7, 5));
  copies.Add(Copy(3, 8, 1));
  EXPECT_EQ(copies.LeavingOf(BlockId{7}),
            (StepCopies::Leaving{.num_sequences = 2, .max_tokens = 5}));
  EXPECT_EQ(copies.LeavingOf(BlockId{8}),
            (StepCopies::Leaving{.num_sequences = 1, .max_tokens = 1}));
  copies.CheckInvariants();
}

TEST(StepCopiesTest, RemovesAllGroupsOfASequence) {
  StepCopies copies;
  copies.Add(Copy(1, 7, 3, 0));
  copies.Add(Copy(1, 17, 3, 1));
  copies.Add(Copy(2, 7, 5, 0));
  copies.Add(Copy(2, 17, 5, 1));
  EXPECT_THAT(copies.Of(SequenceSlot{1}), SizeIs(2));
  copies.Remove(SequenceSlot{1});
  copies.CheckInvariants();
  EXPECT_THAT(copies.Of(SequenceSlot{1}), IsEmpty());
  ASSERT_THAT(copies.Of(SequenceSlot{2}), SizeIs(2));
  EXPECT_EQ(copies.Of(SequenceSlot{2})[1].blocks.source, BlockId{17});
  EXPECT_EQ(copies.LeavingOf(BlockId{7}).num_sequences, 1);
}

TEST(StepCopiesTest, ForgetsWhatWasAddedLast) {
  StepCopies copies;
  copies.Add(Copy(1, 7, 3));
  copies.SetDestination(0, BlockId{9});
  copies.Add(Copy(2, 7, 5));
  copies.Shrink(1);
  copies.CheckInvariants();
  ASSERT_THAT(copies.all(), SizeIs(1));
  EXPECT_EQ(copies.all()[0].blocks.destination, BlockId{9});
  EXPECT_EQ(copies.LeavingOf(BlockId{7}).max_tokens, 3);
  copies.Clear();
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(copies.LeavingOf(BlockId{7}).num_sequences, 0);
}

}  // namespace
}  // namespace blockmgr
