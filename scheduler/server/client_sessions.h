// ClientSessions: the sessions of clients, with their token streams, and the
// live requests of the Scheduler.
//
// A session begins with its stream (Open). Its requests are added when the
// Scheduler has accepted them (Add). Deliver hands what the Scheduler reports
// of them to the streams, and a request is gone after its FinishEffect. When a
// session ends first (Remove, or Deliver for a client that is too far behind),
// its requests stay live, without a client, until the caller has cancelled them
// and has delivered their end.
//
// This class also holds the replies of evictions that clients have ordered. A
// request has at most one such eviction under way. Every reply is called once.
//
// Threads: core thread. Functions that return requests return those of a
// session in order of submission, because hash order would make runs differ.
// Cost: O(1) for each item or request, besides sorting them.
#ifndef SCHEDULER_SERVER_CLIENT_SESSIONS_H_
#define SCHEDULER_SERVER_CLIENT_SESSIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/ids.h"
#include "blockmgr/step_plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/commands.h"
#include "scheduler/server/request_metrics.h"

namespace blockmgr {

class ClientSessions {
 public:
  // Times and ends of requests are added to `metrics`, which must outlive this.
  explicit ClientSessions(RequestMetrics* metrics) : metrics_(metrics) {}

  // --- Sessions ---

  // Opens a session with its stream. Returns false, with nothing changed, if
  // the session is open already.
  [[nodiscard]] bool Open(const std::string& session,
                          std::shared_ptr<TokenSink> sink);
  // Makes an open session that of a call of GenerateCommand. The requests of
  // the session are the answers of the call.
  void NameCall(const std::string& session, const std::string& call);
  // FailedPrecondition unless the session is open.
  absl::Status CheckOpen(const std::string& session) const;
  // Returns whether `sink` is the stream of the open session.
  bool HasStream(const std::string& session,
                 const std::shared_ptr<TokenSink>& sink) const;
  // Forgets a session that is open, and returns its live requests. The stream
  // is not closed.
  std::vector<RequestId> Remove(const std::string& session);
  // Returns the live requests of the call, and forgets its name, but not its
  // session. Returns nothing if no call has this name.
  std::optional<std::vector<RequestId>> TakeCall(const std::string& call);
  // Closes the streams of calls. Their sessions stay.
  void CloseCalls(const absl::Status& reason);
  // Closes all streams and forgets all sessions.
  // REQUIRES: there are no live requests.
  void CloseAll(const absl::Status& reason);
  // Returns whether no token waits to be sent. O(sessions).
  bool HasSentAll() const;

  // --- Requests ---

  // Adds a request that the Scheduler has accepted. REQUIRES: CheckOpen is OK.
  void Add(const std::string& session, RequestId request, std::string id,
           double now_seconds);
  // Notes which requests have their first step in `plan`.
  void NoteStarts(const StepPlan& plan, double now_seconds);
  // Hands the effects to the streams and forgets requests that have ended.
  // Replies of evictions take their effects out of `effects`. The sessions of
  // clients that are too far behind are removed. Returns the live requests of
  // these sessions.
  std::vector<RequestId> Deliver(Effects* effects, double now_seconds);
  // Returns all live requests.
  std::vector<RequestId> LiveRequests() const;

  // --- Evictions ---

  // Keeps the reply of an eviction of a live request until the eviction ends.
  // An earlier eviction of the request that has not been answered yet is
  // answered with Aborted. `number` is what Scheduler::Evict has returned.
  void BeginEviction(RequestId request, uint64_t number,
                     Reply<absl::StatusOr<EvictionEffect>> reply);
  // Answers the evictions that have ended. Deliver does the same.
  void EndEvictions(Effects* effects);
  // Withdraws every eviction that is under way from the scheduler, and answers
  // it with `status`.
  void AbortEvictions(const absl::Status& status, Scheduler* scheduler);

 private:
  struct Client {
    std::string session;
    std::shared_ptr<TokenSink> sink;
    absl::flat_hash_set<RequestId> requests;
    std::vector<TokenItem> outbox;  // the items of the present Deliver
    // The name of the client's call. Empty if the client has none.
    std::string call;
  };
  struct LiveRequest {
    std::shared_ptr<RequestStream> stream = std::make_shared<RequestStream>();
    Client* client = nullptr;  // null after the session has ended
    // The times are below 0 until what they name has happened.
    double submitted_seconds = -1;
    double started_seconds = -1;  // the time of the first step
    double first_token_seconds = -1;
    // The number of the eviction under way. 0 if there is none.
    uint64_t eviction = 0;
    Reply<absl::StatusOr<EvictionEffect>> evicted;
  };

  void FillOutboxes(Effects* effects, double now_seconds);
  void AddItem(const LiveRequest& live, TokenItem item);
  // Adds the end of a request to the metrics.
  void ObserveEnd(const LiveRequest& live, const FinishEffect& effect,
                  double now_seconds);

  RequestMetrics* const metrics_;
  absl::flat_hash_map<std::string, std::unique_ptr<Client>> clients_;
  // Sessions by the names of their calls. A second call may have the name of a
  // call that has ended, before that call's session is removed. Then the
  // session is that of the second call.
  absl::flat_hash_map<std::string, std::string> calls_;
  absl::flat_hash_map<RequestId, LiveRequest> requests_;
  std::vector<Client*> touched_;  // clients with a filled outbox
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_CLIENT_SESSIONS_H_
