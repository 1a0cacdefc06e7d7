// Moves planned on a device, against PlaceSurvivors' rule.
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/cuda/rows/row_mover.h"
#include "kernels/cuda/selection/select.h"
#include "tests/kernels/cuda/selection/move_checks.h"
#include "tests/kernels/cuda/selection/select_runner.h"
#include "tests/kernels/cuda/test_device.h"

namespace blockmgr {
namespace {

class SelectMovesTest : public DeviceTest {};

TEST_F(SelectMovesTest, EqualTheCpuOverAHistory) {
  for (uint64_t seed = 0; seed < NumCases(30); ++seed) {
    ASSERT_EQ(CheckHistory(seed), "") << "seed " << seed;
  }
}

TEST_F(SelectMovesTest, LongHeadsEqualTheCpuAndAreCarriedOut) {
  for (uint64_t seed = 0; seed < 3u * TestCaseFactor(); ++seed) {
    ASSERT_EQ(CheckLong(seed), "") << "seed " << seed;
  }
}

// A head whose region was laid out for fewer survivors than there are gets no
// moves beyond its list, and heads may begin in any order.
TEST_F(SelectMovesTest, SurvivorsBeyondTheListAreLeftOut) {
  const SharedVector<int64_t> offsets = {0, 3, 5};
  const SharedVector<int64_t> slots = {20, 4, 21, 12, 13};
  const SharedVector<uint32_t> survivors = {0b111, 0b11, 0};
  const SharedVector<int32_t> page_offsets = {0, 1, 2};
  const SharedVector<int32_t> pages = {1, 3};
  const SharedVector<int32_t> kept = {2, 2};
  const SharedVector<int64_t> move_offsets = {2, 0};
  auto moves = Poisoned<RowMove>(5);
  const SelectMoves plan = {.num_heads = 2,
                            .page_size = 4,
                            .offsets = offsets.data(),
                            .slots = slots.data(),
                            .survivors = survivors.data(),
                            .page_offsets = page_offsets.data(),
                            .pages = pages.data(),
                            .kept = kept.data(),
                            .move_offsets = move_offsets.data(),
                            .moves = moves.data()};
  EXPECT_EQ(RunKernel({}, &DeviceRuntime::PlanMoves, plan).error, "");
  const int64_t want[][2] = {{12, 12}, {13, 13}, {20, 4}, {4, 5}, {-1, -1}};
  for (size_t i = 0; i < moves.size(); ++i) {
    EXPECT_EQ(moves[i].source, want[i][0]) << i;
    EXPECT_EQ(moves[i].destination, want[i][1]) << i;
  }
}

}  // namespace
}  // namespace blockmgr
