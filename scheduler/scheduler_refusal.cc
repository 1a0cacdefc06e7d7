// Refused evictions: what becomes of a request whose eviction the engine has
// refused.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "scheduler/scheduler_impl.h"

namespace blockmgr {

absl::Status SchedulerImpl::LeaveOutLast(RequestState* request) {
  // A request has one order in flight at a time, so the refused eviction is the
  // last one that was begun.
  const int32_t index = request->next_compression - 1;
  std::vector<CompressionPoint> points = request->compressions;
  const int32_t length = points[index].length;
  points.erase(points.begin() + index);
  // What follows is not shared: a prefix that was compressed less often takes
  // more blocks than the requests which would start on it may ever get.
  for (int32_t i = index; i < std::ssize(points); ++i) {
    points[i].is_shared = false;
  }
  std::unique_ptr<DecodeCompression> decode;
  if (request->decode != nullptr) {
    decode = std::make_unique<DecodeCompression>(*request->decode);
    decode->refused_until = std::max(decode->refused_until, length);
  }
  const Fit fit = FitPool(request->last_length(), points, decode.get(),
                          request->squeeze.get());
  const int32_t peak = fit.peak_blocks;
  const auto fail = [peak](const char* whose, int32_t most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("without it the request needs ", peak,
                     " blocks at its peak, ", whose, most));
  };
  if (peak > manager_.num_usable()) {
    return fail("the pool has ", manager_.num_usable());
  }
  const int32_t max_blocks = tenants_.limits(request->tenant).max_blocks;
  if (max_blocks > 0 && peak > max_blocks) {
    return fail("the quota max_blocks of its tenant is ", max_blocks);
  }
  request->compressions = std::move(points);
  request->decode = std::move(decode);
  request->next_compression = index;
  request->peak_blocks = peak;
  request->max_chunk = fit.max_chunk;
  return absl::OkStatus();
}

void SchedulerImpl::AbortOrder(RequestState* request,
                               const StepInFlight::Order& order,
                               std::span<const EvictionOutcome> outcomes,
                               const absl::Status& why, Effects* effects) {
  ++totals_.num_refused_evictions;
  if (order.region != kNoRegion && outcomes.front().ok) {
    dropped_regions_.push_back(order.region);  // the engine has kept it
  }
  for (int32_t i = 0; i < order.num_outcomes(); ++i) {
    manager_.AbortEviction(request->slot, order.group_of(i));
  }
  if (order.point.is_planned) {
    const absl::Status fits = LeaveOutLast(request);
    if (!fits.ok()) {
      Retire(request, FinishReason::kFailed,
             absl::InternalError(
                 absl::StrCat(why.message(), "; ", fits.message())),
             effects);
      return;
    }
  } else if (order.point.is_squeeze()) {
    request->squeeze.reset();
    --num_squeezable_;
  }
  // The request is computed again if entries of some group were already moved,
  // because its old tables are then damaged. It also waits if the blocks that
  // the eviction should have given back are reserved by other requests of the
  // tenant.
  const bool has_moved = std::ranges::any_of(outcomes, &EvictionOutcome::ok);
  const int32_t change = ToReserve(*request) - request->reserved_blocks;
  const bool has_room =
      change <= 0 || tenants_.MayReserve(request->tenant, change);
  if (has_moved || !has_room) {
    WaitAgain(request);
    ForgetLeft();
    return;
  }
  RefreshReservation(request);
  UpdateFront(request);
}

}  // namespace blockmgr
