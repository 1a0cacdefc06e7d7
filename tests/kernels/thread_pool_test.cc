#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

TEST(ThreadPoolTest, RunsEachPieceOnce) {
  for (const int32_t num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (int32_t num_pieces = 0; num_pieces < 200; ++num_pieces) {
      std::vector<std::atomic<int32_t>> calls(static_cast<size_t>(num_pieces));
      pool.ParallelFor(num_pieces, [&](int32_t piece) {
        calls[static_cast<size_t>(piece)].fetch_add(1);
      });
      for (const auto& count : calls) ASSERT_EQ(count.load(), 1);
    }
  }
}

// A piece of one loop never runs after that loop, nor with another's function.
TEST(ThreadPoolTest, LoopsDoNotOverlap) {
  ThreadPool pool(4);
  for (int32_t loop = 0; loop < 5000; ++loop) {
    int32_t plain[8] = {};
    pool.ParallelFor(8, [&](int32_t piece) { plain[piece] = loop + piece; });
    for (int32_t i = 0; i < 8; ++i) ASSERT_EQ(plain[i], loop + i);
  }
}

TEST(ThreadPoolTest, WakesThreadsThatSleep) {
  ThreadPool pool(2);
  for (int32_t loop = 0; loop < 3; ++loop) {
    // Longer than an idle thread spins.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int32_t> num_inside = 0;
    // Both pieces must run at a time.
    pool.ParallelFor(2, [&](int32_t) {
      num_inside.fetch_add(1);
      while (num_inside.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(num_inside.load(), 2);
  }
}

TEST(ThreadPoolTest, EndsWhileThreadsSpinOrSleep) {
  for (int32_t i = 0; i < 20; ++i) ThreadPool pool(3);
  ThreadPool pool(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace blockmgr
