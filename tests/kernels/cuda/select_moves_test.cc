// Moves planned on a device, against PlanCompaction's.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/row_mover.h"
#include "kernels/cuda/select.h"
#include "tests/kernels/cuda/move_checks.h"
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
  for (uint64_t seed = 0; seed < 8u * TestCaseFactor(); ++seed) {
    ASSERT_EQ(CheckLong(seed), "") << "seed " << seed;
  }
}

// Two heads of a pool of six pages, with memory of others on both sides of what
// is written per page.
struct MovesOutside {
  static constexpr int32_t kNumPages = 6;
  static constexpr int32_t kGuard = 8;

  MovesOutside() : page_places(kNumPages + 2 * kGuard, -1) {
    std::fill_n(page_places.begin(), kGuard, 0);
    std::fill_n(page_places.end() - kGuard, kGuard, 0);
  }

  void Run() {
    const SharedVector<int64_t> offsets = {0, 3, 5};
    const SharedVector<uint32_t> survivors = {0b111, 0b11, 0};
    const SharedVector<int32_t> page_offsets = {0, 1, 2};
    const SharedVector<int32_t> held = {1, 1};
    const SharedVector<int32_t> kept = {3, 2};
    SharedVector<int64_t> strays(5);
    SharedVector<uint32_t> filled(SurvivorWords(5, 2));
    SharedVector<int32_t> counts(4);
    const SelectMoves moves = {.num_heads = 2,
                               .page_size = 4,
                               .offsets = offsets.data(),
                               .slots = slots.data(),
                               .survivors = survivors.data(),
                               .page_offsets = page_offsets.data(),
                               .pages = pages.data(),
                               .held_pages = held.data(),
                               .kept = kept.data(),
                               .kept_offsets = offsets.data(),
                               .num_pages = kNumPages,
                               .error = error.data(),
                               .page_places = page_places.data() + kGuard,
                               .strays = strays.data(),
                               .filled = filled.data(),
                               .counts = counts.data(),
                               .moves = {phases[0].data(), phases[1].data()},
                               .num_moves = num_moves.data()};
    EXPECT_EQ(
        RunKernels({}, [&](DeviceRuntime& device) { device.PlanMoves(moves); })
            .error,
        "");
    for (int32_t i = 0; i < std::ssize(page_places); ++i) {
      const bool inside = i >= kGuard && i < kGuard + kNumPages;
      EXPECT_EQ(page_places[i], inside ? -1 : 0) << i - kGuard;
    }
  }
  void ExpectMove(int32_t i, int64_t source, int64_t destination) const {
    EXPECT_EQ(phases[0][i].source, source) << i;
    EXPECT_EQ(phases[0][i].destination, destination) << i;
  }

  // Head 0 has one entry on its page, head 1 both on its own.
  SharedVector<int64_t> slots = {20, 4, 21, 12, 13};
  SharedVector<int32_t> pages = {1, 3};
  SharedVector<int32_t> page_places;
  SharedVector<RowMove> phases[2] = {SharedVector<RowMove>(5),
                                     SharedVector<RowMove>(5)};
  SharedVector<int64_t> num_moves = {-1, -1};
  SharedVector<uint32_t> error = {0};
};

TEST_F(SelectMovesTest, SlotsOutsideThePoolAreReported) {
  constexpr int64_t kEnd = MovesOutside::kNumPages * 4;
  for (const int64_t slot : {int64_t{22}, int64_t{-1}, int64_t{-4}, int64_t{-9},
                             kEnd, kEnd + 1, kEnd + 9}) {
    SCOPED_TRACE(slot);
    MovesOutside test;
    test.slots[2] = slot;
    test.Run();
    EXPECT_EQ(test.error[0], slot == 22 ? 0u : uint32_t{kSlotOutOfPool});
    EXPECT_EQ(test.num_moves, (SharedVector<int64_t>{2, 0}));
    test.ExpectMove(0, 20, 5);
    test.ExpectMove(1, slot, 6);
  }
}

TEST_F(SelectMovesTest, PagesOutsideThePoolAreReportedAndMarkNothing) {
  for (const int32_t page :
       {-1, -5, MovesOutside::kNumPages, MovesOutside::kNumPages + 3}) {
    SCOPED_TRACE(page);
    MovesOutside test;
    test.pages[0] = page;
    test.Run();
    EXPECT_EQ(test.error[0], uint32_t{kPageOutOfPool});
    EXPECT_EQ(test.num_moves, (SharedVector<int64_t>{3, 0}));
    test.ExpectMove(0, 20, int64_t{page} * 4);
    test.ExpectMove(2, 21, int64_t{page} * 4 + 2);
  }
}

}  // namespace
}  // namespace blockmgr
