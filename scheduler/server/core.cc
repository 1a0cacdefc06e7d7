#include "scheduler/server/core.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// The first thing in which an engine differs from the one that live requests
// were scheduled for; empty: none.
std::string DescribeDifference(const ModelLayout& want,
                               const SchedulerOptions& had,
                               const ModelLayout& got,
                               const SchedulerOptions& has) {
  const std::tuple<absl::string_view, int32_t, int32_t> fields[] = {
      {"layout.num_layers", want.num_layers, got.num_layers},
      {"layout.num_heads", want.num_heads, got.num_heads},
      {"layout.num_q_heads", want.num_q_heads, got.num_q_heads},
      {"layout.head_dim", want.head_dim, got.head_dim},
      {"layout.page_size", want.page_size, got.page_size},
      {"layout.num_shards", want.num_shards, got.num_shards},
      {"layout.window", want.window, got.window},
      {"layout.group_windows.size()", want.num_window_groups(),
       got.num_window_groups()},
      {"layout.num_blocks", want.num_blocks, got.num_blocks},
      {"num_scorer_states", had.num_scorer_states, has.num_scorer_states},
      {"num_host_blocks", had.num_host_blocks, has.num_host_blocks},
      {"supports_window_evictions", had.supports_window_evictions,
       has.supports_window_evictions}};
  for (const auto& [field, needed, offered] : fields) {
    if (needed == offered) continue;
    return absl::StrCat(field, ": live requests need ", needed, ", got ",
                        offered);
  }
  for (size_t i = 0; i < want.group_windows.size(); ++i) {
    if (want.group_windows[i] == got.group_windows[i]) continue;
    return absl::StrCat("layout.group_windows[", i, "]: live requests need ",
                        want.group_windows[i], ", got ", got.group_windows[i]);
  }
  if (want == got) return "";
  return absl::StrCat("layout.dtype: live requests need ",
                      DTypeName(want.dtype), ", got ", DTypeName(got.dtype));
}

absl::Status ShuttingDown() {
  return absl::UnavailableError("the daemon is shutting down");
}

absl::Status StaleEpoch(absl::string_view what, uint64_t want, uint64_t got) {
  return absl::FailedPreconditionError(
      absl::StrCat("STALE_EPOCH: ", what, ": expected ", want, ", got ", got));
}

}  // namespace

Core::Core(CoreOptions options, SchedulerFactory factory)
    : options_(std::move(options)),
      factory_(std::move(factory)),
      issue_seconds_(
          static_cast<size_t>(options_.scheduler.max_steps_in_flight)) {}

Core::~Core() {
  const absl::Status status = absl::UnavailableError("the daemon has stopped");
  for (auto& [id, request] : requests_) {
    if (request.eviction != 0) request.evicted(status);
  }
  for (StatusReply& done : drained_) done(status);
}

void Core::BeginPass(double now_seconds) {
  if (start_seconds_ < 0) {
    start_seconds_ = now_seconds;
  } else {
    running_request_seconds_ += num_running_ * (now_seconds - now_seconds_);
  }
  now_seconds_ = now_seconds;
  if (scheduler_ != nullptr) {
    scheduler_->SetTime(static_cast<int64_t>(now_seconds * 1e3));
  }
}

void Core::Handle(Command* command) {
  std::visit([this](auto& alternative) { Do(alternative); }, *command);
}

void Core::EndPass() {
  IssuePlans();
  if (read_next_) {
    read_next_ = false;
    if (engine_ != nullptr) engine_->ReadNext();
  }
  DeliverEffects();
  Sample();
  if (!drained_.empty() && idle()) {
    for (StatusReply& done : drained_) done(absl::OkStatus());
    drained_.clear();
  }
  cache_version_.store(CountCacheVersion());
}

void Core::IssuePlans() {
  if (engine_ == nullptr) return;
  while (scheduler_->Schedule(&plan_)) {
    engine_->SendPlan(plan_);
    issue_seconds_.push_back(now_seconds_);
    for (const SequenceStart& start : plan_.starts) {
      LiveRequest& live = requests_.at(start.request);
      if (live.started_seconds >= 0) continue;  // it was preempted
      live.started_seconds = now_seconds_;
      metrics_.queue.Observe(now_seconds_ - live.submitted_seconds);
    }
    plan_.evictions.clear();  // lets go of callers' scores
  }
}

void Core::Sample() {
  if (scheduler_ == nullptr) return;
  num_running_ = scheduler_->num_running();
  max_running_ = std::max(max_running_, num_running_);
  max_used_blocks_ = std::max(max_used_blocks_, scheduler_->num_used_blocks());
}

// --- Frontends ---

absl::Status Core::CheckEngine() const {
  if (engine_ == nullptr) return absl::UnavailableError("no engine attached");
  return absl::OkStatus();
}

void Core::Do(SubmitCommand& command) {
  absl::Status status = Submit(&command);
  if (!status.ok()) ++metrics_.refused[static_cast<size_t>(status.code())];
  command.done(std::move(status));
}

absl::Status Core::Submit(SubmitCommand* command) {
  if (draining_) return ShuttingDown();
  BM_RETURN_IF_ERROR(CheckEngine());
  const auto client = clients_.find(command->session);
  if (client == clients_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("client_session: expected the session of an open "
                     "StreamTokens stream, got \"",
                     command->session, "\""));
  }
  RequestEviction& eviction = command->request.eviction;
  if (eviction.mode != EvictionMode::kNone) {
    BM_ASSIGN_OR_RETURN(eviction.table,
                        FindBudgetTable(options_.tables, eviction.policy));
  }
  std::string id = command->request.id;
  BM_ASSIGN_OR_RETURN(const RequestId request,
                      scheduler_->Submit(std::move(command->request)));
  LiveRequest& live = requests_[request];
  live.stream->id = std::move(id);
  live.client = client->second.get();
  live.session = client->first;
  live.submitted_seconds = now_seconds_;
  client->second->requests.insert(request);
  return absl::OkStatus();
}

void Core::Do(CancelCommand& command) {
  command.done(Cancel(command.request_id));
}

absl::Status Core::Cancel(const std::string& request_id) {
  if (scheduler_ == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("request_id: no live request \"", request_id, "\""));
  }
  BM_ASSIGN_OR_RETURN(const RequestId request, scheduler_->Find(request_id));
  return scheduler_->Cancel(request, &effects_);
}

void Core::Do(EvictCommand& command) {
  const absl::Status status = StartEviction(&command);
  if (!status.ok()) command.done(status);
}

absl::Status Core::StartEviction(EvictCommand* command) {
  BM_RETURN_IF_ERROR(CheckEngine());
  BM_ASSIGN_OR_RETURN(const RequestId request,
                      scheduler_->Find(command->request_id));
  BM_ASSIGN_OR_RETURN(
      command->eviction.table,
      FindBudgetTable(options_.tables, command->eviction.policy));
  BM_ASSIGN_OR_RETURN(const uint64_t eviction,
                      scheduler_->Evict(request, std::move(command->eviction)));
  LiveRequest& live = requests_.at(request);
  // The one before is over, or this one would have been refused: it ended in
  // this pass, or the request was preempted and its step has yet to say so.
  for (EvictionEffect& effect : effects_.evictions) EndEviction(&effect);
  if (live.eviction != 0) {
    live.evicted(absl::AbortedError("the request was preempted first"));
  }
  live.eviction = eviction;
  live.evicted = std::move(command->done);
  return absl::OkStatus();
}

void Core::Do(OpenClient& command) {
  if (draining_) {
    command.done(ShuttingDown());
    return;
  }
  const auto [client, is_new] = clients_.try_emplace(command.session);
  if (!is_new) {
    command.done(absl::AlreadyExistsError(
        absl::StrCat("client_session: \"", command.session,
                     "\" has an open StreamTokens stream")));
    return;
  }
  client->second = std::make_unique<Client>();
  client->second->sink = std::move(command.sink);
  command.done(absl::OkStatus());
}

void Core::Do(ClientGone& command) {
  const auto client = clients_.find(command.session);
  if (client == clients_.end() || client->second->sink != command.sink) return;
  RemoveClient(command.session);
}

void Core::RemoveClient(const std::string& session) {
  const auto node = clients_.extract(session);
  BM_CHECK(!node.empty());
  // In order of submission: hash order would make runs differ.
  std::vector<RequestId> requests(node.mapped()->requests.begin(),
                                  node.mapped()->requests.end());
  std::sort(requests.begin(), requests.end());
  for (const RequestId request : requests) {
    requests_.at(request).client = nullptr;
    // NotFound: it ended earlier in this pass, its effect is still to come.
    const absl::Status status = scheduler_->Cancel(request, &effects_);
    BM_CHECK(status.ok() || absl::IsNotFound(status));
  }
}

// --- Effects ---

void Core::DeliverEffects() {
  // Cutting off a client cancels its requests, which brings new effects.
  while (!effects_.tokens.empty() || !effects_.finished.empty() ||
         !effects_.evictions.empty()) {
    FillOutboxes();
    std::vector<std::string> cut_off;
    for (std::string& session : touched_) {
      Client& client = *clients_.at(session);
      if (!client.sink->Deliver(client.outbox)) cut_off.push_back(session);
      client.outbox.clear();
    }
    touched_.clear();
    for (const FinishEffect& finish : effects_.finished) {
      const auto live = requests_.find(finish.request);
      if (live->second.client != nullptr) {
        live->second.client->requests.erase(finish.request);
      }
      requests_.erase(live);
    }
    effects_.Clear();
    for (const std::string& session : cut_off) RemoveClient(session);
  }
}

void Core::FillOutboxes() {
  const auto add = [this](LiveRequest* live, TokenItem item) {
    if (live->client == nullptr) return;
    if (live->client->outbox.empty()) touched_.push_back(live->session);
    item.stream = live->stream.get();
    live->client->outbox.push_back(item);
  };
  for (const TokenEffect& effect : effects_.tokens) {
    LiveRequest& live = requests_.at(effect.request);
    if (effect.index == 0) {
      live.first_token_seconds = now_seconds_;
      metrics_.first_token.Observe(now_seconds_ - live.submitted_seconds);
    }
    add(&live, TokenItem{nullptr, effect.token, effect.index, nullptr});
  }
  for (EvictionEffect& effect : effects_.evictions) EndEviction(&effect);
  for (const FinishEffect& effect : effects_.finished) {
    LiveRequest& live = requests_.at(effect.request);
    if (live.eviction != 0) {
      live.eviction = 0;
      live.evicted(absl::AbortedError("the request ended first"));
    }
    ObserveEnd(live, effect);
    add(&live, TokenItem{nullptr, 0, 0, &effect});
  }
}

void Core::ObserveEnd(const LiveRequest& live, const FinishEffect& effect) {
  ++metrics_.finished[static_cast<size_t>(effect.reason)];
  if (effect.reason != FinishReason::kLength &&
      effect.reason != FinishReason::kStop) {
    return;
  }
  metrics_.request.Observe(now_seconds_ - live.submitted_seconds);
  if (effect.num_output_tokens < 2) return;
  metrics_.output_token.Observe((now_seconds_ - live.first_token_seconds) /
                                (effect.num_output_tokens - 1));
}

void Core::EndEviction(EvictionEffect* effect) {
  if (effect->command == 0) return;  // part of the request: nobody asked
  const auto live = requests_.find(effect->request);
  if (live == requests_.end() || live->second.eviction != effect->command) {
    return;
  }
  live->second.eviction = 0;
  if (effect->status.ok()) {
    live->second.evicted(std::move(*effect));
  } else {
    live->second.evicted(effect->status);
  }
}

// --- The engine ---

void Core::Do(AttachEngine& command) { command.done(Attach(&command)); }

absl::StatusOr<Attachment> Core::Attach(AttachEngine* command) {
  if (draining_ && idle()) return ShuttingDown();
  if (engine_ != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("engine \"", engine_name_, "\" is attached"));
  }
  SchedulerOptions scheduler = options_.scheduler;
  scheduler.num_scorer_states = command->num_scorer_states;
  scheduler.num_host_blocks = command->num_host_blocks;
  scheduler.supports_window_evictions = command->supports_window_evictions;
  const std::string difference =
      scheduler_ == nullptr
          ? "there was none"
          : DescribeDifference(scheduler_->layout(), scheduler_->options(),
                               command->layout, scheduler);
  if (!difference.empty()) {
    // Effects name requests of the Scheduler that is about to go.
    DeliverEffects();
    if (!idle()) return absl::FailedPreconditionError(difference);
    BM_CHECK(requests_.empty());
    BM_ASSIGN_OR_RETURN(scheduler_, factory_(command->layout, scheduler));
    ++num_schedulers_;
  }
  ++engine_session_;
  engine_name_ = std::move(command->name);
  return Attachment{options_.epoch, engine_session_, scheduler};
}

void Core::Do(OpenSteps& command) {
  absl::Status status;
  if (command.epoch != options_.epoch) {
    status = StaleEpoch("epoch", options_.epoch, command.epoch);
  } else if (command.session != engine_session_ || engine_session_ == 0) {
    status = StaleEpoch("session", engine_session_, command.session);
  } else if (engine_ != nullptr) {
    status = absl::AlreadyExistsError("session: it has an open step stream");
  } else if (draining_ && idle()) {
    status = ShuttingDown();
  }
  if (status.ok()) {
    engine_ = std::move(command.sink);
    if (options_.on_engine_change) options_.on_engine_change(true);
  }
  command.done(status);
}

void Core::Do(EngineResult& command) {
  if (command.sink != engine_) return;  // of an engine that is gone
  const absl::Status status = scheduler_->Update(*command.result, &effects_);
  if (!status.ok()) {
    // The two no longer agree on what the pool holds.
    engine_->Close(status);
    DropEngine();
    return;
  }
  metrics_.step.Observe(now_seconds_ - issue_seconds_.front());
  issue_seconds_.pop_front();
  read_next_ = true;
}

void Core::Do(EngineLost& command) {
  if (command.sink != engine_) return;
  DropEngine();
}

void Core::DropEngine() {
  engine_.reset();
  read_next_ = false;
  issue_seconds_.clear();
  ++engine_session_;  // a new stream needs a new attachment
  scheduler_->LoseEngine(&effects_);
  for (EvictionEffect& effect : effects_.evictions) EndEviction(&effect);
  // Others have not been part of a step, and whoever is answered now need not
  // fear that they will be.
  for (auto& [id, request] : requests_) {
    if (request.eviction == 0) continue;
    scheduler_->WithdrawEviction(id, std::exchange(request.eviction, 0));
    request.evicted(absl::AbortedError("the engine is gone"));
  }
  if (options_.on_engine_change) options_.on_engine_change(false);
}

// --- Operators ---

void Core::Do(GetStats& command) {
  CoreStats stats;
  stats.engine_attached = engine_ != nullptr;
  stats.engine_name = engine_name_;
  stats.epoch = options_.epoch;
  if (scheduler_ != nullptr) {
    stats.layout = scheduler_->layout();
    stats.scheduler = scheduler_->stats();
  }
  stats.requests = metrics_;
  stats.running_request_seconds = running_request_seconds_;
  stats.clock_seconds = now_seconds_ - start_seconds_;
  stats.max_running = std::max(max_running_, stats.scheduler.num_running);
  stats.max_used_blocks =
      std::max(max_used_blocks_, stats.scheduler.blocks.used_blocks);
  if (command.reset_peaks) {
    max_running_ = stats.scheduler.num_running;
    max_used_blocks_ = stats.scheduler.blocks.used_blocks;
    if (scheduler_ != nullptr) scheduler_->ForgetKeptEntries();
  }
  command.done(std::move(stats));
}

void Core::Do(ResetPrefixCache& command) {
  command.done(scheduler_ == nullptr ? CacheReset{}
                                     : scheduler_->ResetPrefixCache());
}

void Core::Do(ReadPrefixCache& command) {
  if (closed_) {
    command.done(ShuttingDown());
  } else {
    command.done(Read(command));
  }
}

PrefixCacheReading Core::Read(const ReadPrefixCache& command) const {
  PrefixCacheReading reading;
  reading.cursor = {.epoch = options_.epoch, .cache = num_schedulers_};
  if (scheduler_ == nullptr) {
    reading.delta.reset = true;
    reading.delta.current = true;
    return reading;
  }
  if (command.cursor.epoch == options_.epoch &&
      command.cursor.cache == num_schedulers_) {
    reading.cursor.position = command.cursor.position;
  }
  reading.page_size = scheduler_->layout().page_size;
  const int32_t max_blocks =
      std::min(command.max_blocks, command.max_tokens / reading.page_size);
  reading.delta = scheduler_->prefix_cache().Read(&reading.cursor.position,
                                                  std::max(max_blocks, 1));
  return reading;
}

uint64_t Core::CountCacheVersion() const {
  if (closed_) return std::numeric_limits<uint64_t>::max();
  if (scheduler_ == nullptr) return 0;
  // A cache of another layout begins to count anew.
  constexpr int kChangeBits = 48;
  return (num_schedulers_ << kChangeBits) |
         scheduler_->prefix_cache().num_changes();
}

void Core::Do(Drain& command) {
  draining_ = true;
  drained_.push_back(std::move(command.done));
}

void Core::Do(CloseAll& command) {
  draining_ = true;
  closed_ = true;
  std::vector<RequestId> requests;
  for (const auto& [id, request] : requests_) requests.push_back(id);
  std::sort(requests.begin(), requests.end());
  for (const RequestId request : requests) {
    const absl::Status status = scheduler_->Cancel(request, &effects_);
    BM_CHECK(status.ok() || absl::IsNotFound(status));
  }
  DeliverEffects();
  for (auto& [session, client] : clients_) client->sink->Close(command.reason);
  clients_.clear();
  if (engine_ != nullptr) {
    engine_->Close(command.reason);
    DropEngine();
  }
}

}  // namespace blockmgr
