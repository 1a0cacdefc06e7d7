#include "scheduler/server/core.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/sequence_limits.h"

namespace blockmgr {
namespace {

// Returns what the forks of `parent` in one call have in common. Forks do not
// tell of the prompt, because the first answer does.
Request ForkOf(const Request& parent) {
  Request fork = parent;
  fork.fork_of = parent.id;
  fork.eviction = {};
  fork.retention.clear();
  if (fork.sampling.has_value()) fork.sampling->prompt_logprobs.reset();
  return fork;
}

Request AnswerOf(const Request& fork, int32_t index) {
  Request answer = fork;
  answer.id = absl::StrCat(fork.fork_of, "#", index);
  if (answer.sampling.has_value() && answer.sampling->seed.has_value()) {
    *answer.sampling->seed += index;
  }
  return answer;
}

}  // namespace

Core::Core(CoreOptions options, SchedulerFactory factory)
    : options_(std::move(options)),
      factory_(std::move(factory)),
      issues_(static_cast<size_t>(options_.scheduler.max_steps_in_flight)) {}

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
    now_seconds = std::max(now_seconds, now_seconds_);
    running_request_seconds_ += num_running_ * (now_seconds - now_seconds_);
  }
  now_seconds_ = now_seconds;
  awake_.Look(now_seconds);
  TellTime();
}

void Core::TellTime() {
  if (scheduler_ == nullptr) return;
  scheduler_->SetTime(static_cast<int64_t>(now_seconds_ * 1e3));
}

void Core::Handle(Command* command) {
  std::visit([this](auto& alternative) { Do(alternative); }, *command);
}

void Core::EndPass() {
  CheckStepTimeout();
  IssuePlans();
  if (read_next_) {
    read_next_ = false;
    if (engine_ != nullptr) engine_->ReadNext();
  }
  DeliverEffects();
  Sample();
  if (!drained_.empty() && idle() && HasSentAll()) {
    for (StatusReply& done : drained_) done(absl::OkStatus());
    drained_.clear();
  }
  cache_version_.store(CountCacheVersion());
}

bool Core::HasSentAll() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& client) {
    return client.second->sink->HasSentAll();
  });
}

void Core::Sample() {
  if (scheduler_ == nullptr) return;
  num_running_ = scheduler_->num_running();
  max_running_ = std::max(max_running_, num_running_);
  max_used_blocks_ = std::max(max_used_blocks_, scheduler_->num_used_blocks());
}

absl::Status Core::ShuttingDown() {
  return absl::UnavailableError("the daemon is shutting down");
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
  // The scheduler knows its own limit, and not the model's.
  if (model_ != nullptr && model_->context_tokens > 0) {
    BM_RETURN_IF_ERROR(LimitTokens(options_.scheduler, model_.get(),
                                   scheduler_->layout(), /*all_tokens=*/false,
                                   &command->request));
  }
  const auto client = clients_.find(command->session);
  if (client == clients_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("client_session: expected the session of an open "
                     "StreamTokens stream, got \"",
                     command->session, "\""));
  }
  RequestEviction& eviction = command->request.eviction;
  if (command->default_eviction) {
    eviction = options_.default_eviction;
  } else if (eviction.mode != EvictionMode::kNone) {
    BM_ASSIGN_OR_RETURN(eviction.table,
                        FindBudgetTable(options_.tables, eviction.policy));
  }
  if (idle()) NoteModel();
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

void Core::Do(GenerateCommand& command) {
  absl::Status status = Generate(&command);
  if (!status.ok()) ++metrics_.refused[static_cast<size_t>(status.code())];
  command.done(std::move(status));
}

absl::Status Core::Generate(GenerateCommand* command) {
  if (draining_) return ShuttingDown();
  BM_RETURN_IF_ERROR(CheckEngine());
  BM_RETURN_IF_ERROR(LimitTokens(options_.scheduler, model_.get(),
                                 scheduler_->layout(), command->all_tokens,
                                 &command->request));
  // A gateway finds the strings itself. An engine that cannot goes on longer.
  if (!scheduler_->options().sampling.Supports(SamplingField::kStop) &&
      command->request.sampling.has_value()) {
    command->request.sampling->stop.clear();
  }
  const std::string call = command->request.id;
  const int32_t num_answers = command->num_answers;
  const auto [client, is_new] = clients_.try_emplace(command->session);
  BM_CHECK(is_new);
  client->second = std::make_unique<Client>();
  client->second->sink = std::move(command->sink);
  const std::string session = command->session;
  const Request fork = num_answers > 1 ? ForkOf(command->request) : Request();
  for (int32_t index = 0; index < num_answers; ++index) {
    // Made one by one, so that a refusal of the first costs no more than one.
    SubmitCommand submit{
        session,
        index == 0 ? std::move(command->request) : AnswerOf(fork, index),
        nullptr, command->default_eviction && index == 0};
    const std::string id = submit.request.id;
    absl::Status status = Submit(&submit);
    if (!status.ok()) {
      RemoveClient(session);
      return status;
    }
    const absl::StatusOr<RequestId> submitted = scheduler_->Find(id);
    BM_CHECK(submitted.ok());
    requests_.at(*submitted).stream->index = index;
  }
  client->second->call = call;
  calls_[call] = session;
  return absl::OkStatus();
}

void Core::Do(AbortCommand& command) {
  for (const std::string& id : command.request_ids) {
    const auto call = calls_.find(id);
    if (call != calls_.end()) {
      CancelAll(clients_.at(call->second)->requests);
      calls_.erase(call);  // a repeated id costs nothing
      continue;
    }
    // NotFound: it has ended.
    (void)Cancel(id);
  }
  command.done(absl::OkStatus());
}

void Core::CancelAll(const absl::flat_hash_set<RequestId>& requests) {
  std::vector<RequestId> in_order(requests.begin(), requests.end());
  std::sort(in_order.begin(), in_order.end());
  for (const RequestId request : in_order) {
    // NotFound: it ended earlier in this pass, its effect is still to come.
    const absl::Status status = scheduler_->Cancel(request, &effects_);
    BM_CHECK(status.ok() || absl::IsNotFound(status));
  }
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

void Core::Do(CountScores& command) { command.done(Count(command)); }

absl::StatusOr<int64_t> Core::Count(const CountScores& command) const {
  BM_RETURN_IF_ERROR(CheckEngine());
  BM_RETURN_IF_ERROR(scheduler_->Find(command.request_id).status());
  // At most 2^31 pages of 2^31 positions: fits.
  return int64_t{scheduler_->layout().pages_per_block()} * command.cut;
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
    AnswerOnce(&live.evicted,
               absl::AbortedError("the request was preempted first"));
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
  const Client& client = *node.mapped();
  const auto call = calls_.find(client.call);
  if (call != calls_.end() && call->second == session) calls_.erase(call);
  for (const RequestId request : client.requests) {
    requests_.at(request).client = nullptr;
  }
  CancelAll(client.requests);
}

// --- Effects ---

void Core::DeliverEffects() {
  // Cutting off a client cancels its requests, which brings new effects.
  while (!effects_.tokens.empty() || !effects_.logprobs.empty() ||
         !effects_.finished.empty() || !effects_.evictions.empty()) {
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
  for (const LogProbsEffect& effect : effects_.logprobs) {
    add(&requests_.at(effect.request),
        TokenItem{.index = effect.num_outputs, .logprobs = &effect});
  }
  auto data = effects_.token_data.begin();
  for (const TokenEffect& effect : effects_.tokens) {
    LiveRequest& live = requests_.at(effect.request);
    if (effect.index == 0) {
      live.first_token_seconds = now_seconds_;
      metrics_.first_token.Observe(now_seconds_ - live.submitted_seconds);
    }
    TokenItem item{.token = effect.token, .index = effect.index};
    if (data != effects_.token_data.end() && data->request == effect.request &&
        data->index == effect.index) {
      item.data = &data++->data;
    }
    add(&live, item);
  }
  for (EvictionEffect& effect : effects_.evictions) EndEviction(&effect);
  for (const FinishEffect& effect : effects_.finished) {
    LiveRequest& live = requests_.at(effect.request);
    if (live.eviction != 0) {
      live.eviction = 0;
      AnswerOnce(&live.evicted, absl::AbortedError("the request ended first"));
    }
    ObserveEnd(live, effect);
    add(&live, TokenItem{.finish = &effect});
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
    AnswerOnce(&live->second.evicted, std::move(*effect));
  } else {
    AnswerOnce(&live->second.evicted, effect->status);
  }
}

// --- Operators ---

void Core::Do(GetStats& command) {
  CoreStats stats;
  stats.engine_attached = engine_ != nullptr;
  stats.engine_name = engine_name_;
  stats.epoch = options_.epoch;
  stats.generation = num_schedulers_;
  if (scheduler_ != nullptr) {
    stats.layout = scheduler_->layout();
    stats.scheduler = scheduler_->stats();
    if (command.counts_metadata) {
      stats.scheduler.metadata_bytes = scheduler_->metadata_bytes();
    }
    stats.sampling = scheduler_->options().sampling;
  }
  stats.model = model_;
  stats.max_sequence_tokens =
      MaxSequenceTokens(options_.scheduler, model_.get());
  stats.draining = draining_;
  stats.requests = metrics_;
  stats.running_request_seconds = running_request_seconds_;
  stats.clock_seconds = now_seconds_ - start_seconds_;
  stats.max_running = std::max(max_running_, stats.scheduler.num_running);
  stats.max_used_blocks =
      std::max(max_used_blocks_, stats.scheduler.blocks.used_blocks);
  stats.peaks_since_seconds = peaks_since_seconds_;
  if (command.reset_peaks) {
    peaks_since_seconds_ = stats.clock_seconds;
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
  // Clients are told first of what has ended so far. Calls are closed before
  // their requests are cancelled, so that cancelled answers do not look as if
  // they were complete.
  DeliverEffects();
  for (auto& [session, client] : clients_) {
    if (!client->call.empty()) client->sink->Close(command.reason);
  }
  absl::flat_hash_set<RequestId> requests;
  for (const auto& [id, request] : requests_) requests.insert(id);
  CancelAll(requests);
  DeliverEffects();
  for (auto& [session, client] : clients_) client->sink->Close(command.reason);
  clients_.clear();
  calls_.clear();
  if (engine_ != nullptr) {
    engine_->Close(command.reason);
    DropEngine(std::string(command.reason.message()));
  }
}

}  // namespace blockmgr
