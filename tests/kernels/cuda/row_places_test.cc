// Where the functors of the row mover find rows.
#include <cstdint>

#include <gtest/gtest.h>

#include "kernels/cuda/row_mover.cuh"
#include "kernels/cuda/row_mover.h"

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
    const RowPlace packed =
        PackedDestination{base, positions, 512}.At(row, &error);
    EXPECT_EQ(packed.key - base, row * 1024);
    EXPECT_EQ(packed.position - positions, row);
    const RowPlace staged =
        StagedRows{base, positions, 256, 16}.At(row, &error);
    EXPECT_EQ(staged.key - base, row / 16 * 8192 + row % 16 * 256);
    EXPECT_EQ(staged.position - positions, row);
    const AppendRows append = {.pool = {.num_heads = 8},
                               .positions = positions,
                               .keys = base,
                               .token_stride = 6144,
                               .head_stride = 256};
    const RowPlace token = TokenSource{append}.At(row, &error);
    EXPECT_EQ(token.key - base, row / 8 * 6144 + row % 8 * 256);
    EXPECT_EQ(token.position - positions, row / 8);
  }
  EXPECT_EQ(error, 0u);
}

}  // namespace
}  // namespace blockmgr
