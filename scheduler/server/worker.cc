#include "scheduler/server/worker.h"

#include <utility>

namespace blockmgr {

Worker::Worker() : thread_([this] { Run(); }) {}

Worker::~Worker() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  thread_.join();
}

void Worker::Post(Clock::time_point due, Job job) {
  bool is_first = false;
  {
    MutexLock lock(&mutex_);
    const auto added = jobs_.emplace(due, std::move(job));
    is_first = added == jobs_.begin();
  }
  if (is_first) wake_.NotifyAll();
}

void Worker::Run() {
  while (true) {
    Job job;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ &&
             (jobs_.empty() || jobs_.begin()->first > Clock::now())) {
        if (jobs_.empty()) {
          wake_.Wait(&mutex_);
        } else {
          wake_.WaitUntil(&mutex_, jobs_.begin()->first);
        }
      }
      if (jobs_.empty()) return;
      job = std::move(jobs_.extract(jobs_.begin()).mapped());
    }
    job();
  }
}

}  // namespace blockmgr
