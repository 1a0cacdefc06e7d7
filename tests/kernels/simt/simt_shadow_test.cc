// Which accesses to shared memory are ordered, case by case.
#include "tests/kernels/simt/simt_shadow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr::simt::emulator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Access = SharedShadow::Access;

constexpr Access kFirst = {.warp_epoch = 5, .block_epoch = 3, .line = 70};
constexpr Access kOtherLane = {
    .lane = 1, .warp_epoch = 5, .block_epoch = 3, .line = 71};
constexpr Access kOtherWarp = {
    .warp = 1, .warp_epoch = 5, .block_epoch = 3, .line = 72};

Access AfterWarpBarrier(Access access) {
  ++access.warp_epoch;
  return access;
}

Access AfterBlockBarrier(Access access) {
  ++access.warp_epoch;
  ++access.block_epoch;
  return access;
}

class SharedShadowTest : public testing::Test {
 protected:
  SharedShadowTest() { shadow_.BeginBlock(3); }
  SharedShadow shadow_{64};
};

TEST_F(SharedShadowTest, ReadNeedsAWrite) {
  EXPECT_THAT(shadow_.Read(0, 4, kFirst), HasSubstr("nobody wrote"));
  EXPECT_THAT(shadow_.Write(0, 4, kFirst), IsEmpty());
  EXPECT_THAT(shadow_.Read(0, 4, kFirst), IsEmpty());
  EXPECT_THAT(shadow_.Read(2, 4, kFirst), HasSubstr("nobody wrote"));
  // A write of the block before does not count.
  shadow_.BeginBlock(4);
  EXPECT_THAT(shadow_.Read(0, 4, AfterBlockBarrier(kFirst)),
              HasSubstr("nobody wrote"));
}

TEST_F(SharedShadowTest, ReadAfterWrite) {
  ASSERT_THAT(shadow_.Write(0, 16, kFirst), IsEmpty());
  EXPECT_THAT(shadow_.Read(8, 4, kOtherLane),
              HasSubstr("after the write in line 70"));
  EXPECT_THAT(shadow_.Read(8, 4, kOtherWarp), HasSubstr("without a barrier"));
  EXPECT_THAT(shadow_.Read(8, 4, AfterWarpBarrier(kOtherWarp)),
              HasSubstr("without a barrier"));
  EXPECT_THAT(shadow_.Read(8, 4, AfterWarpBarrier(kOtherLane)), IsEmpty());
  EXPECT_THAT(shadow_.Read(8, 4, AfterBlockBarrier(kOtherWarp)), IsEmpty());
}

TEST_F(SharedShadowTest, WriteAfterReads) {
  for (const Access& last : {kFirst, kOtherLane, kOtherWarp}) {
    SharedShadow shadow(64);
    shadow.BeginBlock(3);
    Access before = kFirst;
    before.block_epoch = 3;
    ASSERT_THAT(shadow.Write(0, 4, before), IsEmpty());
    for (Access reader : {kFirst, kOtherLane, kOtherWarp, last}) {
      ASSERT_THAT(shadow.Read(0, 4, AfterBlockBarrier(reader)), IsEmpty());
    }
    // Whoever read last, the reads of all count.
    for (const Access& writer : {kFirst, kOtherLane, kOtherWarp}) {
      EXPECT_THAT(shadow.Write(0, 4, AfterBlockBarrier(writer)),
                  HasSubstr("after the read"));
    }
    EXPECT_THAT(
        shadow.Write(0, 4, AfterBlockBarrier(AfterBlockBarrier(kFirst))),
        IsEmpty());
  }
}

TEST_F(SharedShadowTest, OneLaneIsInOrder) {
  ASSERT_THAT(shadow_.Write(0, 4, kFirst), IsEmpty());
  ASSERT_THAT(shadow_.Read(0, 4, kFirst), IsEmpty());
  EXPECT_THAT(shadow_.Write(0, 4, kFirst), IsEmpty());
}

TEST_F(SharedShadowTest, WholeWarpIsNot) {
  Access matrix = kFirst;
  matrix.whole_warp = true;
  ASSERT_THAT(shadow_.Write(0, 4, kFirst), IsEmpty());
  EXPECT_THAT(shadow_.Read(0, 4, matrix), HasSubstr("without a barrier"));
  ASSERT_THAT(shadow_.Read(0, 4, AfterWarpBarrier(matrix)), IsEmpty());
  EXPECT_THAT(shadow_.Write(0, 4, AfterWarpBarrier(kFirst)),
              HasSubstr("after the read"));
}

TEST_F(SharedShadowTest, AtomicsAreOrderedAmongThemselvesOnly) {
  EXPECT_THAT(shadow_.Atomic(0, 4, kFirst), HasSubstr("nobody wrote"));
  ASSERT_THAT(shadow_.Write(0, 4, kFirst), IsEmpty());
  ASSERT_THAT(shadow_.Atomic(0, 4, kFirst), IsEmpty());
  // The write, not the atomic, is in the way of the other warp.
  EXPECT_THAT(shadow_.Atomic(0, 4, kOtherWarp),
              HasSubstr("after the write in line 70"));
  for (const Access& access : {kFirst, kOtherLane, kOtherWarp}) {
    EXPECT_THAT(shadow_.Atomic(0, 4, AfterBlockBarrier(access)), IsEmpty());
  }
  EXPECT_THAT(shadow_.Read(0, 4, AfterBlockBarrier(kFirst)),
              HasSubstr("after the atomic"));
  EXPECT_THAT(shadow_.Write(0, 4, AfterBlockBarrier(kFirst)),
              HasSubstr("after the atomic"));
  const Access later = AfterBlockBarrier(AfterBlockBarrier(kFirst));
  EXPECT_THAT(shadow_.Read(0, 4, later), IsEmpty());
  EXPECT_THAT(
      shadow_.Atomic(0, 4, AfterBlockBarrier(AfterBlockBarrier(kOtherLane))),
      HasSubstr("after the read"));
}

TEST_F(SharedShadowTest, NobodyTouchesWhatACopyHasNotDelivered) {
  ASSERT_THAT(shadow_.Issue(16, 16, kFirst), IsEmpty());
  const Access later = AfterBlockBarrier(kFirst);
  EXPECT_THAT(shadow_.Read(16, 4, later), HasSubstr("not waited for"));
  EXPECT_THAT(shadow_.Write(28, 4, later), HasSubstr("not waited for"));
  EXPECT_THAT(shadow_.Issue(16, 16, later), HasSubstr("not waited for"));
  shadow_.Deliver(16, 16, later);
  EXPECT_THAT(shadow_.Read(16, 4, later), IsEmpty());
  // Others see it after a barrier only.
  EXPECT_THAT(shadow_.Read(16, 4, AfterBlockBarrier(kOtherLane)),
              HasSubstr("without a barrier"));
  EXPECT_THAT(
      shadow_.Read(16, 4, AfterWarpBarrier(AfterBlockBarrier(kOtherLane))),
      IsEmpty());
}

}  // namespace
}  // namespace blockmgr::simt::emulator
