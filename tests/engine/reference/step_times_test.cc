#include "engine/reference/step_times.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

using ::testing::ElementsAre;

StepTime Step(int32_t num_rows, int64_t begin_us, int64_t end_us,
              double device_s) {
  const std::chrono::steady_clock::time_point zero;
  return {.begin = zero + std::chrono::microseconds(begin_us),
          .end = zero + std::chrono::microseconds(end_us),
          .device_s = device_s,
          .num_rows = num_rows};
}

TEST(StepTimesTest, KindsAreApart) {
  StepTimes times;
  times.Add(Step(256, 0, 20'000, 0.019));
  times.Add(Step(0, 21'000, 61'000, 0.04));
  times.Add(Step(256, 61'100, 91'100, 0.0285));
  EXPECT_THAT(
      times.Lines(),
      ElementsAre("other steps: 1 steps of 40.000 ms, 40.000 ms on the device, "
                  "0.00 % beside it",
                  "decode steps of 256 rows: 2 steps of 25.000 ms, 23.750 ms "
                  "on the device, 5.00 % beside it"));
}

TEST(StepTimesTest, AGapIsBetweenTwoOfAKind) {
  StepTimes times;
  times.Add(Step(8, 0, 1'000, 0.001));
  times.Add(Step(8, 1'200, 2'200, 0.001));
  times.Add(Step(8, 2'600, 3'600, 0.001));
  times.Skip();
  times.Add(Step(8, 9'000, 10'000, 0.001));
  times.Add(Step(16, 20'000, 21'000, 0.001));
  EXPECT_EQ(times.sums().at(8).num_steps, 4);
  EXPECT_EQ(times.sums().at(8).num_gaps, 2);
  EXPECT_NEAR(times.sums().at(8).gap_s, 6e-4, 1e-9);
  EXPECT_EQ(times.sums().at(16).num_gaps, 0);
}

}  // namespace
}  // namespace blockmgr
