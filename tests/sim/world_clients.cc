#include "tests/sim/world_clients.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include <absl/strings/str_cat.h>

namespace blockmgr::sim {

// ClientSink is the client's end of a token stream, which the core writes to.
class WorldClients::ClientSink : public TokenSink {
 public:
  ClientSink(WorldClients* owner, int32_t client)
      : owner_(*owner), client_(client) {}

  bool Deliver(std::span<const TokenItem> items) override {
    Client& client = owner_.clients_[client_];
    if (client.sink.get() != this) return false;  // the client hung up
    if (std::exchange(client.is_slow, false)) {
      owner_.HangUpNow(client_);
      return false;
    }
    for (const TokenItem& item : items) owner_.TakeItem(item);
    return true;
  }
  void Close(const absl::Status& status) override {
    owner_.report_->Mix(static_cast<uint64_t>(status.code()));
  }

 private:
  WorldClients& owner_;
  const int32_t client_;
};

WorldClients::WorldClients(WorldCore* core, const CanaryEngine& canary)
    : core_(*core),
      canary_(canary),
      options_(core->options()),
      report_(core->report()),
      random_(core->random()),
      requests_(options_, &random_, &served_) {
  for (int32_t i = 0; i < options_.num_clients; ++i) {
    clients_.emplace_back().session = absl::StrCat("client", i);
  }
}

BudgetTables WorldClients::Tables() const {
  BudgetTables tables;
  for (size_t i = 0; i < requests_.tables().size(); ++i) {
    tables.emplace(absl::StrCat("table", i), requests_.tables()[i]);
  }
  return tables;
}

void WorldClients::TakeItem(const TokenItem& item) {
  ServedRequest& served = served_[numbers_.at(item.stream->id)];
  const auto life = std::ranges::find_if(served.lives, [](const Life& one) {
    return !one.stream_broke && !one.finish.has_value();
  });
  if (life == served.lives.end()) {
    report_->Fail("'", served.request.id, "' hears of a request that is over");
    return;
  }
  if (item.finish != nullptr) {
    return TakeFinish(*item.finish, served.request, &*life);
  }
  if (item.index != std::ssize(life->outputs)) {
    report_->Fail("'", served.request.id, "' hears of token ", item.index,
                  " after ", life->outputs.size());
  }
  life->outputs.push_back(item.token);
}

void WorldClients::TakeFinish(const FinishEffect& effect,
                              const Request& request, Life* life) {
  life->finish = effect.reason;
  const std::vector<int32_t>& outputs = life->outputs;
  const std::vector<int32_t> alone = canary_.OutputsAlone(
      request.prompt, request.max_tokens, request.stop_token_ids);
  const bool complete = effect.reason == FinishReason::kLength ||
                        effect.reason == FinishReason::kStop;
  const bool stopped =
      !outputs.empty() &&
      std::ranges::count(request.stop_token_ids, outputs.back()) > 0;
  if (effect.num_output_tokens != std::ssize(outputs) ||
      outputs.size() > alone.size() ||
      (complete && outputs.size() != alone.size()) ||
      !std::equal(outputs.begin(), outputs.end(), alone.begin()) ||
      (complete && stopped != (effect.reason == FinishReason::kStop))) {
    report_->Fail("'", request.id, "' put out ", outputs.size(),
                  " tokens, alone ", alone.size(), ", or others than alone");
  }
}

void WorldClients::CheckServed() const {
  for (const ServedRequest& served : served_) {
    for (const Life& life : served.lives) {
      if (life.finish.has_value() || life.stream_broke) continue;
      report_->Fail("'", served.request.id, "' never heard of its end");
    }
  }
}

void WorldClients::OpenStreams() {
  for (int32_t i = 0; i < options_.num_clients; ++i) {
    if (clients_[i].sink == nullptr) OpenStream(i);
  }
}

void WorldClients::OpenStream(int32_t client) {
  if (clients_[client].is_opening) return;
  clients_[client].is_opening = true;
  core_.Send(1 + core_.Delay(options_.call_delay), [this, client] {
    const auto sink = std::make_shared<ClientSink>(this, client);
    const auto reply = core_.Expect("OpenClient");
    OpenClient command;
    command.session = clients_[client].session;
    command.sink = sink;
    command.done = [this, client, sink, reply](const absl::Status& status) {
      reply->Came(status);
      clients_[client].is_opening = false;
      if (status.ok()) {
        clients_[client].sink = sink;
      } else if (absl::IsAlreadyExists(status)) {
        // The core does not know yet that the client has hung up.
        OpenStream(client);
      } else {
        report_->Fail("OpenClient: ", status.ToString());
      }
    };
    core_.Post(std::move(command));
  });
}

void WorldClients::HangUpNow(int32_t client) {
  ++report_->counts().broken_streams;
  clients_[client].sink = nullptr;
  for (ServedRequest& served : served_) {
    if (served.client != client) continue;
    for (Life& life : served.lives) life.stream_broke = true;
  }
  core_.Send(1 + core_.Delay(10), [this, client] { OpenStream(client); });
}

void WorldClients::HangUp() {
  const auto client = static_cast<int32_t>(random_.Next() % clients_.size());
  const std::shared_ptr<ClientSink> sink = clients_[client].sink;
  if (sink == nullptr) return;
  HangUpNow(client);
  const ClientGone gone{clients_[client].session, sink};
  const auto report = [this, gone] { core_.Post(gone); };
  core_.Send(core_.Delay(8), report);
  if (random_.OneIn(3)) core_.Send(core_.Delay(20), report);
}

void WorldClients::SlowDown() {
  clients_[random_.Next() % clients_.size()].is_slow = true;
}

void WorldClients::Heal() {
  for (Client& client : clients_) client.is_slow = false;
}

void WorldClients::Add(int32_t client, std::string id, Request request) {
  const auto index = static_cast<int32_t>(served_.size());
  numbers_[id] = index;
  request.id = std::move(id);
  served_.push_back(
      {.request = std::move(request), .client = client, .lives = {}});
  CallSubmit(index);
}

void WorldClients::Submit() {
  const auto client = static_cast<int32_t>(random_.Next() % clients_.size());
  Request request = requests_.RandomRequest();
  Add(client, absl::StrCat("r", served_.size()), std::move(request));
}

void WorldClients::SubmitLast() {
  for (int32_t i = 0; i < options_.num_clients; ++i) {
    Request request;
    request.prompt = {1};
    request.max_tokens = 2;
    Add(i, absl::StrCat("after", i), std::move(request));
  }
}

void WorldClients::CallSubmit(int32_t index) {
  core_.Call([this, index] { SendSubmit(index); });
}

void WorldClients::SendSubmit(int32_t index) {
  const auto reply = core_.Expect("Submit");
  SubmitCommand command;
  command.session = clients_[served_[index].client].session;
  command.request = served_[index].request;
  command.done = [this, index, reply](const absl::Status& status) {
    reply->Came(status);
    if (!status.ok()) return;
    ServedRequest& served = served_[index];
    Life& life = served.lives.emplace_back();
    life.stream_broke = clients_[served.client].sink == nullptr;
  };
  core_.Post(std::move(command));
}

void WorldClients::Resubmit() {
  const int32_t index = requests_.Pick(10);
  if (index >= 0) CallSubmit(index);
}

void WorldClients::Cancel() {
  const int32_t index = requests_.Pick(12);
  if (index < 0) return;
  core_.Call([this, index] {
    const auto reply = core_.Expect("Cancel");
    core_.Post(CancelCommand{
        served_[index].request.id,
        [reply](const absl::Status& status) { reply->Came(status); }});
  });
}

void WorldClients::Evict() {
  const int32_t index = requests_.Pick(6);
  if (index < 0) return;
  const EvictionCommand eviction = requests_.RandomCommand();
  core_.Call([this, index, eviction] {
    const auto reply = core_.Expect("Evict");
    core_.Post(
        EvictCommand{served_[index].request.id, eviction,
                     [reply](const absl::StatusOr<EvictionEffect>& effect) {
                       reply->Came(effect.status());
                     }});
  });
}

void WorldClients::CheckRefused() {
  const auto reply = core_.Expect("Submit");
  core_.Post(SubmitCommand{clients_[0].session, Request{},
                           [this, reply](const absl::Status& status) {
                             reply->Came(status);
                             if (!absl::IsUnavailable(status)) {
                               report_->Fail("Submit after Drain: ",
                                             status.ToString());
                             }
                           }});
}

}  // namespace blockmgr::sim
