#include "scheduler/server/engine_seat.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/check.h"
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

absl::Status EngineSeat::CheckTaken() const {
  if (!is_taken()) return absl::UnavailableError("no engine attached");
  return absl::OkStatus();
}

void EngineSeat::Leave() {
  sink_.reset();
  read_next_ = false;
  issues_.clear();
  // The next stream needs a new attachment. An attachment that was made to
  // replace the leaving engine stays valid.
  if (!replaces_) ++session_;
}

absl::Status EngineSeat::CheckAttach(const AttachEngine& command) const {
  if (!is_taken()) return absl::OkStatus();
  if (!command.replace) {
    return absl::AlreadyExistsError(
        absl::StrCat("engine \"", engine_.name,
                     "\" is attached already. To take its place, set replace "
                     "(blockmgr-engine --replace)"));
  }
  return command.may_replace ? absl::OkStatus() : MayNotReplace();
}

Attachment EngineSeat::Attach(AttachEngine* command,
                              const SchedulerOptions& options,
                              std::unique_ptr<Scheduler> next) {
  attaching_ = {std::move(command->name), std::move(command->model)};
  attaching_abilities_ = options.engine;
  next_scheduler_ = std::move(next);
  replaces_ = is_taken();
  ++session_;
  return Attachment{epoch_, session_, options};
}

absl::Status EngineSeat::CheckOpen(const OpenSteps& command) const {
  if (command.epoch != epoch_) {
    return StaleEpoch("epoch", epoch_, command.epoch);
  }
  if (command.session != session_ || session_ == 0) {
    return StaleEpoch("session", session_, command.session);
  }
  if (!is_taken()) return absl::OkStatus();
  if (!replaces_) {
    return absl::AlreadyExistsError("session: it has an open step stream");
  }
  // The numbers of a session are no secret, so they do not prove who the engine
  // is.
  return command.may_replace ? absl::OkStatus() : MayNotReplace();
}

bool EngineSeat::NeedsNoRequests() const {
  return next_scheduler_ != nullptr ||
         !DescribeOtherModel(attaching_.model.get()).empty();
}

void EngineSeat::Open(std::shared_ptr<EngineSink> sink) {
  BM_CHECK(!is_taken());
  sink_ = std::move(sink);
  engine_ = attaching_;
  replaces_ = false;
}

std::string EngineSeat::DescribeOtherModel(const ServedModel* model) const {
  return blockmgr::DescribeOtherModel(needed_model_, model);
}

void EngineSeat::NeedModel(bool idle) {
  if (idle) needed_model_ = {};
  if (model() == nullptr) return;
  if (!model()->name.empty()) needed_model_.name = model()->name;
  if (model()->context_tokens > 0) {
    needed_model_.context_tokens = model()->context_tokens;
  }
}

void EngineSeat::SendPlan(const StepPlan& plan, double now_seconds) {
  sink_->SendPlan(plan);
  issues_.push_back({now_seconds, awake_.awake_seconds()});
}

double EngineSeat::EndStep(double now_seconds) {
  const double issued_seconds = issues_.front().now_seconds;
  issues_.pop_front();
  read_next_ = true;
  return now_seconds - issued_seconds;
}

void EngineSeat::ReadNext() {
  if (std::exchange(read_next_, false)) sink_->ReadNext();
}

absl::Status EngineSeat::CheckStepTimeout() const {
  if (step_timeout_seconds_ <= 0 || issues_.empty()) return absl::OkStatus();
  const double waited = awake_.awake_seconds() - issues_.front().awake_seconds;
  if (waited <= step_timeout_seconds_ + AwakeClock::kGraceSeconds) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("expected the result of the oldest step within ",
                   step_timeout_seconds_, " s (--step-timeout), got none for ",
                   static_cast<int64_t>(waited), " s"));
}

}  // namespace blockmgr
