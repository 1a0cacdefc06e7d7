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
                            .num_pages = 2,
                            .kept = kept.data(),
                            .move_offsets = move_offsets.data(),
                            .moves = moves.data(),
                            .num_moves = 5};
  EXPECT_EQ(RunKernel({}, &DeviceRuntime::PlanMoves, plan).error, "");
  const int64_t want[][2] = {{12, 12}, {13, 13}, {20, 4}, {4, 5}, {-1, -1}};
  for (size_t i = 0; i < moves.size(); ++i) {
    EXPECT_EQ(moves[i].source, want[i][0]) << i;
    EXPECT_EQ(moves[i].destination, want[i][1]) << i;
  }
}

TEST_F(SelectMovesTest, HeadsWithoutRoomGetNoMoves) {
  const SharedVector<int64_t> offsets = {0, 3};
  const SharedVector<int64_t> slots = {20, 4, 21};
  const SharedVector<uint32_t> survivors = {0b111, 0};
  const SharedVector<int32_t> pages = {1, 3};
  struct Case {
    const char* name;
    int32_t kept = 3;
    SharedVector<int32_t> page_offsets = {0, 2};
    int64_t first_move = 1;
    bool fits = false;
  };
  const Case cases[] = {
      {.name = "fits", .fits = true},
      {.name = "too few pages", .page_offsets = {0, 1}},
      {.name = "pages behind the last", .page_offsets = {1, 3}},
      {.name = "pages before the first", .page_offsets = {-1, 1}},
      {.name = "moves behind the last", .first_move = 2},
      {.name = "moves before the first", .first_move = -1},
      {.name = "fewer than none", .kept = -1},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const SharedVector<int32_t> kept = {one.kept};
    const SharedVector<int64_t> move_offsets = {one.first_move};
    auto moves = Poisoned<RowMove>(4);
    SharedVector<uint32_t> error = {0};
    const SelectMoves plan = {.num_heads = 1,
                              .page_size = 2,
                              .offsets = offsets.data(),
                              .slots = slots.data(),
                              .survivors = survivors.data(),
                              .page_offsets = one.page_offsets.data(),
                              .pages = pages.data(),
                              .num_pages = 2,
                              .kept = kept.data(),
                              .move_offsets = move_offsets.data(),
                              .moves = moves.data(),
                              .num_moves = 4,
                              .error = error.data()};
    EXPECT_EQ(RunKernel({}, &DeviceRuntime::PlanMoves, plan).error, "");
    EXPECT_EQ(error[0], one.fits ? 0u : uint32_t{kOffsetsOutOfLists});
    for (size_t i = 0; i < moves.size(); ++i) {
      EXPECT_EQ(moves[i].source != -1, one.fits && i > 0) << i;
    }
  }
}

}  // namespace
}  // namespace blockmgr
