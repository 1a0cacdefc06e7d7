#include "scheduler/server/client_sessions.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

std::vector<RequestId> InOrder(const absl::flat_hash_set<RequestId>& requests) {
  std::vector<RequestId> in_order(requests.begin(), requests.end());
  std::sort(in_order.begin(), in_order.end());
  return in_order;
}

}  // namespace

bool ClientSessions::Open(const std::string& session,
                          std::shared_ptr<TokenSink> sink) {
  const auto [client, is_new] = clients_.try_emplace(session);
  if (!is_new) return false;
  client->second = std::make_unique<Client>();
  client->second->session = session;
  client->second->sink = std::move(sink);
  return true;
}

void ClientSessions::NameCall(const std::string& session,
                              const std::string& call) {
  Client& client = *clients_.at(session);
  client.call = call;
  calls_[call] = session;
  int32_t index = 0;
  for (const RequestId request : InOrder(client.requests)) {
    requests_.at(request).stream->index = index++;
  }
}

absl::Status ClientSessions::CheckOpen(const std::string& session) const {
  if (clients_.contains(session)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("client_session: expected the session of an open "
                   "StreamTokens stream, got \"",
                   session, "\""));
}

bool ClientSessions::HasStream(const std::string& session,
                               const std::shared_ptr<TokenSink>& sink) const {
  const auto client = clients_.find(session);
  return client != clients_.end() && client->second->sink == sink;
}

std::vector<RequestId> ClientSessions::Remove(const std::string& session) {
  const auto node = clients_.extract(session);
  BM_CHECK(!node.empty());
  const Client& client = *node.mapped();
  const auto call = calls_.find(client.call);
  if (call != calls_.end() && call->second == session) calls_.erase(call);
  for (const RequestId request : client.requests) {
    requests_.at(request).client = nullptr;
  }
  return InOrder(client.requests);
}

std::optional<std::vector<RequestId>> ClientSessions::TakeCall(
    const std::string& call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return std::nullopt;
  std::vector<RequestId> requests =
      InOrder(clients_.at(found->second)->requests);
  calls_.erase(found);
  return requests;
}

void ClientSessions::CloseCalls(const absl::Status& reason) {
  for (auto& [session, client] : clients_) {
    if (!client->call.empty()) client->sink->Close(reason);
  }
}

void ClientSessions::CloseAll(const absl::Status& reason) {
  BM_CHECK(requests_.empty());
  for (auto& [session, client] : clients_) client->sink->Close(reason);
  clients_.clear();
  calls_.clear();
}

bool ClientSessions::HasSentAll() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& client) {
    return client.second->sink->HasSentAll();
  });
}

void ClientSessions::Add(const std::string& session, RequestId request,
                         std::string id, double now_seconds) {
  Client* const client = clients_.at(session).get();
  client->requests.insert(request);
  LiveRequest& live = requests_[request];
  live.stream->id = std::move(id);
  live.client = client;
  live.submitted_seconds = now_seconds;
}

void ClientSessions::NoteStarts(const StepPlan& plan, double now_seconds) {
  for (const SequenceStart& start : plan.starts) {
    LiveRequest& live = requests_.at(start.request);
    // A request that was preempted has started before.
    if (live.started_seconds >= 0) continue;
    live.started_seconds = now_seconds;
    metrics_->queue.Observe(now_seconds - live.submitted_seconds);
  }
}

std::vector<RequestId> ClientSessions::Deliver(Effects* effects,
                                               double now_seconds) {
  FillOutboxes(effects, now_seconds);
  std::vector<Client*> cut_off;
  for (Client* const client : touched_) {
    if (!client->sink->Deliver(client->outbox)) cut_off.push_back(client);
    client->outbox.clear();
  }
  touched_.clear();
  for (const FinishEffect& finish : effects->finished) {
    const auto live = requests_.find(finish.request);
    if (live->second.client != nullptr) {
      live->second.client->requests.erase(finish.request);
    }
    requests_.erase(live);
  }
  std::vector<RequestId> orphans;
  for (const Client* const client : cut_off) {
    const std::vector<RequestId> removed = Remove(client->session);
    orphans.insert(orphans.end(), removed.begin(), removed.end());
  }
  return orphans;
}

void ClientSessions::AddItem(const LiveRequest& live, TokenItem item) {
  if (live.client == nullptr) return;
  if (live.client->outbox.empty()) touched_.push_back(live.client);
  item.stream = live.stream.get();
  live.client->outbox.push_back(item);
}

void ClientSessions::FillOutboxes(Effects* effects, double now_seconds) {
  for (const LogProbsEffect& effect : effects->logprobs) {
    AddItem(requests_.at(effect.request),
            TokenItem{.index = effect.num_outputs, .logprobs = &effect});
  }
  auto data = effects->token_data.begin();
  for (const TokenEffect& effect : effects->tokens) {
    LiveRequest& live = requests_.at(effect.request);
    if (effect.index == 0) {
      live.first_token_seconds = now_seconds;
      metrics_->first_token.Observe(now_seconds - live.submitted_seconds);
    }
    TokenItem item{.token = effect.token, .index = effect.index};
    if (data != effects->token_data.end() && data->request == effect.request &&
        data->index == effect.index) {
      item.data = &data++->data;
    }
    AddItem(live, item);
  }
  EndEvictions(effects);
  for (const FinishEffect& effect : effects->finished) {
    LiveRequest& live = requests_.at(effect.request);
    if (live.eviction != 0) {
      live.eviction = 0;
      AnswerOnce(&live.evicted, absl::AbortedError("the request ended first"));
    }
    ObserveEnd(live, effect, now_seconds);
    AddItem(live, TokenItem{.finish = &effect});
  }
}

void ClientSessions::ObserveEnd(const LiveRequest& live,
                                const FinishEffect& effect,
                                double now_seconds) {
  ++metrics_->finished[static_cast<size_t>(effect.reason)];
  if (effect.reason != FinishReason::kLength &&
      effect.reason != FinishReason::kStop) {
    return;
  }
  metrics_->request.Observe(now_seconds - live.submitted_seconds);
  if (effect.num_output_tokens < 2) return;
  metrics_->output_token.Observe((now_seconds - live.first_token_seconds) /
                                 (effect.num_output_tokens - 1));
}

std::vector<RequestId> ClientSessions::LiveRequests() const {
  absl::flat_hash_set<RequestId> requests;
  for (const auto& [request, live] : requests_) requests.insert(request);
  return InOrder(requests);
}

void ClientSessions::BeginEviction(
    RequestId request, uint64_t number,
    Reply<absl::StatusOr<EvictionEffect>> reply) {
  LiveRequest& live = requests_.at(request);
  if (live.eviction != 0) {
    AnswerOnce(&live.evicted,
               absl::AbortedError("the request was preempted first"));
  }
  live.eviction = number;
  live.evicted = std::move(reply);
}

void ClientSessions::EndEvictions(Effects* effects) {
  for (EvictionEffect& effect : effects->evictions) {
    // No client waits for an eviction of the request's own.
    if (effect.command == 0) continue;
    const auto live = requests_.find(effect.request);
    if (live == requests_.end() || live->second.eviction != effect.command) {
      continue;
    }
    live->second.eviction = 0;
    if (effect.status.ok()) {
      AnswerOnce(&live->second.evicted, std::move(effect));
    } else {
      AnswerOnce(&live->second.evicted, effect.status);
    }
  }
}

void ClientSessions::AbortEvictions(const absl::Status& status,
                                    Scheduler* scheduler) {
  for (auto& [request, live] : requests_) {
    if (live.eviction == 0) continue;
    scheduler->WithdrawEviction(request, std::exchange(live.eviction, 0));
    AnswerOnce(&live.evicted, status);
  }
}

}  // namespace blockmgr
