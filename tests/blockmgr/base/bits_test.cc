#include "blockmgr/base/bits.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(CeilDivTest, IsTheSmallestCountThatHoldsAll) {
  for (int32_t a = 0; a <= 200; ++a) {
    for (int32_t b = 1; b <= 40; ++b) {
      int32_t expected = 0;
      while (expected * b < a) ++expected;
      EXPECT_EQ(CeilDiv(a, b), expected) << a << " / " << b;
    }
  }
}

TEST(CeilDivTest, WorksIn64Bits) {
  EXPECT_EQ(CeilDiv(int64_t{1} << 40, int64_t{16}), int64_t{1} << 36);
  EXPECT_EQ(CeilDiv((int64_t{1} << 40) + 1, int64_t{16}),
            (int64_t{1} << 36) + 1);
  EXPECT_EQ(CeilDiv(~uint64_t{0} - 1, uint64_t{2}), ~uint64_t{0} / 2);
}

TEST(CeilDivTest, TakesEveryNumberOfItsType) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(CeilDiv(kMax, 16), 1 << 27);
  EXPECT_EQ(CeilDiv(kMax - 15, 16), (1 << 27) - 1);
  EXPECT_EQ(CeilDiv(kMax, kMax), 1);
  EXPECT_EQ(CeilDiv(~uint64_t{0}, uint64_t{16}), uint64_t{1} << 60);
}

// The published sequence of the generator with seed 1234567: its state grows by
// the golden gamma, which SplitMix64 adds itself.
TEST(SplitMix64Test, GivesThePublishedSequence) {
  constexpr uint64_t kExpected[] = {6457827717110365317u, 3203168211198807973u,
                                    9817491932198370423u, 4593380528125082431u,
                                    16408922859458223821u};
  uint64_t state = 1234567;
  for (const uint64_t expected : kExpected) {
    EXPECT_EQ(SplitMix64(state), expected);
    state += 0x9E3779B97F4A7C15u;
  }
}

TEST(SplitMix64Test, IsUsableInConstantExpressions) {
  static_assert(SplitMix64(0) == 0xE220A8397B1DCDAFu);
}

}  // namespace
}  // namespace blockmgr
