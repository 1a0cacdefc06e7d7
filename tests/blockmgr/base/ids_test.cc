#include "blockmgr/base/ids.h"

#include <cstdint>
#include <type_traits>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

template <typename From, typename To>
constexpr bool kMixes = std::is_convertible_v<From, To>;

TEST(IdsTest, IdsDoNotMixWithEachOtherOrWithNumbers) {
  static_assert(!kMixes<BlockId, PageId> && !kMixes<PageId, BlockId>);
  static_assert(!kMixes<BlockId, int32_t> && !kMixes<int32_t, BlockId>);
  static_assert(!kMixes<RequestId, StepId> && !kMixes<SequenceSlot, BlockId>);
}

TEST(IdsTest, IndexIsTheNumberInsideInItsOwnType) {
  static_assert(std::is_same_v<decltype(Index(PageId{7})), int32_t>);
  static_assert(std::is_same_v<decltype(Index(StepId{7})), uint64_t>);
  EXPECT_EQ(Index(BlockId{7}), 7);
  EXPECT_EQ(Index(RequestId{~uint64_t{0}}), ~uint64_t{0});
}

TEST(IdsTest, NullsAreWhereTheTablesExpectThem) {
  EXPECT_EQ(Index(kNullBlock), 0);
  EXPECT_LT(Index(kNoSequenceSlot), 0);
}

TEST(IdsTest, SlotIndexHoldsMoreThan32Bits) {
  static_assert(sizeof(SlotIndex) == 8 && std::is_signed_v<SlotIndex>);
}

}  // namespace
}  // namespace blockmgr
