// Going on after the engine has lost the content of blocks, or is lost.

#include <algorithm>
#include <utility>

#include "blockmgr/base/check.h"
#include "scheduler/scheduler_impl.h"

namespace blockmgr {

void SchedulerImpl::LoseEngine(Effects* effects) {
  for (const StepInFlight& step : in_flight_) {
    for (const StepInFlight::Order& order : step.orders) {
      if (order.point.command == 0) continue;
      EvictionEffect effect;
      effect.request = step.runs[order.run].id;
      effect.command = order.point.command;
      effect.status = absl::AbortedError("the engine was lost");
      effects->evictions.push_back(std::move(effect));
    }
  }
  in_flight_.clear();
  while (!running_.empty()) {
    RequestState* request = running_.back();
    running_.pop_back();
    WaitAgain(request);
  }
  for (const auto& [id, request] : requests_) request->swap = kNoSwap;
  manager_.LoseEngine();
  // The next engine starts with empty tables.
  released_.clear();
  dropped_regions_.clear();
  dropped_swaps_.clear();
  RefreshPlaces();
}

void SchedulerImpl::LoseBlocks(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  const absl::StatusOr<LossReport> report = manager_.LoseBlocks(blocks);
  BM_CHECK(report.ok());  // ValidateResult has looked
  totals_.num_lost_blocks += blocks.size();
  const std::vector<CutSequence>& cuts = report->sequences;
  if (cuts.empty()) return;
  for (RequestState* request : running_) {
    const auto cut =
        std::ranges::lower_bound(cuts, request->slot, {}, &CutSequence::slot);
    if (cut == cuts.end() || cut->slot != request->slot) continue;
    ++totals_.num_cut_requests;
    if (RestartInSlot(request, cut->num_tokens)) continue;
    // From the first token on, or what the prefix cache has.
    WaitAgain(request);
  }
  ForgetLeft();
}

void SchedulerImpl::LoseHostBlocks(std::span<const HostBlockId> blocks) {
  if (blocks.empty()) return;
  const absl::StatusOr<std::vector<SwapId>> lost =
      manager_.LoseHostBlocks(blocks);
  BM_CHECK(lost.ok());  // ValidateResult has looked
  totals_.num_lost_host_blocks += blocks.size();
  if (lost->empty()) return;
  dropped_swaps_.insert(dropped_swaps_.end(), lost->begin(), lost->end());
  for (const auto& [id, request] : requests_) {
    if (std::ranges::binary_search(*lost, request->swap)) {
      request->swap = kNoSwap;
    }
  }
}

bool SchedulerImpl::RestartInSlot(RequestState* request, int32_t num_left) {
  // Where an order stands is the engine's to know: it may have moved entries.
  if (request->order_in_flight) return false;
  const int32_t next = request->next_compression;
  const int32_t length =
      next == 0 ? 0 : request->eviction.compressions[next - 1].length;
  // As with a prefix hit: observation windows are computed as a whole, and
  // scores are accumulated from the first token on.
  int32_t num_kept =
      request->eviction.MaxCachedTokens(std::ssize(request->tokens), length);
  if (num_kept < num_left) {
    num_kept -= num_kept % layout().page_size;
  } else {
    num_kept = num_left;
  }
  // What came before a compression cannot be computed after it.
  if (num_kept == 0 || num_kept < length) return false;
  if (!manager_.CanGoBack(request->slot, num_kept)) return false;
  manager_.CutBack(request->slot, num_kept);
  ++request->incarnation;
  request->num_computed = num_kept;
  request->num_placeholders = 0;
  request->num_unverified = 0;
  SetDrafts(request, 0);
  request->num_in_cache = num_kept;
  request->restarts = true;
  has_restarts_ = true;
  UpdateFront(request);
  return true;
}

}  // namespace blockmgr
