// WorldCore: a daemon's core, the wire to it, and virtual time.
//
// Clients, engine and operators send messages over the Transport and hand
// commands to the core. The core works in passes. A pass has one command, or as
// many as the options say.
#ifndef TESTS_SIM_WORLD_CORE_H_
#define TESTS_SIM_WORLD_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <absl/status/status.h>

#include "scheduler/server/core.h"
#include "tests/sim/audited_scheduler.h"
#include "tests/sim/options.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/sim/transport.h"

namespace blockmgr::sim {

// OnceReply is a reply that must come exactly once, however the run ends.
class OnceReply {
 public:
  OnceReply(Report* report, const char* what) : report_(report), what_(what) {}
  OnceReply(const OnceReply&) = delete;
  OnceReply& operator=(const OnceReply&) = delete;
  ~OnceReply() {
    if (count_ != 1) {
      report_->Fail(what_, " was answered ", count_, " times");
    }
  }
  void Came(const absl::Status& status) {
    ++count_;
    report_->Mix(static_cast<uint64_t>(status.code()));
  }

 private:
  Report* const report_;
  const char* const what_;
  int32_t count_ = 0;
};

class WorldCore {
 public:
  // Borrows both.
  WorldCore(const SimOptions& options, Report* report)
      : options_(options), report_(report) {}

  // Makes the core. `check` is called after every pass.
  void Start(BudgetTables tables, std::function<void()> check);
  // Ends the core. It may still answer and close streams.
  void Stop() { core_.reset(); }

  const SimOptions& options() const { return options_; }
  Report* report() const { return report_; }
  Random& random() { return random_; }
  int64_t now() const { return transport_.now(); }
  // Returns the core's scheduler, or null before the first attachment.
  AuditedScheduler* scheduler() const { return scheduler_; }

  // All draws from now on follow from `seed`.
  void Reseed(uint64_t seed) { random_ = Random(seed); }
  void StopFaults() { has_faults_ = false; }
  bool has_faults() const { return has_faults_; }

  void Advance(int64_t ticks);
  // Hands a command to the core, in the pass that is open or in one of its own.
  void Post(Command command);
  std::shared_ptr<OnceReply> Expect(const char* what) {
    return std::make_shared<OnceReply>(report_, what);
  }
  // Sends a call over the wire, which may lose, delay or repeat it.
  void Call(Transport::Delivery delivery);
  void Send(int64_t delay, Transport::Delivery delivery) {
    transport_.Send(delay, std::move(delivery));
  }
  void SendInOrder(Transport::Channel* channel, int64_t delay,
                   Transport::Delivery delivery) {
    transport_.SendInOrder(channel, delay, std::move(delivery));
  }
  // Draws a delay of at most so many ticks.
  int64_t Delay(int32_t most) {
    return most <= 0 ? 0 : random_.Between(0, most);
  }

 private:
  void OpenPass();
  void ClosePass();

  const SimOptions& options_;
  Report* const report_;
  Random random_{0};  // of the current event
  Transport transport_;
  AuditedScheduler* scheduler_ = nullptr;
  std::unique_ptr<Core> core_;
  std::function<void()> check_;
  bool pass_is_open_ = false;
  int32_t num_in_pass_ = 0;
  bool has_faults_ = true;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_WORLD_CORE_H_
