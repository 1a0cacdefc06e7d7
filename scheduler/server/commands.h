// Commands to the core thread, with the replies and sinks that answer them, as
// plain data.
//
// A reply is called exactly once: by the core thread or, if the command was
// refused, by the thread that posted it. Replies and sinks must return soon.
// They hand data over and never wait for a peer.
#ifndef SCHEDULER_SERVER_COMMANDS_H_
#define SCHEDULER_SERVER_COMMANDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/engine_abilities.h"
#include "blockmgr/prefix_cache_delta.h"
#include "blockmgr/sampling_params.h"
#include "blockmgr/served_model.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/request_metrics.h"

namespace blockmgr {

template <typename T>
using Reply = absl::AnyInvocable<void(T)>;
using StatusReply = Reply<absl::Status>;

// Calls a stored reply and frees what it holds.
template <typename T, typename Value>
void AnswerOnce(Reply<T>* reply, Value&& value) {
  std::exchange(*reply, nullptr)(std::forward<Value>(value));
}

// A live request as its client's stream sees it. The sink shares it, because it
// may send the last tokens after the request is gone. `batch` and `chunk`
// belong to the sink: they say where it last put tokens of this request, so
// that a step's tokens find their chunk without a search.
struct RequestStream : std::enable_shared_from_this<RequestStream> {
  std::string id;
  // The number of the request among those of its GenerateCommand.
  int32_t index = 0;
  uint64_t batch = 0;
  int32_t chunk = 0;
};

// One token, or log-probabilities (if `logprobs` is not null), or the end of a
// request (if `finish` is not null).
struct TokenItem {
  RequestStream* stream = nullptr;
  int32_t token = 0;
  int32_t index = 0;  // the index of the request's next output
  const FinishEffect* finish = nullptr;
  // Bytes that the engine adds to the tokens from this one on, or null.
  const std::string* data = nullptr;
  const LogProbsEffect* logprobs = nullptr;
};

// TokenSink is the token stream of one client. Only the core thread calls it.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // Takes all of a client's items of one pass. The items live until the call
  // returns, their streams as long as somebody shares them. Returns false if
  // the client is too far behind. The sink has then closed itself, and the
  // caller must cancel the client's requests.
  [[nodiscard]] virtual bool Deliver(std::span<const TokenItem> items) = 0;
  // Returns whether everything delivered has been sent, or never will be.
  virtual bool HasSentAll() const { return true; }
  // Ends the stream once everything delivered has been sent.
  virtual void Close(const absl::Status& status) = 0;
};

// EngineSink is the step stream of one engine. Only the core thread calls it.
class EngineSink {
 public:
  virtual ~EngineSink() = default;
  virtual void SendPlan(const StepPlan& plan) = 0;
  // Says that the result of the last EngineResult is no longer needed. The sink
  // may read the next one.
  virtual void ReadNext() = 0;
  virtual void Close(const absl::Status& status) = 0;
};

// --- Frontends ---

// Submits a request, whose tokens go to the stream of its session. Errors are
// FailedPrecondition, if the session has no open stream, and those of
// Scheduler::Submit.
struct SubmitCommand {
  std::string session;
  Request request;
  StatusReply done;
  // Whether the request takes the daemon's default eviction.
  bool default_eviction = false;
};

// Opens a session for one call and submits its request and, for further
// answers, forks of the request. If one of them is refused, none is submitted.
// The id of the request is also that of the call. Errors are those of
// SubmitCommand, and InvalidArgument if the tokens are more than a sequence may
// have.
struct GenerateCommand {
  std::string session;
  std::shared_ptr<TokenSink> sink;
  Request request;
  int32_t num_answers = 1;  // at least one
  StatusReply done;
  // Whether the request takes the daemon's default eviction.
  bool default_eviction = false;
  // Whether the answers may take as many tokens as fit, up to max_tokens.
  bool all_tokens = false;
};

struct CancelCommand {
  std::string request_id;
  StatusReply done;
};

// Cancels the requests of these ids and, if an id names a call of
// GenerateCommand, all of its requests. Unknown ids are no error.
struct AbortCommand {
  std::vector<std::string> request_ids;
  StatusReply done;
};

// Asks for the number of scores that an eviction of positions [0, cut) of a
// live request takes: layers x heads x cut. Errors: Unavailable, NotFound.
struct CountScores {
  std::string request_id;
  int32_t cut = 0;
  Reply<absl::StatusOr<int64_t>> done;
};

// Orders an eviction of a live request. The reply comes when the eviction ends.
struct EvictCommand {
  std::string request_id;
  EvictionCommand eviction;
  Reply<absl::StatusOr<EvictionEffect>> done;
};

// Opens a session with its stream. AlreadyExists if the session is open.
struct OpenClient {
  std::string session;
  std::shared_ptr<TokenSink> sink;
  StatusReply done;
};

// Tells that a stream has ended. Nothing happens unless it is the session's
// open stream.
struct ClientGone {
  std::string session;
  std::shared_ptr<TokenSink> sink;
};

// --- The engine ---

// The answer to an engine that attaches.
struct Attachment {
  uint64_t epoch = 0;
  uint64_t session = 0;
  SchedulerOptions options;
};

// Makes the engine the one whose step stream may open next. AlreadyExists if
// another engine has an open step stream.
struct AttachEngine {
  ModelLayout layout;
  std::string name;
  Reply<absl::StatusOr<Attachment>> done;
  EngineAbilities abilities = {};
  // Null if the engine has told nothing of its model.
  std::shared_ptr<const ServedModel> model = nullptr;
  // Whether to take the place of an engine with an open step stream, instead of
  // an error. The other stream ends with Aborted when this engine's stream
  // opens. PermissionDenied without `may_replace`.
  bool replace = false;
  bool may_replace = false;
};

// Opens the step stream of the engine that has attached last.
// FailedPrecondition STALE_EPOCH if the epoch is not the daemon's, or the
// session is not that of the last attachment. AlreadyExists if the session has
// an open step stream. PermissionDenied if the session takes the place of an
// engine and the caller may not (`may_replace`).
struct OpenSteps {
  uint64_t epoch = 0;
  uint64_t session = 0;
  std::shared_ptr<EngineSink> sink;
  StatusReply done;
  bool may_replace = false;
};

// Brings the answer to the oldest plan. The sink owns `result` and leaves it
// unchanged until ReadNext.
struct EngineResult {
  std::shared_ptr<EngineSink> sink;
  const StepResult* result = nullptr;
};

// Tells that a step stream has ended. Nothing happens unless it is open.
struct EngineLost {
  std::shared_ptr<EngineSink> sink;
  // The reason, to be logged. Empty if the reason is not known.
  std::string why = {};
};

// --- Operators ---

struct CoreStats {
  bool engine_attached = false;
  std::string engine_name;
  std::optional<ModelLayout> layout;  // unset before the first attachment
  EngineSampling sampling;
  // The model of the last engine that opened its step stream. Null if that
  // engine told nothing of its model, or if no engine has opened one yet.
  std::shared_ptr<const ServedModel> model;
  // The most tokens of a sequence: max_model_len, or fewer if the model's
  // context has fewer.
  int32_t max_sequence_tokens = 0;
  bool draining = false;
  uint64_t epoch = 0;
  // The number of the scheduler. The counts of a new scheduler begin at 0.
  uint64_t generation = 0;
  SchedulerStats scheduler;
  // The metrics of all requests since this process began, of every engine.
  RequestMetrics requests;
  // The integral of num_running over time, and the time it covers.
  double running_request_seconds = 0;
  double clock_seconds = 0;
  // The peaks since the last GetStats with reset_peaks, or since the scheduler
  // began, and the value of clock_seconds at that time.
  int32_t max_running = 0;
  int32_t max_used_blocks = 0;
  double peaks_since_seconds = 0;
};

struct GetStats {
  bool reset_peaks = false;
  Reply<absl::StatusOr<CoreStats>> done;
  // Whether to count SchedulerStats::metadata_bytes, in O(cached regions).
  bool counts_metadata = false;
};

struct ResetPrefixCache {
  Reply<absl::StatusOr<CacheReset>> done;
};

// A reader's position, which also names the daemon and the cache. By default it
// is the beginning.
struct PrefixCacheCursor {
  uint64_t epoch = 0;  // the daemon's epoch
  // The number of the cache, which changes with the layout. 0 means that there
  // was no cache yet.
  uint64_t cache = 0;
  PrefixCachePosition position = {};
};

struct PrefixCacheReading {
  PrefixCacheCursor cursor;  // the position after this reading
  int32_t page_size = 0;     // 0 if there is no cache yet
  PrefixCacheDelta delta;
};

// Reads the prefix cache from a position on (PrefixCache::Read). A cursor of
// another daemon or cache counts as the beginning.
struct ReadPrefixCache {
  PrefixCacheCursor cursor;
  // The reading stops at the first of these limits, but not before it has one
  // block.
  int32_t max_blocks = 0;
  int32_t max_tokens = 0;
  Reply<absl::StatusOr<PrefixCacheReading>> done;
};

// Refuses Submit from now on. Every pass looks whether no request is unfinished
// and all tokens have been sent; `done` is called when this is so.
struct Drain {
  StatusReply done;
};

// Refuses Submit from now on, cancels every request, and closes every stream
// with `reason`. From then on, ReadPrefixCache is refused, too.
struct CloseAll {
  absl::Status reason;
};

using Command =
    std::variant<SubmitCommand, GenerateCommand, CancelCommand, AbortCommand,
                 CountScores, EvictCommand, OpenClient, ClientGone,
                 AttachEngine, OpenSteps, EngineResult, EngineLost, GetStats,
                 ResetPrefixCache, ReadPrefixCache, Drain, CloseAll>;

// Answers a command that is not carried out.
inline void Refuse(Command* command, const absl::Status& status) {
  std::visit(
      [&status](auto& refused) {
        if constexpr (requires { refused.done(status); }) refused.done(status);
      },
      *command);
}

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_COMMANDS_H_
