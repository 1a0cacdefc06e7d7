// That the sums of errors forget nothing.
#include "tests/kernels/cuda/attention/attention_error.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/simt.h"

namespace blockmgr {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of a row with this lse and a good one after it.
AttentionError ErrorOfTwoRows(double expected, float lse) {
  const std::vector<simt::Half> one = {simt::FromFloat<simt::Half>(1.0f)};
  ErrorSum sum;
  sum.Add({.output = {1.0}, .lse = expected}, one.data(), lse);
  sum.Add({.output = {1.0}, .lse = 2.0}, one.data(), 2.0f);
  return sum.Get();
}

TEST(ErrorSumTest, AGoodRowHidesNoBadOne) {
  EXPECT_EQ(ErrorOfTwoRows(3.0, 3.0f).lse, 0.0);
  EXPECT_EQ(ErrorOfTwoRows(3.0, 3.5f).lse, 0.5);
  EXPECT_EQ(ErrorOfTwoRows(-kInfinity, -kInfinity).lse, 0.0);
  for (const float lse : {std::nanf(""), kInfinity, -kInfinity}) {
    EXPECT_GE(ErrorOfTwoRows(3.0, lse).lse, 1e30) << lse;
  }
  for (const float lse : {std::nanf(""), kInfinity, 3.0f}) {
    EXPECT_GE(ErrorOfTwoRows(-kInfinity, lse).lse, 1e30) << lse;
  }
}

TEST(ErrorSumTest, AGoodRowHidesNoNanOutput) {
  const std::vector<simt::Half> one = {simt::FromFloat<simt::Half>(1.0f)};
  const std::vector<simt::Half> nan = {simt::Half{0x7FFF}};
  ErrorSum sum;
  sum.Add({.output = {1.0}, .lse = 2.0}, nan.data(), 2.0f);
  sum.Add({.output = {1.0}, .lse = 2.0}, one.data(), 2.0f);
  EXPECT_FALSE(sum.Get().relative <= 1.0);
}

}  // namespace
}  // namespace blockmgr
