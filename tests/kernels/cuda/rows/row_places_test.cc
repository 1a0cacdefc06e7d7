// Where the functors of the row mover find rows.
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/cuda/rows/row_mover.cuh"
#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {
namespace {

// Of what is beside the pool only addresses are formed: it would take the
// emulator long to get there.
TEST(RowPlacesTest, AddressesBesideThePoolHave64Bits) {
  // Neither is followed.
  // NOLINTBEGIN(performance-no-int-to-ptr)
  char* const base = reinterpret_cast<char*>(uintptr_t{1} << 20);
  auto* const positions = reinterpret_cast<int32_t*>(uintptr_t{1} << 50);
  // NOLINTEND(performance-no-int-to-ptr)
  uint32_t error = 0;
  for (const int64_t row :
       {int64_t{17}, (int64_t{1} << 24) + 18, (int64_t{5} << 31) + 19}) {
    const RowPlace packed = PackedRows{base, positions, 512}.At(row, &error);
    EXPECT_EQ(packed.key - base, row * 1024);
    EXPECT_EQ(packed.position - positions, row);
    const RowPlace staged =
        StagedPageRows{base, positions, 256, MakeDivider(16)}.At(row, &error);
    EXPECT_EQ(staged.key - base, row / 16 * 8192 + row % 16 * 256);
    EXPECT_EQ(staged.position - positions, row);
    const AppendRows append = {
        .pool = {.num_heads = 8, .by_heads = MakeDivider(8)},
        .positions = positions,
        .keys = base,
        .token_stride = 6144,
        .head_stride = 256};
    const RowPlace token = TokenRows{append}.At(row, &error);
    EXPECT_EQ(token.key - base, row / 8 * 6144 + row % 8 * 256);
    EXPECT_EQ(token.position - positions, row / 8);
  }
  EXPECT_EQ(error, 0u);
}

TEST(RowPlacesTest, DivisionsAreExactOnBothSidesOf31Bits) {
  for (const uint32_t divisor : {1u, 2u, 3u, 7u, 16u, 32u, 0x7FFFFFFFu}) {
    const Divider by = MakeDivider(divisor);
    for (const int64_t around :
         {int64_t{1} << 31, int64_t{3} << 31, int64_t{1} << 52}) {
      for (int64_t n = around - 40; n < around + 40; ++n) {
        ASSERT_EQ(DivideWide(n, by), n / divisor) << n << " / " << divisor;
      }
    }
  }
}

TEST(RowPlacesTest, SlotsHavePlacesInPagesOfAnySize) {
  PagedPool pool;
  // Neither is followed.
  // NOLINTBEGIN(performance-no-int-to-ptr)
  pool.base = reinterpret_cast<char*>(uintptr_t{1} << 20);
  pool.positions = reinterpret_cast<int32_t*>(uintptr_t{1} << 50);
  // NOLINTEND(performance-no-int-to-ptr)
  pool.num_layers = 2;
  pool.num_blocks = 5;
  pool.num_heads = 3;
  pool.row_bytes = 16;
  pool.token_stride = 32;
  for (const int32_t page_size : {1, 2, 3, 4, 12, 16, 31, 32}) {
    pool.page_size = page_size;
    pool.head_stride = page_size * pool.token_stride;
    pool.block_stride = 3 * pool.head_stride;
    pool.layer_stride = 5 * pool.block_stride;
    pool = Prepared(pool);
    for (int64_t slot = 0; slot < pool.num_slots(); ++slot) {
      const RowPlace row = pool.RowOfSlot(slot);
      ASSERT_TRUE(row.valid);
      ASSERT_EQ(row.key - pool.base, slot * 32) << page_size;
      ASSERT_EQ(row.position - pool.positions, slot) << page_size;
    }
    EXPECT_FALSE(pool.RowOfSlot(-1).valid);
    EXPECT_FALSE(pool.RowOfSlot(pool.num_slots()).valid);
  }
}

}  // namespace
}  // namespace blockmgr
