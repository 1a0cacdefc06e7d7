#include "scheduler/server/core.h"

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/engine_fit.h"
#include "scheduler/server/sequence_limits.h"

namespace blockmgr {
namespace {

absl::Status ShuttingDown() {
  return absl::UnavailableError("the daemon is shutting down");
}

// Returns what the forks of `parent` in one call have in common. Forks do not
// ask for log-probabilities of the prompt, because the first answer has them.
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

// Returns Core::prefix_cache_version for the cache of a scheduler, which may be
// null. `generation` numbers the schedulers.
uint64_t CacheVersion(const Scheduler* scheduler, uint64_t generation) {
  if (scheduler == nullptr) return 0;
  // A cache of another layout begins to count anew.
  constexpr int kChangeBits = 48;
  return (generation << kChangeBits) | scheduler->prefix_cache().num_changes();
}

}  // namespace

Core::Core(CoreOptions options, SchedulerFactory factory)
    : options_(std::move(options)),
      factory_(std::move(factory)),
      seat_(options_.epoch, options_.step_timeout_seconds,
            options_.scheduler.max_steps_in_flight),
      sessions_(&metrics_) {}

Core::~Core() {
  const absl::Status status = absl::UnavailableError("the daemon has stopped");
  sessions_.AbortEvictions(status, scheduler_.get());
  for (StatusReply& done : drained_) done(status);
}

void Core::BeginPass(double now_seconds) {
  load_.BeginPass(now_seconds);
  seat_.BeginPass(load_.now_seconds());
  if (scheduler_ != nullptr) scheduler_->SetTime(load_.now_ms());
}

void Core::Handle(Command* command) {
  std::visit(
      [this]<typename T>(T& alternative) {
        if constexpr (std::is_void_v<decltype(Do(alternative))>) {
          Do(alternative);
        } else {
          auto answer = Do(alternative);
          if constexpr (std::is_same_v<T, SubmitCommand> ||
                        std::is_same_v<T, GenerateCommand>) {
            metrics_.CountRefusal(answer);
          }
          alternative.done(std::move(answer));
        }
      },
      *command);
}

void Core::EndPass() {
  if (const absl::Status late = seat_.CheckStepTimeout(); !late.ok()) {
    seat_.Close(late);
    DropEngine(late.message());
  }
  IssuePlans();
  seat_.ReadNext();
  DeliverEffects();
  if (scheduler_ != nullptr) {
    load_.EndPass(scheduler_->num_running(), scheduler_->num_used_blocks());
  }
  if (!drained_.empty() && idle() && sessions_.HasSentAll()) {
    for (StatusReply& done : drained_) done(absl::OkStatus());
    drained_.clear();
  }
  cache_version_.store(closed_
                           ? std::numeric_limits<uint64_t>::max()
                           : CacheVersion(scheduler_.get(), num_schedulers_));
}

void Core::IssuePlans() {
  if (!seat_.is_taken()) return;
  while (scheduler_->Schedule(&plan_)) {
    seat_.SendPlan(plan_, load_.now_seconds());
    sessions_.NoteStarts(plan_, load_.now_seconds());
    // Clear releases the scores of callers.
    plan_.evictions.clear();
  }
}

void Core::DeliverEffects() {
  // A client that is cut off loses its requests, which brings new effects.
  while (!effects_.tokens.empty() || !effects_.logprobs.empty() ||
         !effects_.finished.empty() || !effects_.evictions.empty()) {
    const std::vector<RequestId> cut_off =
        sessions_.Deliver(&effects_, load_.now_seconds());
    effects_.Clear();
    CancelAll(cut_off);
  }
}

void Core::CancelAll(const std::vector<RequestId>& requests) {
  for (const RequestId request : requests) {
    // NotFound says that the request has ended earlier in this pass. Its effect
    // is not delivered yet.
    const absl::Status status = scheduler_->Cancel(request, &effects_);
    BM_CHECK(status.ok() || absl::IsNotFound(status));
  }
}

// --- Frontends ---

absl::Status Core::Do(SubmitCommand& command) {
  if (draining_) return ShuttingDown();
  BM_RETURN_IF_ERROR(seat_.CheckTaken());
  // The scheduler checks its own limit, but does not know that of the model.
  if (seat_.model() != nullptr && seat_.model()->context_tokens > 0) {
    BM_RETURN_IF_ERROR(LimitTokens(options_.scheduler, seat_.model().get(),
                                   scheduler_->layout(), /*all_tokens=*/false,
                                   &command.request));
  }
  BM_RETURN_IF_ERROR(sessions_.CheckOpen(command.session));
  RequestEviction& eviction = command.request.eviction;
  if (command.default_eviction) {
    eviction = options_.default_eviction;
  } else if (eviction.mode != EvictionMode::kNone) {
    BM_ASSIGN_OR_RETURN(eviction.table,
                        FindBudgetTable(options_.tables, eviction.policy));
  }
  if (idle()) seat_.NeedModel(/*idle=*/true);
  std::string id = command.request.id;
  BM_ASSIGN_OR_RETURN(const RequestId request,
                      scheduler_->Submit(std::move(command.request)));
  sessions_.Add(command.session, request, std::move(id), load_.now_seconds());
  return absl::OkStatus();
}

absl::Status Core::Do(GenerateCommand& command) {
  if (draining_) return ShuttingDown();
  BM_RETURN_IF_ERROR(seat_.CheckTaken());
  BM_RETURN_IF_ERROR(LimitTokens(options_.scheduler, seat_.model().get(),
                                 scheduler_->layout(), command.all_tokens,
                                 &command.request));
  // The gateway finds stop strings itself. An engine that does not look for
  // them only generates more tokens.
  if (!scheduler_->options().engine.sampling.Supports(SamplingField::kStop) &&
      command.request.sampling.has_value()) {
    command.request.sampling->stop.clear();
  }
  const std::string call = command.request.id;
  BM_CHECK(sessions_.Open(command.session, std::move(command.sink)));
  const Request fork =
      command.num_answers > 1 ? ForkOf(command.request) : Request();
  for (int32_t index = 0; index < command.num_answers; ++index) {
    // The forks are made one by one, so that none is made if the first request
    // is refused.
    SubmitCommand submit{
        command.session,
        index == 0 ? std::move(command.request) : AnswerOf(fork, index),
        nullptr, command.default_eviction && index == 0};
    absl::Status status = Do(submit);
    if (!status.ok()) {
      CancelAll(sessions_.Remove(command.session));
      return status;
    }
  }
  sessions_.NameCall(command.session, call);
  return absl::OkStatus();
}

absl::Status Core::Do(AbortCommand& command) {
  for (const std::string& id : command.request_ids) {
    if (const auto call = sessions_.TakeCall(id)) {
      CancelAll(*call);
    } else if (scheduler_ != nullptr) {
      const absl::StatusOr<RequestId> request = scheduler_->Find(id);
      if (request.ok()) CancelAll({*request});
    }
  }
  return absl::OkStatus();
}

absl::Status Core::Do(CancelCommand& command) {
  if (scheduler_ == nullptr) {
    return absl::NotFoundError(absl::StrCat("request_id: no live request \"",
                                            command.request_id, "\""));
  }
  BM_ASSIGN_OR_RETURN(const RequestId request,
                      scheduler_->Find(command.request_id));
  return scheduler_->Cancel(request, &effects_);
}

absl::StatusOr<int64_t> Core::Do(CountScores& command) {
  BM_RETURN_IF_ERROR(seat_.CheckTaken());
  BM_RETURN_IF_ERROR(scheduler_->Find(command.request_id).status());
  // The product of at most 2^31 pages and 2^31 positions fits.
  return int64_t{scheduler_->layout().pages_per_block()} * command.cut;
}

void Core::Do(EvictCommand& command) {
  const absl::Status status = StartEviction(&command);
  if (!status.ok()) command.done(status);
}

absl::Status Core::StartEviction(EvictCommand* command) {
  BM_RETURN_IF_ERROR(seat_.CheckTaken());
  BM_ASSIGN_OR_RETURN(const RequestId request,
                      scheduler_->Find(command->request_id));
  BM_ASSIGN_OR_RETURN(
      command->eviction.table,
      FindBudgetTable(options_.tables, command->eviction.policy));
  BM_ASSIGN_OR_RETURN(const uint64_t eviction,
                      scheduler_->Evict(request, std::move(command->eviction)));
  // The eviction before this one is over, or this one would have been refused.
  // Either it ended in this pass, or the request was preempted and its step has
  // yet to say so.
  sessions_.EndEvictions(&effects_);
  sessions_.BeginEviction(request, eviction, std::move(command->done));
  return absl::OkStatus();
}

absl::Status Core::Do(OpenClient& command) {
  if (draining_) return ShuttingDown();
  if (!sessions_.Open(command.session, std::move(command.sink))) {
    return absl::AlreadyExistsError(
        absl::StrCat("client_session: \"", command.session,
                     "\" has an open StreamTokens stream"));
  }
  return absl::OkStatus();
}

void Core::Do(ClientGone& command) {
  if (!sessions_.HasStream(command.session, command.sink)) return;
  CancelAll(sessions_.Remove(command.session));
}

// --- The engine ---

absl::StatusOr<Attachment> Core::Do(AttachEngine& command) {
  if (draining_ && idle()) return ShuttingDown();
  BM_RETURN_IF_ERROR(seat_.CheckAttach(command));
  SchedulerOptions scheduler = options_.scheduler;
  scheduler.engine = std::move(command.abilities);
  BM_RETURN_IF_ERROR(scheduler.Validate());
  const std::string difference =
      scheduler_ == nullptr
          ? "there was none"
          : DescribeDifference(scheduler_->layout(),
                               scheduler_->options().engine, command.layout,
                               scheduler.engine);
  const std::string other_model = seat_.DescribeOtherModel(command.model.get());
  std::unique_ptr<Scheduler> made;
  if (!difference.empty() || !other_model.empty()) {
    // The effects name requests of a scheduler that the next lines may replace.
    DeliverEffects();
    if (!idle()) {
      return absl::FailedPreconditionError(difference.empty() ? other_model
                                                              : difference);
    }
  }
  if (!difference.empty()) {
    // A new scheduler numbers its requests from 1 on again, so it needs another
    // seed.
    scheduler.sampling_seed =
        SplitMix64(options_.scheduler.sampling_seed + num_schedulers_);
    BM_CHECK(sessions_.LiveRequests().empty());
    BM_ASSIGN_OR_RETURN(made, factory_(command.layout, scheduler));
    const absl::Status takes_default =
        made->ValidateEviction(options_.default_eviction);
    if (!takes_default.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the daemon's default eviction is not for this engine: ",
                       takes_default.message()));
    }
  }
  Attachment attachment = seat_.Attach(&command, scheduler, std::move(made));
  if (!seat_.is_taken()) TakeNextScheduler();
  return attachment;
}

absl::Status Core::Do(OpenSteps& command) {
  BM_RETURN_IF_ERROR(seat_.CheckOpen(command));
  if (draining_ && idle()) return ShuttingDown();
  if (seat_.NeedsNoRequests()) {
    // No request was live when the engine attached, but one may have come.
    DeliverEffects();
    if (!idle()) {
      return absl::FailedPreconditionError(
          "session: expected no live request that was scheduled for an engine "
          "of another geometry or model");
    }
  }
  std::string what = seat_.attaching_name();
  if (seat_.is_taken()) {
    absl::StrAppend(&what, ", in the place of ", seat_.name());
    seat_.Close(absl::AbortedError(absl::StrCat(
        "engine \"", seat_.attaching_name(), "\" has taken its place")));
    LoseEngine();
  }
  TakeNextScheduler();
  scheduler_->TakeAbilities(seat_.attaching_abilities());
  seat_.Open(std::move(command.sink));
  seat_.NeedModel(idle());
  if (options_.on_engine_change) options_.on_engine_change(true, what);
  return absl::OkStatus();
}

void Core::TakeNextScheduler() {
  std::unique_ptr<Scheduler> next = seat_.TakeNextScheduler();
  if (next == nullptr) return;
  // The effects name requests of the scheduler that is replaced.
  DeliverEffects();
  scheduler_ = std::move(next);
  scheduler_->SetTime(load_.now_ms());
  ++num_schedulers_;
  // The peaks so far were counted in blocks of the other geometry.
  load_.ResetPeaks(0, 0);
}

void Core::Do(EngineResult& command) {
  // A result of an engine that is gone is ignored.
  if (!seat_.IsTakenBy(command.sink)) return;
  const absl::Status status = scheduler_->Update(*command.result, &effects_);
  if (!status.ok()) {
    // The engine and the scheduler no longer agree on what the pool holds.
    seat_.Close(status);
    DropEngine(status.message());
    return;
  }
  metrics_.step.Observe(seat_.EndStep(load_.now_seconds()));
}

void Core::Do(EngineLost& command) {
  if (!seat_.IsTakenBy(command.sink)) return;
  DropEngine(command.why.empty() ? "its stream has ended" : command.why);
}

void Core::DropEngine(absl::string_view why) {
  LoseEngine();
  if (options_.on_engine_change) {
    options_.on_engine_change(false, absl::StrCat(seat_.name(), ": ", why));
  }
}

void Core::LoseEngine() {
  seat_.Leave();
  scheduler_->LoseEngine(&effects_);
  sessions_.EndEvictions(&effects_);
  // The other evictions have not been part of a step. They are withdrawn, so
  // that none is carried out after its caller was told that it has failed.
  sessions_.AbortEvictions(absl::AbortedError("the engine is gone"),
                           scheduler_.get());
}

// --- Operators ---

CoreStats Core::Do(GetStats& command) {
  CoreStats stats;
  stats.engine_attached = seat_.is_taken();
  stats.engine_name = seat_.name();
  stats.epoch = options_.epoch;
  stats.generation = num_schedulers_;
  if (scheduler_ != nullptr) {
    stats.layout = scheduler_->layout();
    stats.scheduler = scheduler_->stats();
    if (command.counts_metadata) {
      stats.scheduler.metadata_bytes = scheduler_->metadata_bytes();
    }
    stats.sampling = scheduler_->options().engine.sampling;
  }
  stats.model = seat_.model();
  stats.max_sequence_tokens =
      MaxSequenceTokens(options_.scheduler, seat_.model().get());
  stats.draining = draining_;
  stats.requests = metrics_;
  load_.Report(&stats);
  if (command.reset_peaks) {
    load_.ResetPeaks(stats.scheduler.num_running,
                     stats.scheduler.blocks.used_blocks);
    if (scheduler_ != nullptr) scheduler_->ForgetKeptEntries();
  }
  return stats;
}

CacheReset Core::Do(ResetPrefixCache& /*command*/) {
  return scheduler_ == nullptr ? CacheReset{} : scheduler_->ResetPrefixCache();
}

absl::StatusOr<PrefixCacheReading> Core::Do(ReadPrefixCache& command) {
  if (closed_) return ShuttingDown();
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

void Core::Do(Drain& command) {
  draining_ = true;
  drained_.push_back(std::move(command.done));
}

void Core::Do(CloseAll& command) {
  draining_ = true;
  closed_ = true;
  // Clients first get the effects so far. Calls are closed before their
  // requests are cancelled. Otherwise a cancelled answer would look complete.
  DeliverEffects();
  sessions_.CloseCalls(command.reason);
  CancelAll(sessions_.LiveRequests());
  DeliverEffects();
  sessions_.CloseAll(command.reason);
  if (seat_.is_taken()) {
    seat_.Close(command.reason);
    DropEngine(command.reason.message());
  }
}

}  // namespace blockmgr
