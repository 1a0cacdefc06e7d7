#include "scheduler/server/worker.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr {
namespace {

Worker::Clock::time_point Soon() { return Worker::Clock::time_point(); }

TEST(WorkerTest, DoesJobsInOrderOnAThreadOfItsOwn) {
  std::vector<int> done;
  std::thread::id thread;
  {
    Worker worker;
    for (int i = 0; i < 100; ++i) {
      worker.Post(Soon(), [&, i] {
        done.push_back(i);
        thread = std::this_thread::get_id();
      });
    }
  }
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(WorkerTest, PostDoesNotWaitForAJob) {
  std::latch blocked(1);
  bool second = false;
  {
    Worker worker;
    worker.Post(Soon(), [&] { blocked.wait(); });
    worker.Post(Soon(), [&] { second = true; });
    blocked.count_down();
  }
  EXPECT_TRUE(second);
}

TEST(WorkerTest, JobsWaitUntilTheyAreDueAndDoNotHoldUpOthers) {
  using std::chrono::milliseconds;
  const Worker::Clock::time_point start = Worker::Clock::now();
  std::vector<int> done;
  Worker::Clock::time_point late;
  std::latch finished(1);
  Worker worker;
  worker.Post(start + milliseconds(30), [&] {
    done.push_back(2);
    late = Worker::Clock::now();
    finished.count_down();
  });
  worker.Post(start + milliseconds(20), [&] { done.push_back(1); });
  worker.Post(Soon(), [&] { done.push_back(0); });
  finished.wait();
  EXPECT_THAT(done, testing::ElementsAre(0, 1, 2));
  EXPECT_GE(late, start + milliseconds(30));
}

TEST(WorkerTest, StoppingDoesWhatIsNotDue) {
  bool done = false;
  {
    Worker worker;
    worker.Post(Worker::Clock::now() + std::chrono::hours(1),
                [&] { done = true; });
  }
  EXPECT_TRUE(done);
}

TEST(WorkerTest, JobsMayPostJobs) {
  std::atomic<int> done = 0;
  {
    Worker worker;
    worker.Post(Soon(), [&] {
      worker.Post(Soon(), [&] {
        ++done;
        worker.Post(Soon(), [&] { ++done; });
      });
    });
  }
  EXPECT_EQ(done, 2);
}

TEST(WorkerTest, TakesJobsFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kJobs = 1000;
  int done = 0;  // of the worker's thread alone
  {
    Worker worker;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kJobs; ++i) worker.Post(Soon(), [&] { ++done; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(done, kThreads * kJobs);
}

}  // namespace
}  // namespace blockmgr
