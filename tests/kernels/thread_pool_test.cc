#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/testing/sanitizers.h"

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

// The other threads may have pieces of their own when one throws.
TEST(ThreadPoolTest, AnExceptionReachesTheCaller) {
  for (const int32_t num_threads : {1, 4}) {
    ThreadPool pool(num_threads);
    for (int32_t loop = 0; loop < 100; ++loop) {
      const auto fail = [](int32_t piece) {
        if (piece % 3 == 1) throw std::runtime_error("no room");
      };
      EXPECT_THROW(pool.ParallelFor(16, fail), std::runtime_error);
      std::atomic<int32_t> num_calls = 0;
      pool.ParallelFor(16, [&](int32_t) { num_calls.fetch_add(1); });
      EXPECT_EQ(num_calls.load(), 16);
    }
  }
}

TEST(ThreadPoolTest, HardwareThreadsArePossible) {
  EXPECT_EQ(ThreadPool::CountHardwareThreads(0), 1);
  EXPECT_EQ(ThreadPool::CountHardwareThreads(48), 48);
  EXPECT_EQ(ThreadPool::CountHardwareThreads(4096), ThreadPool::kMaxThreads);
}

TEST(ThreadPoolTest, AThreadThatIsRefusedIsAnError) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process";
  const auto exit_with_error = [] {
    // Room for the stacks of some threads.
    int64_t num_pages = 0;
    std::ifstream("/proc/self/statm") >> num_pages;
    const auto used = static_cast<rlim_t>(num_pages * sysconf(_SC_PAGESIZE));
    const rlimit limit{used + (rlim_t{64} << 20), RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    try {
      const ThreadPool pool(ThreadPool::kMaxThreads);
    } catch (const std::system_error& error) {
      std::fprintf(stderr, "%s", error.what());
      std::_Exit(3);
    }
  };
  EXPECT_EXIT(exit_with_error(), testing::ExitedWithCode(3),
              "threads: expected at most .*, as the system refuses more, got "
              "1024");
}

TEST(ThreadPoolTest, EndsWhileThreadsSpinOrSleep) {
  for (int32_t i = 0; i < 20; ++i) ThreadPool pool(3);
  ThreadPool pool(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace blockmgr
