#include "kernels/cuda/shared_leave.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(SharedLeaveTest, IsGivenOncePerDeviceAndForMore) {
  SharedLeave leave;
  int32_t num_given = 0;
  const auto ensure = [&](int device, int64_t bytes) {
    return leave.Ensure<int>(device, bytes, [&] {
      ++num_given;
      return 0;
    });
  };
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(ensure(0, 60'000), 0);
    EXPECT_EQ(ensure(0, 50'000), 0);
  }
  EXPECT_EQ(num_given, 1);
  EXPECT_EQ(ensure(5, 50'000), 0);
  EXPECT_EQ(num_given, 2);
  EXPECT_EQ(ensure(5, 60'000), 0);
  EXPECT_EQ(num_given, 3);
  EXPECT_EQ(ensure(5, 50'000), 0);
  EXPECT_EQ(num_given, 3);
}

TEST(SharedLeaveTest, WhatFailedIsAskedForAgain) {
  SharedLeave leave;
  EXPECT_EQ(leave.Ensure<int>(0, 60'000, [] { return 7; }), 7);
  EXPECT_EQ(leave.Ensure<int>(0, 60'000, [] { return 0; }), 0);
  EXPECT_EQ(leave.Ensure<int>(0, 60'000, [] { return 8; }), 0);
}

TEST(SharedLeaveTest, DevicesBeyondTheLastGetItEveryTime) {
  SharedLeave leave;
  int32_t num_given = 0;
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(leave.Ensure<int>(1000, 60'000,
                                [&] {
                                  ++num_given;
                                  return 0;
                                }),
              0);
  }
  EXPECT_EQ(num_given, 3);
}

TEST(SharedLeaveTest, ThreadsEndWithTheMost) {
  for (int turn = 0; turn < 20; ++turn) {
    SharedLeave leave;
    std::atomic<int64_t> last = 0;
    std::vector<std::thread> threads;
    for (int64_t i = 1; i <= 4; ++i) {
      threads.emplace_back([&leave, &last, bytes = 50'000 * i] {
        leave.Ensure<int>(0, bytes, [&last, bytes] {
          last = bytes;
          return 0;
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(last, 200'000);
  }
}

}  // namespace
}  // namespace blockmgr
