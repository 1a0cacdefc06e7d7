// AnswerSettler: losses of blocks, and of the engine.

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "blockmgr/base/check.h"
#include "scheduler/answer_settler.h"

namespace blockmgr {

void AnswerSettler::LoseEngine(Effects* effects) {
  for (const StepInFlight& step : state_.in_flight) {
    for (const StepInFlight::Order& order : step.orders) {
      if (order.point.command == 0) continue;
      EvictionEffect effect;
      effect.request = step.runs[order.run].id;
      effect.command = order.point.command;
      effect.status = absl::AbortedError("the engine was lost");
      effects->evictions.push_back(std::move(effect));
    }
  }
  state_.in_flight.clear();
  std::vector<RequestState*>& running = state_.running.all();
  while (!running.empty()) {
    RequestState* request = running.back();
    running.pop_back();
    lifecycle_.WaitAgain(request);
  }
  state_.requests.ForEach(
      [](RequestState* request) { request->swap = kNoSwap; });
  state_.manager.LoseEngine();
  // The next engine starts with empty tables.
  state_.released.clear();
  state_.dropped_regions.clear();
  state_.dropped_swaps.clear();
  lifecycle_.RefreshPlaces();
}

void AnswerSettler::LoseBlocks(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  const absl::StatusOr<LossReport> report = state_.manager.LoseBlocks(blocks);
  // ValidateResult has checked the blocks.
  BM_CHECK(report.ok());
  state_.totals.num_lost_blocks += blocks.size();
  const std::vector<CutSequence>& cuts = report->sequences;
  if (cuts.empty()) return;
  for (RequestState* request : state_.running.all()) {
    const auto cut =
        std::ranges::lower_bound(cuts, request->slot, {}, &CutSequence::slot);
    if (cut == cuts.end() || cut->slot != request->slot) continue;
    ++state_.totals.num_cut_requests;
    if (RestartInSlot(request, cut->num_tokens)) continue;
    // The request is computed from its first token on, or from a cached prefix.
    lifecycle_.WaitAgain(request);
  }
  lifecycle_.ForgetLeft();
}

void AnswerSettler::LoseHostBlocks(std::span<const HostBlockId> blocks) {
  if (blocks.empty()) return;
  const absl::StatusOr<std::vector<SwapId>> lost =
      state_.manager.LoseHostBlocks(blocks);
  // ValidateResult has checked the blocks.
  BM_CHECK(lost.ok());
  state_.totals.num_lost_host_blocks += blocks.size();
  if (lost->empty()) return;
  state_.dropped_swaps.insert(state_.dropped_swaps.end(), lost->begin(),
                              lost->end());
  state_.requests.ForEach([&lost](RequestState* request) {
    if (std::ranges::binary_search(*lost, request->swap)) {
      request->swap = kNoSwap;
    }
  });
}

bool AnswerSettler::RestartInSlot(RequestState* request, int32_t num_left) {
  // If an order is in flight, the engine may have moved entries already.
  if (request->order_in_flight) return false;
  const int32_t next = request->next_compression;
  const int32_t length =
      next == 0 ? 0 : request->eviction.compressions[next - 1].length;
  // Observation windows are computed as a whole, and scores are accumulated
  // from the first token on, as after a prefix hit.
  int32_t num_kept =
      request->eviction.MaxCachedTokens(std::ssize(request->tokens), length);
  if (num_kept < num_left) {
    num_kept -= num_kept % state_.layout().page_size;
  } else {
    num_kept = num_left;
  }
  // Tokens before a compression cannot be computed after it.
  if (num_kept == 0 || num_kept < length) return false;
  if (!state_.manager.CanGoBack(request->slot, num_kept)) return false;
  state_.manager.CutBack(request->slot, num_kept);
  ++request->incarnation;
  request->num_computed = num_kept;
  request->num_placeholders = 0;
  request->num_unverified = 0;
  lifecycle_.SetDrafts(request, 0);
  request->num_in_cache = num_kept;
  request->restarts = true;
  state_.has_restarts = true;
  lifecycle_.UpdateFront(request);
  return true;
}

}  // namespace blockmgr
