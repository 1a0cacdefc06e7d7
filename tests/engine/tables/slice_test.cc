#include "engine/tables/slice.h"

#include <cstdint>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(SliceTest, AllOfItExists) {
  const std::vector<int32_t> all = {4, 5, 6};
  EXPECT_THAT(Slice(all, 1, 2), Optional(ElementsAre(5, 6)));
  EXPECT_THAT(Slice(all, 3, 0), Optional(IsEmpty()));
  EXPECT_EQ(Slice(all, 1, 3).has_value(), false);
  EXPECT_EQ(Slice(all, 4, 0).has_value(), false);
  EXPECT_EQ(Slice(all, -1, 2).has_value(), false);
  EXPECT_EQ(Slice(all, 1, -1).has_value(), false);
  EXPECT_EQ(Slice(all, INT64_MAX, INT64_MAX).has_value(), false);
}

}  // namespace
}  // namespace blockmgr
