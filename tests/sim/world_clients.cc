// The clients: what they ask for, and what they see of it.

#include <algorithm>
#include <memory>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tests/sim/world.h"
#include "tests/sim/world_sinks.h"

namespace blockmgr::sim {
bool World::ClientSink::Deliver(std::span<const TokenItem> items) {
  Client& client = world_->clients_[client_];
  if (client.sink.get() != this) return false;  // hung up a while ago
  if (client.slow) {
    client.slow = false;
    world_->HangUpNow(client_);
    return false;
  }
  for (const TokenItem& item : items) world_->TakeItem(item);
  return true;
}

void World::ClientSink::Close(const absl::Status& status) {
  world_->report_->Mix(static_cast<uint64_t>(status.code()));
}

void World::TakeItem(const TokenItem& item) {
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

void World::TakeFinish(const FinishEffect& effect, const Request& request,
                       Life* life) {
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

void World::CheckServed() const {
  for (const ServedRequest& served : served_) {
    for (const Life& life : served.lives) {
      if (life.finish.has_value() || life.stream_broke) continue;
      report_->Fail("'", served.request.id, "' never heard of its end");
    }
  }
}

void World::OpenStream(int32_t client) {
  if (clients_[client].opening) return;
  clients_[client].opening = true;
  transport_.Send(1 + Delay(options_.call_delay), [this, client] {
    const auto sink = std::make_shared<ClientSink>(this, client);
    const auto reply = Expect("OpenClient");
    OpenClient command;
    command.session = clients_[client].session;
    command.sink = sink;
    command.done = [this, client, sink, reply](const absl::Status& status) {
      reply->Came(status);
      clients_[client].opening = false;
      if (status.ok()) {
        clients_[client].sink = sink;
      } else if (absl::IsAlreadyExists(status)) {
        OpenStream(client);  // the core has yet to hear that it hung up
      } else {
        report_->Fail("OpenClient: ", status.ToString());
      }
    };
    Post(std::move(command));
  });
}

void World::HangUpNow(int32_t client) {
  ++report_->counts().broken_streams;
  clients_[client].sink = nullptr;
  for (ServedRequest& served : served_) {
    if (served.client != client) continue;
    for (Life& life : served.lives) life.stream_broke = true;
  }
  transport_.Send(1 + Delay(10), [this, client] { OpenStream(client); });
}

void World::HangUp() {
  const auto client = static_cast<int32_t>(random_.Next() % clients_.size());
  const std::shared_ptr<ClientSink> sink = clients_[client].sink;
  if (sink == nullptr) return;
  HangUpNow(client);
  const ClientGone gone{clients_[client].session, sink};
  transport_.Send(Delay(8), [this, gone] { Post(gone); });
  if (random_.OneIn(3)) {
    transport_.Send(Delay(20), [this, gone] { Post(gone); });
  }
}

void World::Submit() {
  ServedRequest served;
  served.client = static_cast<int32_t>(random_.Next() % clients_.size());
  served.request = requests_.RandomRequest();
  const auto index = static_cast<int32_t>(served_.size());
  served.request.id = absl::StrCat("r", index);
  numbers_[served.request.id] = index;
  served_.push_back(std::move(served));
  Call([this, index] { SendSubmit(index); });
}

void World::SendSubmit(int32_t index) {
  const auto reply = Expect("Submit");
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
  Post(std::move(command));
}

void World::Resubmit() {
  const int32_t index = requests_.Pick(10);
  if (index < 0) return;
  Call([this, index] { SendSubmit(index); });
}

void World::Cancel() {
  const int32_t index = requests_.Pick(12);
  if (index < 0) return;
  Call([this, index] {
    const auto reply = Expect("Cancel");
    Post(CancelCommand{
        served_[index].request.id,
        [reply](const absl::Status& status) { reply->Came(status); }});
  });
}

void World::Evict() {
  const int32_t index = requests_.Pick(6);
  if (index < 0) return;
  const EvictionCommand eviction = requests_.RandomCommand();
  Call([this, index, eviction] {
    const auto reply = Expect("Evict");
    Post(EvictCommand{served_[index].request.id, eviction,
                      [reply](const absl::StatusOr<EvictionEffect>& effect) {
                        reply->Came(effect.status());
                      }});
  });
}

}  // namespace blockmgr::sim
