// What crosses between the threads that serve clients and the core thread, as
// plain data: commands in, replies and sinks out.
//
// A reply is called exactly once, by the core thread or, when the command was
// refused, by the thread that posted it. Replies and sinks must return soon:
// they hand data over and never wait for a peer.
#ifndef SCHEDULER_SERVER_COMMANDS_H_
#define SCHEDULER_SERVER_COMMANDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/prefix_cache_delta.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/request_metrics.h"

namespace blockmgr {

template <typename T>
using Reply = absl::AnyInvocable<void(T)>;
using StatusReply = Reply<absl::Status>;

// Calls a reply that is kept somewhere, and lets go of what it holds.
template <typename T, typename Value>
void AnswerOnce(Reply<T>* reply, Value&& value) {
  std::exchange(*reply, nullptr)(std::forward<Value>(value));
}

// A live request as its client's stream sees it. Shared with the sink, which
// may send its last tokens when the request is gone. `batch` and `chunk` are
// the sink's: where it last put tokens of this request, so that a step's tokens
// find their chunk without a search.
struct RequestStream : std::enable_shared_from_this<RequestStream> {
  std::string id;
  uint64_t batch = 0;
  int32_t chunk = 0;
};

// One token (finish == nullptr) or the end of a request.
struct TokenItem {
  RequestStream* stream = nullptr;
  int32_t token = 0;
  int32_t index = 0;
  const FinishEffect* finish = nullptr;
  // What the engine says of tokens from this one on, or null.
  const std::string* data = nullptr;
};

// The token stream of one client. Called by the core thread only.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // Takes all of a client's items of one pass; the items live until the call
  // returns, their streams as long as somebody shares them. False when the
  // client is too far behind: the sink has closed itself, and the client's
  // requests are to be cancelled.
  [[nodiscard]] virtual bool Deliver(std::span<const TokenItem> items) = 0;
  // Nothing delivered is left to be sent, nor will it ever be.
  virtual bool HasSentAll() const { return true; }
  // Ends the stream once everything delivered has been sent.
  virtual void Close(const absl::Status& status) = 0;
};

// The step stream of one engine. Called by the core thread only.
class EngineSink {
 public:
  virtual ~EngineSink() = default;
  virtual void SendPlan(const StepPlan& plan) = 0;
  // The result of the last EngineResult is no longer needed.
  virtual void ReadNext() = 0;
  virtual void Close(const absl::Status& status) = 0;
};

// --- Frontends ---

// FailedPrecondition: no stream of this session; see Scheduler::Submit.
struct SubmitCommand {
  std::string session;
  Request request;
  StatusReply done;
  // The request says nothing of evictions: the daemon's default is its own.
  bool default_eviction = false;
};

struct CancelCommand {
  std::string request_id;
  StatusReply done;
};

// How many scores an eviction of a live request takes that covers positions
// [0, cut): layers x heads x cut. Errors: Unavailable, NotFound.
struct CountScores {
  std::string request_id;
  int32_t cut = 0;
  Reply<absl::StatusOr<int64_t>> done;
};

// The reply comes when the eviction ends.
struct EvictCommand {
  std::string request_id;
  EvictionCommand eviction;
  Reply<absl::StatusOr<EvictionEffect>> done;
};

// AlreadyExists: the session has a stream.
struct OpenClient {
  std::string session;
  std::shared_ptr<TokenSink> sink;
  StatusReply done;
};

// The stream has ended; nothing happens unless it is the session's open one.
struct ClientGone {
  std::string session;
  std::shared_ptr<TokenSink> sink;
};

// --- The engine ---

// What an engine is told when it attaches.
struct Attachment {
  uint64_t epoch = 0;
  uint64_t session = 0;
  SchedulerOptions options;
};

struct AttachEngine {
  ModelLayout layout;
  std::string name;
  Reply<absl::StatusOr<Attachment>> done;
  int32_t num_scorer_states = 0;
  int32_t num_host_blocks = 0;
  bool supports_window_evictions = false;
  // Of an engine with an open step stream, which ends with Aborted when this
  // one's opens. PermissionDenied without `may_replace`.
  bool replace = false;
  bool may_replace = false;
};

// FailedPrecondition STALE_EPOCH: not the daemon's epoch, or not the session
// of the last attachment. PermissionDenied: the session takes the place of an
// engine, and the caller may not (`may_replace`).
struct OpenSteps {
  uint64_t epoch = 0;
  uint64_t session = 0;
  std::shared_ptr<EngineSink> sink;
  StatusReply done;
  bool may_replace = false;
};

// `result` is the sink's and stays unchanged until ReadNext.
struct EngineResult {
  std::shared_ptr<EngineSink> sink;
  const StepResult* result = nullptr;
};

struct EngineLost {
  std::shared_ptr<EngineSink> sink;
  std::string why = {};  // for the log, where it is known
};

// --- Operators ---

struct CoreStats {
  bool engine_attached = false;
  std::string engine_name;
  std::optional<ModelLayout> layout;  // unset before the first attachment
  uint64_t epoch = 0;
  uint64_t generation = 0;  // of the scheduler, whose counts begin at 0
  SchedulerStats scheduler;
  RequestMetrics requests;  // of this process, whatever engines came and went
  // Integral of num_running over time, and the time it covers.
  double running_request_seconds = 0;
  double clock_seconds = 0;
  // Since the last reset_peaks, or the scheduler began.
  int32_t max_running = 0;
  int32_t max_used_blocks = 0;
  double peaks_since_seconds = 0;  // clock_seconds then
};

struct GetStats {
  bool reset_peaks = false;
  Reply<absl::StatusOr<CoreStats>> done;
};

struct ResetPrefixCache {
  Reply<absl::StatusOr<CacheReset>> done;
};

// A reader's position, over the lives of daemons and caches. By default,
// nowhere.
struct PrefixCacheCursor {
  uint64_t epoch = 0;  // of the daemon
  uint64_t cache = 0;  // changes with the layout; 0: there was none yet
  PrefixCachePosition position = {};
};

struct PrefixCacheReading {
  PrefixCacheCursor cursor;  // after it
  int32_t page_size = 0;     // 0: there is no cache yet
  PrefixCacheDelta delta;
};

// See PrefixCache::Read. A cursor of another daemon or cache is at no position.
struct ReadPrefixCache {
  PrefixCacheCursor cursor;
  // The smaller of the two, but at least a block.
  int32_t max_blocks = 0;
  int32_t max_tokens = 0;
  Reply<absl::StatusOr<PrefixCacheReading>> done;
};

// Refuses Submit from now on; `done` when no request is unfinished and all
// tokens have been sent, which is looked at in every pass.
struct Drain {
  StatusReply done;
};

// Drain, then cancels every request and closes every stream with `reason`. The
// prefix cache is not read any more.
struct CloseAll {
  absl::Status reason;
};

using Command =
    std::variant<SubmitCommand, CancelCommand, CountScores, EvictCommand,
                 OpenClient, ClientGone, AttachEngine, OpenSteps, EngineResult,
                 EngineLost, GetStats, ResetPrefixCache, ReadPrefixCache, Drain,
                 CloseAll>;

// Answers a command that will not be carried out.
inline void Refuse(Command* command, const absl::Status& status) {
  std::visit(
      [&status](auto& refused) {
        if constexpr (requires { refused.done(status); }) refused.done(status);
      },
      *command);
}

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_COMMANDS_H_
