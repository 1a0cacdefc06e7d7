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

  // Starts the thread.
  Worker();
  // Runs all posted jobs, even if they are not due, then joins the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Never waits for a job. Jobs run in order of `due`, then of posting. A job
  // that is already due runs next. Jobs may post jobs.
  void Post(Clock::time_point due, Job job);

 private:
  void Run();

  Mutex mutex_;
  // Signals a job that is due earlier than all others, or stopping_.
  CondVar wake_;
  std::multimap<Clock::time_point, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_WORKER_H_
