// EngineSeat: the place of the one engine that is served, and the attachment
// that will take it.
//
// An engine attaches first (Attach), and gets a session number. Then it opens
// its step stream with that number (Open), and has the seat until it leaves
// (Leave). An engine may attach while another one has the seat, in order to
// replace it. The other engine then serves until the new stream opens.
//
// Every attachment makes the sessions before it stale. Leave makes the session
// of the engine that leaves stale, too. But if another engine has attached in
// order to replace it, the session of that engine stays valid.
//
// The seat also keeps which models the live requests need, and when each plan
// was issued. It knows the Scheduler only as the next one, which an attachment
// of another layout brings.
//
// Threads: core thread. Every function is O(1), besides texts.
#ifndef SCHEDULER_SERVER_ENGINE_SEAT_H_
#define SCHEDULER_SERVER_ENGINE_SEAT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <absl/status/status.h>
#include <boost/circular_buffer.hpp>

#include "blockmgr/served_model.h"
#include "blockmgr/step_plan.h"
#include "scheduler/scheduler.h"
#include "scheduler/server/awake_clock.h"
#include "scheduler/server/commands.h"

namespace blockmgr {

class EngineSeat {
 public:
  // `epoch` is the number of this daemon process. An engine is too slow when
  // its oldest plan has waited longer than `step_timeout_seconds` for the
  // answer, by an AwakeClock. With 0, no engine is too slow.
  EngineSeat(uint64_t epoch, double step_timeout_seconds,
             int32_t max_steps_in_flight)
      : epoch_(epoch),
        step_timeout_seconds_(step_timeout_seconds),
        issues_(static_cast<size_t>(max_steps_in_flight)) {}

  // --- The engine that has the seat ---

  bool is_taken() const { return sink_ != nullptr; }
  // Unavailable if no engine has the seat.
  absl::Status CheckTaken() const;
  bool IsTakenBy(const std::shared_ptr<EngineSink>& sink) const {
    return sink_ == sink;
  }
  // The name and the model of the engine that has the seat, or of the last one
  // that had it. The model is null if the engine has told nothing of it.
  const std::string& name() const { return engine_.name; }
  const std::shared_ptr<const ServedModel>& model() const {
    return engine_.model;
  }
  // Ends the step stream. The engine still has the seat, until Leave.
  void Close(const absl::Status& reason) { sink_->Close(reason); }
  // Empties the seat and forgets the plans that are out.
  void Leave();

  // --- Attachments ---

  // Checks whether the caller may attach now. AlreadyExists and
  // PermissionDenied, as AttachEngine says.
  absl::Status CheckAttach(const AttachEngine& command) const;
  // Makes `command` the last attachment. `options` are those of the daemon with
  // the abilities of the engine. `next` is the scheduler that the engine needs,
  // or null if the present one fits.
  Attachment Attach(AttachEngine* command, const SchedulerOptions& options,
                    std::unique_ptr<Scheduler> next);
  // Checks whether the caller may open its step stream. Errors are those of
  // OpenSteps.
  absl::Status CheckOpen(const OpenSteps& command) const;
  // Returns whether the last attachment has another layout or model than the
  // live requests need. Its stream may open only when no request is live.
  bool NeedsNoRequests() const;
  // Returns the scheduler of the last attachment, once, or null.
  std::unique_ptr<Scheduler> TakeNextScheduler() {
    return std::move(next_scheduler_);
  }
  // Gives the seat to the last attachment. REQUIRES: the seat is empty.
  void Open(std::shared_ptr<EngineSink> sink);
  const std::string& attaching_name() const { return attaching_.name; }
  const EngineAbilities& attaching_abilities() const {
    return attaching_abilities_;
  }

  // --- Models ---

  // Returns why live requests cannot go on with an engine of this model, or ""
  // if they can (engine_fit.h).
  std::string DescribeOtherModel(const ServedModel* model) const;
  // Notes that live requests need the model of the present engine. `idle` says
  // that no request is live. Then what earlier requests needed is forgotten.
  void NeedModel(bool idle);

  // --- Steps ---

  // Looks at the clock. Called once in every pass.
  void BeginPass(double now_seconds) { awake_.Look(now_seconds); }
  void SendPlan(const StepPlan& plan, double now_seconds);
  // Forgets the oldest plan, which has been answered. Returns the seconds since
  // it was issued. ReadNext will let the engine send the next answer.
  double EndStep(double now_seconds);
  void ReadNext();
  // DeadlineExceeded if the engine is too slow.
  absl::Status CheckStepTimeout() const;

 private:
  struct Engine {
    std::string name;
    std::shared_ptr<const ServedModel> model;
  };
  // The times at which a plan was issued, by the caller's clock and by awake_.
  struct Issue {
    double now_seconds = 0;
    double awake_seconds = 0;
  };

  const uint64_t epoch_;
  const double step_timeout_seconds_;

  std::shared_ptr<EngineSink> sink_;  // null while the seat is empty
  Engine engine_;                     // the engine of the last step stream
  // A result has been consumed, and ReadNext has not been called since.
  bool read_next_ = false;
  boost::circular_buffer<Issue> issues_;  // open plans, oldest first
  AwakeClock awake_;

  uint64_t session_ = 0;                 // 0 before the first attachment
  Engine attaching_;                     // set by the last attachment
  EngineAbilities attaching_abilities_;  // set by the last attachment
  bool replaces_ = false;  // the last attachment will replace an engine
  std::unique_ptr<Scheduler> next_scheduler_;

  // Name and context_tokens of the models that have served the live requests,
  // as far as engines have told them. All of these models had the same name.
  // Without live requests, the value has no meaning.
  ServedModel needed_model_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_ENGINE_SEAT_H_
