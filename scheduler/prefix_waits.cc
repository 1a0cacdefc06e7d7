#include "scheduler/prefix_waits.h"

#include <algorithm>
#include <span>

#include "scheduler/block_promises.h"
#include "scheduler/prefill_front.h"

namespace blockmgr {

bool PrefixWaits::MayWait(const RequestState& request) const {
  return state_.manager.prefix_caching() &&
         state_.options().min_prefix_wait_tokens > 0 &&
         request.prefix_waits < state_.options().max_prefix_wait_steps;
}

PrefixWait PrefixWaits::Find(const RequestState& request,
                             const PrefixMatch& match) const {
  if (!MayWait(request)) return {};
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_matched = match.num_tokens / page_size;
  PrefixWait wait = FindRegionToCome(request);
  if (const RequestState* other = WhoComputes(request, match)) {
    const int32_t num_common = CountCommonBlocks(
        request.chain.keys(), other->chain.keys(), num_matched);
    const int32_t usable =
        std::min((num_matched + num_common) * page_size,
                 decision_.EvictionOf(request).MaxCachedTokens(
                     request.num_cacheable(), 0));
    if (usable > wait.usable) {
      wait = {.other = other, .id = other->id, .usable = usable};
    }
  }
  const bool is_worth_it = wait.usable - num_matched * page_size >=
                           state_.options().min_prefix_wait_tokens;
  return is_worth_it ? wait : PrefixWait{};
}

const RequestState* PrefixWaits::WhoComputes(const RequestState& request,
                                             const PrefixMatch& match) const {
  // Blocks behind a region have other keys (see RegionToCome).
  if (match.record() != nullptr) return nullptr;
  const int32_t num_matched = match.num_tokens / state_.layout().page_size;
  const std::span<const BlockKey> keys = request.chain.keys();
  if (num_matched >= std::ssize(keys)) return nullptr;
  const RequestState* running = state_.prefill_front.Find(keys[num_matched]);
  if (running != nullptr) return running;
  const auto admitted = decision_.computing.find(keys[num_matched]);
  return admitted == decision_.computing.end() ? nullptr : admitted->second;
}

PrefixWait PrefixWaits::FindRegionToCome(const RequestState& request) const {
  PrefixWait wait;
  if (decision_.EvictionOf(request).sharing == nullptr) return wait;
  const auto look = [&](const RequestState& other, int32_t next) {
    const int32_t length = RegionToCome(request, other, next);
    if (length > wait.usable) {
      wait = {
          .other = &other, .id = other.id, .usable = length, .is_region = true};
    }
  };
  for (const RequestState* other : state_.running) {
    look(*other, NextToCome(*other));
  }
  for (const StepDecision::Run& run : decision_.runs) {
    if (run.match < 0) continue;
    look(*run.request,
         NextCompression(*run.request, decision_.EvictionOf(*run.request),
                         decision_.matches[run.match]));
  }
  return wait;
}

int32_t PrefixWaits::RegionToCome(const RequestState& request,
                                  const RequestState& other,
                                  int32_t next) const {
  const EvictionPlan& own = decision_.EvictionOf(request);
  const EvictionPlan& its = decision_.EvictionOf(other);
  if (next >= std::ssize(its.compressions) || its.sharing == nullptr ||
      its.sharing->plan != own.sharing->plan) {
    return 0;
  }
  const std::span<const BlockKey> keys = other.chain.keys();
  for (auto i = std::ssize(its.compressions); i-- > next;) {
    const int32_t length = its.compressions[i].length;
    const size_t last = length / state_.layout().page_size - 1;
    // Keys are chained. If the last keys are equal, all keys before are equal.
    if (its.compressions[i].is_shared && last < keys.size() &&
        own.MaxCachedTokens(request.num_cacheable(), length) >= length &&
        std::ranges::binary_search(own.compressions, length, {},
                                   &CompressionPoint::length) &&
        request.chain.keys()[last] == keys[last]) {
      return length;
    }
  }
  return 0;
}

int32_t PrefixWaits::NextToCome(const RequestState& running) const {
  // A region whose eviction is in flight is still to come.
  const auto& pending = state_.manager.sequence(running.slot).first().pending;
  const int32_t last = running.next_compression - 1;
  const bool is_ordered =
      pending != nullptr && last >= 0 &&
      running.eviction.compressions[last].cut == pending->cut;
  return last + (is_ordered ? 0 : 1);
}

bool PrefixWaits::StillWaits(const RequestState& request) const {
  const PrefixWait& wait = request.prefix_wait;
  if (wait.other == nullptr || wait.other->id != wait.id ||
      !wait.other->running || !MayWait(request)) {
    return false;
  }
  if (wait.is_region) {
    return RegionToCome(request, *wait.other, NextToCome(*wait.other)) ==
           wait.usable;
  }
  const int32_t page_size = state_.layout().page_size;
  const int32_t num_settled =
      state_.manager.sequence(wait.other->slot).num_settled;
  return wait.usable - num_settled / page_size * page_size >=
         state_.options().min_prefix_wait_tokens;
}

}  // namespace blockmgr
