// Lists of entries that a device makes of tables.
#include <algorithm>
#include <cstdint>
#include <iterator>

#include <gtest/gtest.h>

#include "kernels/cuda/rows/row_mover.h"
#include "tests/kernels/cuda/selection/index_checks.h"
#include "tests/kernels/cuda/test_device.h"
#include "tests/testing/random.h"

namespace blockmgr {
namespace {

class EntryIndexTest : public DeviceTest {};

TEST_F(EntryIndexTest, EntriesAreInPositionOrder) {
  for (uint64_t seed = 0; seed < CountDeviceCases(60); ++seed) {
    ASSERT_EQ(CheckIndex(seed), "") << "seed " << seed;
  }
}

// A list with a region of two entries at least.
int64_t SomeRegion(const IndexCase& index) {
  int64_t row = 0;
  while (index.region_lengths[row] < 2) ++row;
  return row;
}

TEST_F(EntryIndexTest, PositionsBehindTheCutAreReportedAndNotWritten) {
  for (const int32_t beyond : {-1, 0, 1 << 20}) {
    SCOPED_TRACE(beyond);
    Rng rng(7);
    IndexCase index(rng, true);
    // Every row is looked at.
    while (std::ssize(index.cuts) != index.num_sequences) {
      index = IndexCase(rng, true);
    }
    const int64_t row = SomeRegion(index);
    const int32_t cut =
        index.cuts[row / index.num_heads % std::ssize(index.cuts)];
    index
        .region_positions[(index.region_offsets[row] << index.page_shift) + 1] =
        beyond == -1 ? -1 : cut + beyond;
    for (const bool in_chunks : {false, true}) {
      index.in_chunks = in_chunks;
      // One entry of the list is nowhere; all others may be elsewhere in it.
      EXPECT_NE(index.Run({}), "");
      EXPECT_EQ(index.error[0], uint32_t{kPositionOutOfCut});
      EXPECT_EQ(std::ranges::count(index.slots, -1), 2);
      EXPECT_EQ(std::ranges::count(index.positions, -1), 2);
    }
  }
}

// The last list gets room for so many entries more than it has, or fewer.
void ExpectReportOfRoom(int32_t more) {
  SCOPED_TRACE(more);
  Rng rng(10);
  IndexCase index(rng, true);
  const int64_t last = index.num_lists() - 1;
  const int32_t slot = index.sequence_slots[index.num_sequences - 1];
  const int64_t row =
      (int64_t{index.num_layers - 1} * std::ssize(index.cuts) + slot) *
          index.num_heads +
      index.num_heads - 1;
  const int32_t region = index.region_lengths[row];
  ASSERT_GT(region, 3);
  const int64_t num_unharmed = index.offsets[last];
  index.offsets.back() = num_unharmed + region + more;
  if (more > 0) index.offsets.back() += index.tail_lengths[slot];
  index.expected.resize(index.num_entries(), {-1, -1});
  for (const bool in_chunks : {false, true}) {
    index.in_chunks = in_chunks;
    index.Run({});
    EXPECT_EQ(index.error[0], uint32_t{kOffsetsOutOfLists});
    EXPECT_EQ(std::ranges::count(index.slots, -1), 1 + std::max(more, 0));
    EXPECT_EQ(index.slots.back(), -1);
    for (int64_t i = 0; i < num_unharmed; ++i) {
      ASSERT_EQ(index.slots[i], index.expected[i].second) << i;
    }
  }
}

TEST_F(EntryIndexTest, OffsetsThatDoNotFitAreReported) {
  ExpectReportOfRoom(3);
  ExpectReportOfRoom(-2);
}

TEST_F(EntryIndexTest, OffsetsAreLookedAtWithoutTailsToo) {
  Rng rng(9);
  IndexCase index(rng, true);
  ASSERT_GT(index.longest_tail, 0);
  // Offsets have room for what tails had.
  std::ranges::fill(index.tail_lengths, 0);
  index.longest_tail = 0;
  index.Run({});
  EXPECT_EQ(index.error[0], uint32_t{kOffsetsOutOfLists});
}

}  // namespace
}  // namespace blockmgr
