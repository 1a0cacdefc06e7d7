// Moves planned on a device, against PlaceSurvivors' rule.
#include <cstddef>
#include <cstdint>
#include <limits>

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
  for (uint64_t seed = 0; seed < CountDeviceCases(30); ++seed) {
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
  SharedVector<uint32_t> error = {0};
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
                            .num_moves = 5,
                            .error = error.data()};
  EXPECT_EQ(RunKernel({}, &DeviceRuntime::PlanMoves, plan).error, "");
  EXPECT_EQ(error[0], 0u);
  const int64_t want[][2] = {{12, 12}, {13, 13}, {20, 4}, {4, 5}, {-1, -1}};
  for (size_t i = 0; i < moves.size(); ++i) {
    EXPECT_EQ(moves[i].source, want[i][0]) << i;
    EXPECT_EQ(moves[i].destination, want[i][1]) << i;
  }
}

// The second head gets its moves wherever it has its room.
TEST_F(SelectMovesTest, HeadsWithoutRoomGetNoMoves) {
  const SharedVector<int64_t> offsets = {0, 3, 5};
  const SharedVector<int64_t> slots = {20, 4, 21, 12, 13};
  const SharedVector<int32_t> positions = {30, 31, 32, 40, 41};
  const SharedVector<uint32_t> survivors = {0b111, 0b11, 0};
  // No head has the first page or the last move.
  const SharedVector<int32_t> pages = {1, 5, 6, 3};
  struct Case {
    const char* name;
    int32_t kept = 3;
    int32_t first_page = 1;
    int64_t first_move = 2;
    int64_t num_moves = 5;
    int64_t num_pages = 4;
    bool fits = false;
    bool second_fits = true;
  };
  const Case cases[] = {
      {.name = "fits", .fits = true},
      {.name = "too few pages", .first_page = 2},
      {.name = "pages before the first", .first_page = -1},
      {.name = "moves behind the last", .num_moves = 4},
      {.name = "moves before the first", .first_move = -1},
      {.name = "moves far before the first",
       .first_move = std::numeric_limits<int64_t>::min()},
      {.name = "fewer than none", .kept = -1},
      {.name = "pages behind the last", .num_pages = 2, .second_fits = false},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const SharedVector<int32_t> page_offsets = {one.first_page, 3, 4};
    const SharedVector<int32_t> kept = {one.kept, 2};
    const SharedVector<int64_t> move_offsets = {one.first_move, 0};
    auto moves = Poisoned<RowMove>(6);
    auto region_positions = Poisoned<int32_t>(8);
    SharedVector<uint32_t> error = {0};
    const SelectMoves plan = {.num_heads = 2,
                              .page_size = 2,
                              .offsets = offsets.data(),
                              .slots = slots.data(),
                              .positions = positions.data(),
                              .survivors = survivors.data(),
                              .page_offsets = page_offsets.data(),
                              .pages = pages.data(),
                              .num_pages = one.num_pages,
                              .kept = kept.data(),
                              .move_offsets = move_offsets.data(),
                              .moves = moves.data(),
                              .num_moves = one.num_moves,
                              .region_positions = region_positions.data(),
                              .error = error.data()};
    EXPECT_EQ(RunKernel({}, &DeviceRuntime::PlanMoves, plan).error, "");
    EXPECT_EQ(error[0], one.fits ? 0u : uint32_t{kOffsetsOutOfLists});
    for (size_t i = 0; i < moves.size(); ++i) {
      EXPECT_EQ(moves[i].source != -1,
                i < 2 ? one.second_fits : one.fits && i < 5)
          << i;
    }
    for (size_t i = 0; i < region_positions.size(); ++i) {
      EXPECT_EQ(region_positions[i] != -1,
                i >= 6 ? one.second_fits : one.fits && i >= 2 && i < 5)
          << i;
    }
  }
}

}  // namespace
}  // namespace blockmgr
