// The core thread, and the bounded lock-free queue of its commands.
//
// Every posted command is answered exactly once, whatever happens. It is
// carried out, or it is refused at once because the queue is full
// (ResourceExhausted, to AttachEngine Unavailable) or the thread has stopped
// (Unavailable). Some commands go round a full queue, so that they are never
// refused for want of room: those that report what has already happened
// (ClientGone, EngineResult, EngineLost) and those that end the service (Drain,
// CloseAll). Commands of one poster are handled in order, except those that
// went round the queue.
//
// The thread waits for work by a short spin, then by a sleep. The spin saves a
// step the time to wake a sleeping thread.
//
// Threads: Post, Probe and prefix_cache_version are thread-safe, and callable
// from inside replies and sinks; Stop by one thread.
#ifndef SCHEDULER_SERVER_CORE_THREAD_H_
#define SCHEDULER_SERVER_CORE_THREAD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <absl/base/thread_annotations.h>
#include <boost/lockfree/queue.hpp>

#include "scheduler/server/commands.h"
#include "scheduler/server/core.h"
#include "scheduler/server/mutex.h"

namespace blockmgr {

struct CoreThreadOptions {
  CoreOptions core;
  // The most commands that wait, from 1 to 65000.
  int32_t queue_capacity = 4096;
  int32_t spin_us = 50;  // counts as 0 on a single processor
  // A pass over the queue begins no command after this time. So the result of a
  // step waits at most for this time and for one command.
  double max_pass_s = 0.002;
};

class CoreThread {
 public:
  // Starts the thread.
  CoreThread(CoreThreadOptions options, SchedulerFactory factory);
  // Stops the thread.
  ~CoreThread();

  void Post(Command command);

  // Core::prefix_cache_version.
  uint64_t prefix_cache_version() const { return core_.prefix_cache_version(); }

  // Carries out what has been posted, refuses what comes after, and joins.
  // Returns at once when called again.
  void Stop();

  // Returns whether the loop has turned since the last Probe, and makes it turn
  // again. A caller that asks once a second knows whether the thread is alive.
  bool Probe();

 private:
  void Run();
  // Handles the commands of one pass. Returns whether more may be queued.
  bool HandleQueued();
  void HandleUrgent();
  void Signal();
  void WaitForSignal(uint64_t seen);

  // Constant.
  const int32_t spin_us_;
  const double max_pass_s_;

  // Thread-safe by themselves.
  boost::lockfree::queue<Command*> queue_;
  std::atomic<uint64_t> signals_{0};  // grows when the thread must wake
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int32_t> num_posting_{0};  // calls of Post that may still push
  std::atomic<uint64_t> probe_sent_{0};
  std::atomic<uint64_t> probe_seen_{0};

  Mutex mutex_;
  CondVar wake_;  // signals_ has grown
  std::vector<std::unique_ptr<Command>> urgent_ ABSL_GUARDED_BY(mutex_);

  // Core thread.
  Core core_;
  std::vector<std::unique_ptr<Command>> taken_;

  std::thread thread_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CORE_THREAD_H_
