// RequestLifecycle: moves requests between the queue, their slots and their
// end. It also keeps up to date what these moves change: bars and services of
// tenants, places in the queue, reservations, and counts of running requests.
//
// RequestLifecycle is one of the four classes that change the SchedulerState.
// The other three call it.
#ifndef SCHEDULER_REQUEST_LIFECYCLE_H_
#define SCHEDULER_REQUEST_LIFECYCLE_H_

#include <cstdint>

#include <absl/status/status.h>

#include "scheduler/prefix_finder.h"
#include "scheduler/request.h"
#include "scheduler/request_state.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/waiting_queue.h"

namespace blockmgr {

class RequestLifecycle {
 public:
  // Borrows both arguments, which must outlive this object.
  RequestLifecycle(SchedulerState* state, PrefixFinder* finder)
      : state_(*state), finder_(*finder) {}

  // Puts a request into the queue: a new one, or one that has left its slot.
  void JoinQueue(RequestState* request);
  // Takes a request out of the queue, because it is admitted or ends.
  void LeaveQueue(RequestState* request);
  // Takes a running request off its slot and puts it back into the queue. The
  // caller must call ForgetLeft() afterwards.
  void WaitAgain(RequestState* request);
  // Ends a request that is not in the queue: it has finished, failed or is
  // cancelled. If it runs, the caller must call ForgetLeft() afterwards.
  void Retire(RequestState* request, FinishReason reason, absl::Status status,
              Effects* effects);
  // Drops the requests that have left their slots from those that run.
  void ForgetLeft();

  // Bars the tenant from walks over the queue while its first request would
  // exceed its quota. Must be called whenever the tenant's first request or the
  // use of its quota has changed.
  void RefreshBar(TenantId tenant);
  // Looks at the cached prefixes of a few waiting requests again, and moves the
  // requests whose cached prefix has changed (SchedulingPolicy::kPrefix).
  void RefreshPlaces();
  // Reserves as much of the tenant's quota as the running request needs now.
  void RefreshReservation(RequestState* request);
  // Registers in PrefillFront which block a running request computes next.
  void UpdateFront(RequestState* request);
  // Sets how many drafts the engine has for the request's next run.
  void SetDrafts(RequestState* request, int32_t num_drafts);
  // Gives up the request's copy in the host tier, if it has one.
  void DropSwap(RequestState* request);

 private:
  // Takes a running request off its slot. Its steps in flight become stale.
  void LeaveSlot(RequestState* request);
  void AbortCommand(RequestState* request, const char* why, Effects* effects);
  // Returns where a request that has not run yet waits, given its cached
  // prefix.
  WaitingPlace PlaceOf(const RequestState& request,
                       int32_t num_cached_tokens) const;
  // Looks at the prefix that is cached now. Returns its pages.
  int32_t RefreshPlace(RequestState* request);

  SchedulerState& state_;
  PrefixFinder& finder_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_REQUEST_LIFECYCLE_H_
