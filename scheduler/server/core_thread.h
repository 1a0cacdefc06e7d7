// The core thread, and the way to it: one bounded lock-free queue.
//
// Every posted command is answered exactly once, whatever happens: carried out,
// or refused at once when the queue is full (ResourceExhausted) or the thread
// has stopped (Unavailable). Commands that report what has already happened
// (ClientGone, EngineResult, EngineLost) or end the service (Drain, CloseAll)
// are never refused for want of room: they go round a full queue. Commands of
// one poster are handled in order, except for those that went round.
//
// Waiting for work is a short spin, which saves a step the wake-up of a
// sleeping thread, and then a sleep.
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
  int32_t queue_capacity = 4096;  // commands, 1..65000
  int32_t spin_us = 50;           // taken as 0 on a single processor
};

class CoreThread {
 public:
  // Starts the thread.
  CoreThread(CoreThreadOptions options, SchedulerFactory factory);
  ~CoreThread();  // stops it

  void Post(Command command);

  // See Core.
  uint64_t prefix_cache_version() const { return core_.prefix_cache_version(); }

  // Carries out what has been posted, refuses what comes after, and joins.
  // Returns at once when called again.
  void Stop();

  // True when the loop has turned since the last Probe; makes it turn. Ask
  // once a second to know that the thread is alive.
  bool Probe();

 private:
  void Run();
  // At most `limit` commands; the number handled.
  int32_t HandleQueued(int32_t limit);
  void HandleUrgent();
  void Signal();
  void WaitForSignal(uint64_t seen);

  // Constant.
  const int32_t spin_us_;

  // Synchronise themselves.
  boost::lockfree::queue<Command*> queue_;
  std::atomic<uint64_t> signals_{0};  // grows with everything worth waking for
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
