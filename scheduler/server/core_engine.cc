// The engine: who may attach, its plans, its results, its loss.

#include <cstdint>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/core.h"
#include "scheduler/server/engine_fit.h"

namespace blockmgr {
namespace {

absl::Status StaleEpoch(absl::string_view what, uint64_t want, uint64_t got) {
  return absl::FailedPreconditionError(
      absl::StrCat("STALE_EPOCH: ", what, ": expected ", want, ", got ", got));
}

absl::Status MayNotReplace() {
  return absl::PermissionDeniedError(
      "replace: expected a caller of the daemon's own user, or root, on its "
      "unix socket, got another; end the engine that is attached, then attach "
      "without replace");
}

}  // namespace

void Core::Do(AttachEngine& command) { command.done(Attach(&command)); }

absl::StatusOr<Attachment> Core::Attach(AttachEngine* command) {
  if (draining_ && idle()) return ShuttingDown();
  if (engine_ != nullptr && command->replace && !command->may_replace) {
    return MayNotReplace();
  }
  if (engine_ != nullptr && !command->replace) {
    return absl::AlreadyExistsError(
        absl::StrCat("engine \"", engine_name_,
                     "\" is attached already. To take its place, set replace "
                     "(blockmgr-engine --replace)"));
  }
  SchedulerOptions scheduler = options_.scheduler;
  scheduler.num_scorer_states = command->num_scorer_states;
  scheduler.num_host_blocks = command->num_host_blocks;
  scheduler.supports_window_evictions = command->supports_window_evictions;
  scheduler.query_stats = std::move(command->query_stats);
  scheduler.sampling = std::move(command->sampling);
  BM_RETURN_IF_ERROR(scheduler.Validate());
  const std::string difference =
      scheduler_ == nullptr
          ? "there was none"
          : DescribeDifference(scheduler_->layout(), scheduler_->options(),
                               command->layout, scheduler);
  const std::string other_model =
      DescribeOtherModel(needed_model_, command->model.get());
  std::unique_ptr<Scheduler> made;
  if (!difference.empty() || !other_model.empty()) {
    // Effects name requests of the Scheduler that may be about to go.
    DeliverEffects();
    if (!idle()) {
      return absl::FailedPreconditionError(difference.empty() ? other_model
                                                              : difference);
    }
  }
  if (!difference.empty()) {
    // Their requests are numbered from 1 on again.
    scheduler.sampling_seed =
        SplitMix64(options_.scheduler.sampling_seed + num_schedulers_);
    BM_CHECK(requests_.empty());
    BM_ASSIGN_OR_RETURN(made, factory_(command->layout, scheduler));
    const absl::Status takes_default =
        made->ValidateEviction(options_.default_eviction);
    if (!takes_default.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the daemon's default eviction is not for this engine: ",
                       takes_default.message()));
    }
  }
  attaching_name_ = std::move(command->name);
  attaching_model_ = std::move(command->model);
  attaching_options_ = scheduler;
  next_scheduler_ = std::move(made);
  replaces_ = engine_ != nullptr;
  if (!replaces_) TakeNextScheduler();
  ++engine_session_;
  return Attachment{options_.epoch, engine_session_, scheduler};
}

void Core::Do(OpenSteps& command) {
  absl::Status status;
  if (command.epoch != options_.epoch) {
    status = StaleEpoch("epoch", options_.epoch, command.epoch);
  } else if (command.session != engine_session_ || engine_session_ == 0) {
    status = StaleEpoch("session", engine_session_, command.session);
  } else if (engine_ != nullptr && !replaces_) {
    status = absl::AlreadyExistsError("session: it has an open step stream");
  } else if (engine_ != nullptr && !command.may_replace) {
    // Its numbers are no secret.
    status = MayNotReplace();
  } else if (draining_ && idle()) {
    status = ShuttingDown();
  } else if (next_scheduler_ != nullptr ||
             !DescribeOtherModel(needed_model_, attaching_model_.get())
                  .empty()) {
    // There were none when it attached.
    DeliverEffects();
    if (!idle()) {
      status = absl::FailedPreconditionError(
          "session: expected no live request that was scheduled for an engine "
          "of another geometry or model");
    }
  }
  if (status.ok()) {
    std::string what = attaching_name_;
    if (engine_ != nullptr) {
      absl::StrAppend(&what, ", in the place of ", engine_name_);
      engine_->Close(absl::AbortedError(absl::StrCat(
          "engine \"", attaching_name_, "\" has taken its place")));
      ForgetEngine();
    }
    TakeNextScheduler();
    scheduler_->TakeAbilities(attaching_options_);
    replaces_ = false;
    engine_ = std::move(command.sink);
    engine_name_ = attaching_name_;
    model_ = attaching_model_;
    NoteModel();
    if (options_.on_engine_change) options_.on_engine_change(true, what);
  }
  command.done(status);
}

void Core::NoteModel() {
  if (idle()) needed_model_ = {};
  if (model_ == nullptr) return;
  if (!model_->name.empty()) needed_model_.name = model_->name;
  if (model_->context_tokens > 0) {
    needed_model_.context_tokens = model_->context_tokens;
  }
}

void Core::TakeNextScheduler() {
  if (next_scheduler_ == nullptr) return;
  // The effects name requests of the scheduler that goes.
  DeliverEffects();
  scheduler_ = std::move(next_scheduler_);
  TellTime();
  ++num_schedulers_;
  // The peaks so far were counted in blocks of the other geometry.
  max_running_ = 0;
  max_used_blocks_ = 0;
  peaks_since_seconds_ = now_seconds_ - start_seconds_;
}

void Core::Do(EngineResult& command) {
  if (command.sink != engine_) return;  // of an engine that is gone
  const absl::Status status = scheduler_->Update(*command.result, &effects_);
  if (!status.ok()) {
    // The two no longer agree on what the pool holds.
    engine_->Close(status);
    DropEngine(std::string(status.message()));
    return;
  }
  metrics_.step.Observe(now_seconds_ - issues_.front().now_seconds);
  issues_.pop_front();
  read_next_ = true;
}

void Core::Do(EngineLost& command) {
  if (command.sink != engine_) return;
  DropEngine(command.why.empty() ? "its stream has ended" : command.why);
}

void Core::DropEngine(const std::string& why) {
  ForgetEngine();
  if (options_.on_engine_change) {
    options_.on_engine_change(false, absl::StrCat(engine_name_, ": ", why));
  }
}

void Core::ForgetEngine() {
  engine_.reset();
  read_next_ = false;
  issues_.clear();
  // A new stream needs a new attachment, or the one that was to replace it.
  if (!replaces_) ++engine_session_;
  scheduler_->LoseEngine(&effects_);
  for (EvictionEffect& effect : effects_.evictions) EndEviction(&effect);
  // Others have not been part of a step, and whoever is answered now need not
  // fear that they will be.
  for (auto& [id, request] : requests_) {
    if (request.eviction == 0) continue;
    scheduler_->WithdrawEviction(id, std::exchange(request.eviction, 0));
    AnswerOnce(&request.evicted, absl::AbortedError("the engine is gone"));
  }
}

void Core::IssuePlans() {
  if (engine_ == nullptr) return;
  while (scheduler_->Schedule(&plan_)) {
    engine_->SendPlan(plan_);
    issues_.push_back({now_seconds_, awake_.awake_seconds()});
    for (const SequenceStart& start : plan_.starts) {
      LiveRequest& live = requests_.at(start.request);
      if (live.started_seconds >= 0) continue;  // it was preempted
      live.started_seconds = now_seconds_;
      metrics_.queue.Observe(now_seconds_ - live.submitted_seconds);
    }
    plan_.evictions.clear();  // lets go of callers' scores
  }
}

void Core::CheckStepTimeout() {
  if (options_.step_timeout_seconds <= 0 || issues_.empty()) return;
  const double waited = awake_.awake_seconds() - issues_.front().awake_seconds;
  if (waited <= options_.step_timeout_seconds + AwakeClock::kGraceSeconds) {
    return;
  }
  const std::string why = absl::StrCat(
      "expected the result of the oldest step within ",
      options_.step_timeout_seconds, " s (--step-timeout), got none for ",
      static_cast<int64_t>(waited), " s");
  engine_->Close(absl::DeadlineExceededError(why));
  DropEngine(why);
}

}  // namespace blockmgr
