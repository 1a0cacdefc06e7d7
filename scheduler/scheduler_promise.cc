// What admitted requests may still take, and whether that leaves room for one
// more.

#include <algorithm>
#include <span>

#include "scheduler/footprint.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {

int32_t SchedulerImpl::LengthOf(const RequestState& request, Promise promise) {
  return promise == Promise::kKnown
             ? static_cast<int32_t>(request.tokens.size())
             : request.last_length();
}

bool SchedulerImpl::IsCopied(const RequestState& request,
                             const PrefixMatch& match) const {
  if (NextCompression(request, match) < std::ssize(request.compressions)) {
    return true;
  }
  const auto copies = [&](const RequestState* other) {
    const SequenceCache& sequence = manager_.sequence(other->slot);
    if (!sequence.pending.has_value() &&
        other->next_compression == std::ssize(other->compressions)) {
      return false;
    }
    return ShareBlocks({match.record(), match.cut(), match.full_blocks()},
                       {sequence.region.get(), sequence.cut(), sequence.tail},
                       layout().page_size);
  };
  return NumInUse(match) > 0 && std::ranges::any_of(running_, copies);
}

int32_t SchedulerImpl::NeededOn(const RequestState& request,
                                const PrefixMatch& match,
                                Promise promise) const {
  const auto to_come = std::span<const CompressionPoint>(request.compressions)
                           .subspan(NextCompression(request, match));
  const int32_t peak = PeakBlocks(
      LengthOf(request, promise),
      MaxChunk(request, std::ssize(request.tokens) - match.num_tokens), to_come,
      layout(),
      {.region_blocks = match.num_region_blocks(),
       .cut = match.cut(),
       .window_region_blocks = match.num_window_region_blocks},
      request.decode.get(), request.squeeze.get());
  const bool is_copied =
      promise == Promise::kCompletion && IsCopied(request, match);
  return peak + (is_copied ? NumInUse(match) : 0);
}

int32_t SchedulerImpl::SharedBelow(const RequestState& request) const {
  if (request.next_compression == std::ssize(request.compressions)) return 0;
  const int32_t cut = request.compressions[request.next_compression].cut;
  const SequenceCache& sequence = manager_.sequence(request.slot);
  if (cut <= sequence.cut()) return 0;
  return sequence.BlocksBelow(cut, layout().page_size) -
         manager_.NumOwnBlocks(request.slot, cut);
}

int32_t SchedulerImpl::Remaining(const RequestState& request,
                                 int32_t length) const {
  return RemainingBlocks(
      request, manager_.sequence(request.slot),
      layout().has_windows() ? manager_.NumOwnInWindows(request.slot)
                             : OwnInWindows(),
      length,
      MaxChunk(request, std::ssize(request.tokens) - request.num_computed),
      layout());
}

int32_t SchedulerImpl::ToReserve(const RequestState& request) const {
  // How much of windows a request will hold alone depends on who leaves them
  // first: its peak stays reserved.
  if (layout().has_windows()) return request.peak_blocks;
  return manager_.sequence(request.slot).num_blocks() +
         Remaining(request, request.last_length());
}

void SchedulerImpl::RefreshReservation(RequestState* request) {
  const int32_t needed = ToReserve(*request);
  if (needed == request->reserved_blocks) return;
  tenants_.Reserve(request->tenant, needed - request->reserved_blocks);
  request->reserved_blocks = needed;
  RefreshBar(request->tenant);
}

int64_t SchedulerImpl::BlocksPromised(Promise promise) const {
  int64_t promised = 0;
  for (const RequestState* request : running_) {
    // What this step takes of it is already gone from the available blocks.
    const StepDecision::Run* run = decision_.RunOf(*request);
    const int32_t taken = run == nullptr ? 0 : run->num_blocks;
    const int32_t length = LengthOf(*request, promise);
    if (request->num_computed >= length) continue;
    int32_t remaining = Remaining(*request, length);
    if (promise == Promise::kCompletion) remaining += SharedBelow(*request);
    promised += std::max(0, remaining - taken);
  }
  for (const StepDecision::Run& run : decision_.runs) {
    if (run.match < 0) continue;
    const PrefixMatch& match = decision_.matches[run.match];
    promised +=
        std::max(0, NeededOn(*run.request, match, promise) + match.num_moving -
                        match.num_blocks() - run.num_blocks);
  }
  return promised;
}

int64_t SchedulerImpl::Promised(Promise promise) {
  std::optional<int64_t>& promised = decision_.promised[promise];
  if (!promised.has_value()) promised = BlocksPromised(promise);
  return *promised;
}

bool SchedulerImpl::IsAffordable(const RequestState& request,
                                 const PrefixMatch& match,
                                 const BlockBudget& budget) {
  const int64_t room = int64_t{budget.available} + budget.coming;
  // What it finds unused in the cache is not there for anybody else once it
  // runs, what is coming of that, too.
  const int32_t num_in_use = NumInUse(match);
  if (options_.admission == AdmissionPolicy::kWatermark) {
    // Everything known, at its peak: evictions on the way (a resumed request
    // replays them) may be what makes it fit.
    const int32_t needed =
        NeededOn(request, match, Promise::kKnown) - num_in_use;
    const bool alone = running_.empty() && decision_.runs.empty();
    if (needed + (alone ? 0 : watermark_blocks_) >
        room - Promised(Promise::kKnown)) {
      return false;
    }
  }
  // Who has been preempted a few times comes back for good: nobody is admitted
  // beside it either who may take what it, or another one, needs.
  if (options_.admission != AdmissionPolicy::kGuaranteed &&
      !request.is_spared() && num_spared_ + decision_.num_spared == 0) {
    return true;
  }
  return NeededOn(request, match, Promise::kCompletion) - num_in_use <=
         room - Promised(Promise::kCompletion);
}

}  // namespace blockmgr
