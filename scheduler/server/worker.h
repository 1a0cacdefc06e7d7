// A thread that does small jobs for the core thread when they are due. A small
// job takes tens of microseconds, and nobody waits for it.
#ifndef SCHEDULER_SERVER_WORKER_H_
#define SCHEDULER_SERVER_WORKER_H_

#include <chrono>
#include <map>
#include <thread>

#include <absl/base/thread_annotations.h>
#include <absl/functional/any_invocable.h>

#include "scheduler/server/mutex.h"

namespace blockmgr {

// Thread-safe.
class Worker {
 public:
  using Job = absl::AnyInvocable<void()>;
  using Clock = std::chrono::steady_clock;

  Worker();   // starts the thread
  ~Worker();  // does what has been posted, due or not, then joins
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Never waits for a job. Jobs run in order of `due`, then of posting. A job
  // that is already due runs next. Jobs may post jobs.
  void Post(Clock::time_point due, Job job);

 private:
  void Run();

  Mutex mutex_;
  CondVar wake_;  // an earlier job than those before, or stopping_
  std::multimap<Clock::time_point, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_WORKER_H_
