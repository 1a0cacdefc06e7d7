// Core: the sessions around a Scheduler. It knows which clients may submit,
// which client gets which effects, and which engine gets the plans. Commands
// and time go in; plans, tokens and replies come out.
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
// Threads: core thread. No clock, no gRPC; nothing here waits.
// Cost of a pass: O(commands + tokens), plus the Scheduler's own.
#ifndef SCHEDULER_SERVER_CORE_H_
#define SCHEDULER_SERVER_CORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <boost/circular_buffer.hpp>

#include "blockmgr/base/ids.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/awake_clock.h"
#include "scheduler/server/budget_tables.h"
#include "scheduler/server/commands.h"

namespace blockmgr {

using SchedulerFactory =
    std::function<absl::StatusOr<std::unique_ptr<Scheduler>>(
        const ModelLayout&, const SchedulerOptions&)>;

struct CoreOptions {
  SchedulerOptions scheduler;
  BudgetTables tables;  // that policies name
  // The eviction of requests that do not mention one, with its table.
  RequestEviction default_eviction;
  uint64_t epoch = 1;  // of this daemon process; random
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
  void Handle(Command* command);
  void EndPass();

  // A number that changes whenever the answer of ReadPrefixCache may change. A
  // reader that has read everything need not ask again before. Thread-safe.
  uint64_t prefix_cache_version() const { return cache_version_.load(); }

 private:
  struct Client {
    std::shared_ptr<TokenSink> sink;
    absl::flat_hash_set<RequestId> requests;
    std::vector<TokenItem> outbox;  // of this pass
    std::string call;  // the id of its GenerateCommand; empty: there was none
  };
  struct LiveRequest {
    std::shared_ptr<RequestStream> stream = std::make_shared<RequestStream>();
    Client* client = nullptr;  // null once the client is gone
    std::string session;
    // Below 0: not yet.
    double submitted_seconds = -1;
    double started_seconds = -1;  // first step
    double first_token_seconds = -1;
    uint64_t eviction = 0;  // commanded and under way; 0: none
    Reply<absl::StatusOr<EvictionEffect>> evicted;
  };

  // The times at which a plan was issued.
  struct Issue {
    double now_seconds = 0;
    double awake_seconds = 0;
  };

  void Do(SubmitCommand& command);
  void Do(GenerateCommand& command);
  void Do(CancelCommand& command);
  void Do(AbortCommand& command);
  void Do(CountScores& command);
  void Do(EvictCommand& command);
  void Do(OpenClient& command);
  void Do(ClientGone& command);
  void Do(AttachEngine& command);
  void Do(OpenSteps& command);
  void Do(EngineResult& command);
  void Do(EngineLost& command);
  void Do(GetStats& command);
  void Do(ResetPrefixCache& command);
  void Do(ReadPrefixCache& command);
  void Do(Drain& command);
  void Do(CloseAll& command);

  absl::Status Submit(SubmitCommand* command);
  absl::Status Generate(GenerateCommand* command);
  absl::StatusOr<Attachment> Attach(AttachEngine* command);
  absl::Status Cancel(const std::string& request_id);
  // Starts the eviction; its reply is kept unless it fails at once.
  absl::Status StartEviction(EvictCommand* command);
  static absl::Status ShuttingDown();
  // OK when Submit and Evict make sense.
  absl::Status CheckEngine() const;
  absl::StatusOr<int64_t> Count(const CountScores& command) const;
  // No request is unfinished.
  bool idle() const {
    return scheduler_ == nullptr || !scheduler_->has_unfinished_requests();
  }
  // No token waits to be sent. O(clients).
  bool HasSentAll() const;

  void IssuePlans();
  // Closes the stream of an engine that does not answer.
  void CheckStepTimeout();
  // Tells of it, too.
  void DropEngine(const std::string& why);
  void ForgetEngine();
  // If there is one.
  void TakeNextScheduler();
  // Adds what the engine's model tells to needed_model_.
  void NoteModel();
  // Tells the Scheduler the time, if there is one.
  void TellTime();
  // Hands effects_ to the clients; cuts off those too far behind.
  void DeliverEffects();
  void FillOutboxes();
  void EndEviction(EvictionEffect* effect);
  PrefixCacheReading Read(const ReadPrefixCache& command) const;
  uint64_t CountCacheVersion() const;
  // Adds the end of a request to metrics_.
  void ObserveEnd(const LiveRequest& live, const FinishEffect& effect);
  // Cancels requests, in order of submission: hash order would make runs
  // differ. Those that have ended in this pass are left alone.
  void CancelAll(const absl::flat_hash_set<RequestId>& requests);
  // Forgets the session and cancels its requests; the sink is not closed.
  void RemoveClient(const std::string& session);
  void Sample();

  // Constant.
  const CoreOptions options_;
  const SchedulerFactory factory_;

  // Core thread.
  std::unique_ptr<Scheduler> scheduler_;  // null before the first attachment
  uint64_t num_schedulers_ = 0;           // so far
  absl::flat_hash_map<std::string, std::unique_ptr<Client>> clients_;
  // The sessions of calls of GenerateCommand, by the id of the call. The latest
  // one, if an earlier one with this id has yet to say that it is gone.
  absl::flat_hash_map<std::string, std::string> calls_;
  absl::flat_hash_map<RequestId, LiveRequest> requests_;
  std::vector<std::string> touched_;  // sessions with a filled outbox
  Effects effects_;
  StepPlan plan_;

  uint64_t engine_session_ = 0;  // of the last attachment; 0: none yet
  std::string engine_name_;      // of the last step stream
  std::string attaching_name_;   // of the last attachment
  // The models of the engines with these two names.
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<const ServedModel> attaching_model_;
  // Name and context_tokens of the models that have served the live requests,
  // as far as an engine has told them; all of them had the same name. Without
  // live requests it means nothing.
  ServedModel needed_model_;
  SchedulerOptions attaching_options_;  // of the last attachment
  bool replaces_ = false;  // its stream will take the place of engine_
  // The scheduler of an attachment that replaces an engine of another layout,
  // until its stream opens.
  std::unique_ptr<Scheduler> next_scheduler_;
  std::shared_ptr<EngineSink> engine_;    // null: no open step stream
  bool read_next_ = false;                // the last result has been consumed
  boost::circular_buffer<Issue> issues_;  // of plans out, oldest first

  bool draining_ = false;
  bool closed_ = false;  // CloseAll
  std::vector<StatusReply> drained_;

  double start_seconds_ = -1;  // below 0: no pass yet
  double now_seconds_ = 0;
  AwakeClock awake_;
  double running_request_seconds_ = 0;
  int32_t num_running_ = 0;
  int32_t max_running_ = 0;
  int32_t max_used_blocks_ = 0;
  double peaks_since_seconds_ = 0;  // from start_seconds_
  RequestMetrics metrics_;

  std::atomic<uint64_t> cache_version_{0};  // written by the core thread
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CORE_H_
