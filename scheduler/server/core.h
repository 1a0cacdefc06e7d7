// Core: carries out the commands of clients, engines and operators. Commands
// and time go in; plans, tokens and replies come out.
//
// Three classes own the state around the Scheduler:
//
//   EngineSeat        which engine is served, and its plans
//   ClientSessions    which clients may submit, and who gets which effects
//   CoreLoad          the time, and the load over time
//
// Core maps each command to calls of these classes and of the Scheduler.
//
// The work is done in passes: BeginPass(now), any number of Handle(),
// EndPass(). EndPass first issues plans until the pipeline is full and then
// delivers effects, so the engine never waits for the delivery of tokens.
//
// Between passes, every live request of the Scheduler belongs to exactly one
// client with an open stream. When that stream ends, the client's requests are
// cancelled. The first attachment creates the Scheduler. It is replaced only
// when an engine of another layout attaches while no request is live.
//
// Threads: core thread. Core reads no clock, does not know gRPC, and never
// waits. Cost of a pass: O(commands + tokens), plus the Scheduler's own.
#ifndef SCHEDULER_SERVER_CORE_H_
#define SCHEDULER_SERVER_CORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/budget_tables.h"
#include "scheduler/server/client_sessions.h"
#include "scheduler/server/commands.h"
#include "scheduler/server/core_load.h"
#include "scheduler/server/engine_seat.h"
#include "scheduler/server/request_metrics.h"

namespace blockmgr {

using SchedulerFactory =
    std::function<absl::StatusOr<std::unique_ptr<Scheduler>>(
        const ModelLayout&, const SchedulerOptions&)>;

struct CoreOptions {
  SchedulerOptions scheduler;
  BudgetTables tables;  // the tables that policies may name
  // The eviction of requests that do not mention one, with its table.
  RequestEviction default_eviction;
  uint64_t epoch = 1;  // a random number of this daemon process
  // The engine counts as lost when the oldest plan has waited longer than this
  // for its answer, by an AwakeClock. With 0, the engine has no limit. Every
  // pass checks this, so the caller must begin at least one pass a second.
  double step_timeout_seconds = 0;
  // Called when an engine's stream opens, and when the last open stream ends.
  // `what` names the engine and the reason.
  std::function<void(bool attached, const std::string& what)> on_engine_change;
};

class Core {
 public:
  Core(CoreOptions options, SchedulerFactory factory);
  ~Core();

  // Begins a pass at `now_seconds`. If the clock has gone back, the last pass's
  // time counts.
  void BeginPass(double now_seconds);
  // Carries out a command, and takes what it holds. Its reply is called now or,
  // for Drain and EvictCommand, when what it waits for has happened.
  void Handle(Command* command);
  void EndPass();

  // Returns a number that changes whenever the answer of ReadPrefixCache may
  // change. A reader that has read everything need not ask again before the
  // number changes. Thread-safe.
  uint64_t prefix_cache_version() const { return cache_version_.load(); }

 private:
  // Carries out a command and returns its answer. Functions that return nothing
  // answer by themselves, now or later, or have nothing to answer.
  absl::Status Do(SubmitCommand& command);
  absl::Status Do(GenerateCommand& command);
  absl::Status Do(CancelCommand& command);
  absl::Status Do(AbortCommand& command);
  absl::StatusOr<int64_t> Do(CountScores& command);
  void Do(EvictCommand& command);
  absl::Status Do(OpenClient& command);
  void Do(ClientGone& command);
  absl::StatusOr<Attachment> Do(AttachEngine& command);
  absl::Status Do(OpenSteps& command);
  void Do(EngineResult& command);
  void Do(EngineLost& command);
  CoreStats Do(GetStats& command);
  CacheReset Do(ResetPrefixCache& command);
  absl::StatusOr<PrefixCacheReading> Do(ReadPrefixCache& command);
  void Do(Drain& command);
  void Do(CloseAll& command);

  // Starts the eviction. Takes its reply, unless the eviction fails at once.
  absl::Status StartEviction(EvictCommand* command);
  // Cancels requests in the given order, except those that have ended already.
  void CancelAll(const std::vector<RequestId>& requests);
  // Hands effects_ to the clients, and cuts off clients that are too far
  // behind.
  void DeliverEffects();
  void IssuePlans();
  // Empties the seat, and lets go of all that only its engine can finish.
  void LoseEngine();
  // Loses the engine and reports that no engine is attached any more.
  void DropEngine(absl::string_view why);
  // Takes the scheduler that the last attachment brings. Does nothing if the
  // attachment brings none.
  void TakeNextScheduler();
  // Returns whether no request is unfinished.
  bool idle() const {
    return scheduler_ == nullptr || !scheduler_->has_unfinished_requests();
  }

  // Constant.
  const CoreOptions options_;
  const SchedulerFactory factory_;

  // Core thread.
  std::unique_ptr<Scheduler> scheduler_;  // null before the first attachment
  uint64_t num_schedulers_ = 0;           // schedulers created so far
  EngineSeat seat_;
  RequestMetrics metrics_;
  ClientSessions sessions_;
  CoreLoad load_;
  Effects effects_;  // effects that are not delivered yet
  StepPlan plan_;    // reused by IssuePlans

  bool draining_ = false;
  bool closed_ = false;               // set by CloseAll
  std::vector<StatusReply> drained_;  // the replies of Drain

  std::atomic<uint64_t> cache_version_{0};  // written by the core thread
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CORE_H_
