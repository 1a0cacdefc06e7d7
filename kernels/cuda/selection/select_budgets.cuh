// Budgets on the device. The last block of a scope's heads does what
// AllocateBudgets of eviction/select.h does, in the same integers.
#ifndef KERNELS_CUDA_SELECTION_SELECT_BUDGETS_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_BUDGETS_CUH_

#include <cstdint>

#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_apportion.cuh"
#include "kernels/cuda/selection/select_keys.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/selection/select_scopes.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Weights are in multiples of 10^-9 entries, the resolution of alpha.
inline constexpr int64_t kSelectWeightUnit = 1000000000;

// Finds the candidates of a head and the protected entries among them, in every
// thread. All threads of a block call it. Shared memory: kRadixSharedBytes. The
// bins stay unchanged.
SIMT_DEVICE SelectHead SplitHead(const SelectProblem& p, int32_t head,
                                 const SelectScope& limits) {
  SelectHead state = {};
  state.offset = p.offsets[head];
  const int32_t* positions = p.positions + state.offset;
  const auto size = static_cast<int32_t>(p.offsets[head + 1] - state.offset);
  // Each of three warps does one search, because the loads of a search wait for
  // one another.
  const auto below = simt::Shared<int32_t>(kRadixPickAt, 3);
  const uint32_t warp = simt::Warp();
  if (warp < 3) {
    const int32_t bound = warp == 0   ? limits.sinks_end
                          : warp == 1 ? limits.recent_begin
                                      : limits.cut;
    const int32_t found = CountLeading(
        size, [&](int32_t entry) { return positions[entry] < bound; });
    if (simt::Lane() == 0) below.Store(warp, found);
  }
  simt::SyncBlock();
  const int32_t count = below.Load(2);
  const int32_t sinks = below.Load(0) < count ? below.Load(0) : count;
  const int32_t through_past = below.Load(1) < count ? below.Load(1) : count;
  state.num_sinks = sinks;
  state.num_past = through_past - sinks;
  state.num_recent = count - through_past;
  return state;
}

SIMT_DEVICE int64_t CountProtected(const SelectHead& head) {
  return static_cast<int64_t>(head.num_sinks) + head.num_recent;
}

// Returns the number of entries that a head gets at any score.
SIMT_DEVICE int64_t FixedOf(const SelectScope& scope, const SelectHead& head) {
  return Smaller(scope.entries / scope.num_heads, CountProtected(head));
}

// Returns the number of entries of the past that a head takes before its
// scope's pool is made: its floor. If a head without protected entries gets
// only its share of the pool, it takes its best entry (ScoredIdeals of
// eviction/budgets.cc).
SIMT_DEVICE int64_t FloorOf(const SelectProblem& p, const SelectScope& scope,
                            const SelectHead& head) {
  const int64_t mean = scope.entries / scope.num_heads;
  const int64_t fixed = FixedOf(scope, head);
  int64_t floor = 0;
  if (p.budget == SelectBudget::kFloor) {
    floor = (mean - fixed) * p.alpha / kSelectWeightUnit;
  }
  if (HasFloors(p) && fixed == 0) floor = Larger(floor, 1);
  return Smaller(floor, head.num_past);
}

// Returns whether budgets depend on scores.
SIMT_HOST_DEVICE bool IsScored(const SelectProblem& p) {
  return p.budget == SelectBudget::kBlend || p.budget == SelectBudget::kFloor;
}

// Begins the search of a scope's pool: the entries of its heads' pasts, without
// the entries that heads took for themselves.
SIMT_DEVICE void BeginPool(const SelectProblem& p, const ScopeThreads& threads,
                           int32_t index) {
  const SelectScope scope = p.scopes[index];
  int64_t taken = 0;
  int64_t pool = 0;
  for (uint32_t i = simt::ThreadIndex();
       i < static_cast<uint32_t>(scope.num_heads); i += threads.num_threads()) {
    SelectHead* state = p.heads + scope.first_head + i;
    state->fixed = FixedOf(scope, *state);
    taken += state->fixed + state->floor_count;
    pool += state->num_past - state->floor_count;
  }
  taken = threads.Sum(taken);
  pool = threads.Sum(pool);
  if (simt::ThreadIndex() == 0) {
    p.searches[index] = BeginSearch(scope.entries - taken, pool);
  }
}

// Computes f_h, the number of the scope's best entries that each head has. Ties
// go to the lower head.
SIMT_DEVICE void WeighHeads(const SelectProblem& p, const ScopeThreads& threads,
                            const SelectScope& scope, const RadixSearch& pool) {
  const int64_t mean = scope.entries / scope.num_heads;
  const int64_t uniform = p.budget == SelectBudget::kFloor ? 0 : p.alpha;
  const auto num_heads = static_cast<uint32_t>(scope.num_heads);
  int64_t equals_before = 0;
  for (uint32_t base = 0; base < num_heads; base += threads.num_threads()) {
    const uint32_t i = base + simt::ThreadIndex();
    SelectHead* state = p.heads + scope.first_head + (i < num_heads ? i : 0);
    const bool search = pool.mode == RadixSearch::kSearch;
    const int64_t floor = state->floor_count;
    const int64_t above = search ? Larger(0, state->above - floor) : 0;
    // Some entries equal to the threshold may be among those that the head took
    // for itself.
    const int64_t equal =
        search && i < num_heads
            ? Larger(0,
                     Smaller(state->equal, state->above + state->equal - floor))
            : 0;
    int64_t total;  // of the turn
    const int64_t before = equals_before + threads.Prefix(equal, &total);
    equals_before += total;
    if (i >= num_heads) continue;
    int64_t count = floor;
    if (pool.mode == RadixSearch::kAll) {
      count = state->num_past;
    } else if (search) {
      count += above + Larger(0, Smaller(equal, pool.wanted - before));
    }
    state->weight =
        count * (kSelectWeightUnit - uniform) + (mean - state->fixed) * uniform;
  }
}

// Sets which entries of a head survive under its budget.
SIMT_DEVICE void KeepWithin(const SelectProblem& p, int64_t head,
                            int64_t budget) {
  SelectHead* state = p.heads + head;
  RadixSearch search = BeginSearch(0, 0);
  state->take_first = 0;
  state->take_last = 0;
  state->second_wanted = 0;
  if (budget >= CountEntries(*state)) {
    budget = CountEntries(*state);
    state->take_first = static_cast<int32_t>(budget);
  } else if (budget < CountProtected(*state)) {
    const int64_t sinks = Smaller(state->num_sinks, budget);
    state->take_first = static_cast<int32_t>(sinks);
    state->take_last = static_cast<int32_t>(budget - sinks);
  } else {
    state->take_first = state->num_sinks;
    state->take_last = state->num_recent;
    int64_t wanted = budget - CountProtected(*state);
    if (p.critical) {
      const int64_t first = wanted * p.first_share / kSelectWeightUnit;
      state->second_wanted = static_cast<int32_t>(wanted - first);
      wanted = first;
    }
    search = BeginSearch(wanted, state->num_past);
  }
  p.budgets[head] = static_cast<int32_t>(budget);
  p.searches[p.num_scopes + head] = search;
}

// Returns the caller's budget, clipped (ExternalBudgets).
SIMT_DEVICE int64_t GivenBudget(const SelectProblem& p,
                                const SelectScope& scope, int64_t head) {
  const int64_t unit = p.by_page ? p.page_size : 1;
  const int64_t min_units = p.by_page ? scope.min_pages : 0;
  const int64_t wanted = Larger(p.given[head], 0);
  const int64_t units = Larger((wanted + unit - 1) / unit, min_units);
  return Smaller(units * unit, CountEntries(p.heads[head]));
}

// Computes the budgets and the searches of a scope's heads.
SIMT_DEVICE void EndScope(const SelectProblem& p, const ScopeThreads& threads,
                          int32_t index) {
  const SelectScope scope = p.scopes[index];
  const auto num_heads = static_cast<uint32_t>(scope.num_heads);
  const bool scored = IsScored(p);
  if (scored) WeighHeads(p, threads, scope, p.searches[index]);
  int64_t fixed = 0;
  for (uint32_t i = simt::ThreadIndex(); i < num_heads;
       i += threads.num_threads()) {
    SelectHead* state = p.heads + scope.first_head + i;
    if (!scored) state->weight = 1;
    const int64_t entries = CountEntries(*state);
    if (p.by_page) {
      state->claim_weight = state->fixed * kSelectWeightUnit + state->weight;
      state->max = (entries + p.page_size - 1) / p.page_size;
      state->min = Smaller(scope.min_pages, state->max);
    } else {
      fixed += state->fixed;
      state->claim_weight = state->weight;
      state->max = entries - state->fixed;
      state->min = state->fixed == 0 && entries > 0 ? 1 : 0;
    }
  }
  fixed = threads.Sum(fixed);
  if (p.budget != SelectBudget::kGiven) {
    ScopeApportion apportion(threads, p.heads + scope.first_head, num_heads);
    apportion.Run(p.by_page ? scope.pages : scope.entries - fixed);
  }
  for (uint32_t i = simt::ThreadIndex(); i < num_heads;
       i += threads.num_threads()) {
    const int64_t head = scope.first_head + static_cast<int64_t>(i);
    const SelectHead& state = p.heads[head];
    const int64_t budget =
        p.budget == SelectBudget::kGiven ? GivenBudget(p, scope, head)
        : p.by_page ? Smaller(state.units * p.page_size, CountEntries(state))
                    : state.fixed + state.units;
    KeepWithin(p, head, budget);
  }
}

// Grid: num_heads. Splits the heads, for budgets that do not depend on scores.
// The last block of a scope computes its budgets. Shared memory:
// kRadixSharedBytes.
SIMT_KERNEL(kSelectThreads, 4)
void SelectSplit(SelectProblem p) {
  simt::AwaitEarlierKernels();
  const auto head = static_cast<int32_t>(simt::BlockX());
  const int32_t index = FindScope(p, head);
  const SelectScope scope = p.scopes[index];
  const SelectHead state = SplitHead(p, head, scope);
  if (simt::ThreadIndex() == 0) p.heads[head] = state;
  if (!simt::LastBlockDone(p.counters + index,
                           static_cast<uint32_t>(scope.num_heads))) {
    return;
  }
  const ScopeThreads threads(scope.num_heads);
  if (threads.HasThisThread()) EndScope(p, threads, index);
}

// Grid: chunks.count. Splits the heads and does the first digit of every
// scope's search at the same time. The last block of the scope finds the size
// of the search. Shared memory: kRadixSharedBytes.
template <bool kFloors>
SIMT_KERNEL(kSelectThreads, 4)
void SelectBeginScopes(SelectProblem p) {
  simt::AwaitEarlierKernels();
  ScopeChunk chunk(p, FindChunk(p));
  ClearBins();
  SelectHead head = SplitHead(p, chunk.list, chunk.scope);
  if (kFloors) head.floor_count = FloorOf(p, chunk.scope, head);
  if (chunk.split == 0 && simt::ThreadIndex() == 0) p.heads[chunk.list] = head;
  CountChunk<0, kFloors>(p, &chunk, head, 0);
  const bool adds = KeepPool<0, kFloors>(p, chunk, head, 0);
  ThreadBins<kRadixBins> bins;
  if (!AddBins(chunk.shared, adds, &bins)) return;
  const ScopeThreads threads(chunk.scope.num_heads);
  if (threads.HasThisThread()) BeginPool(p, threads, chunk.scope_index);
  simt::SyncBlock();
  PickSharedBin<0>(chunk.shared, &bins);
}

// Grid: chunks.count. Does the last digit of every scope's search. The last
// block of a scope computes its budgets. Shared memory: the larger of
// kRadixSharedBytes and kScopeSharedBytes.
template <bool kFloors>
SIMT_KERNEL(kSelectThreads, 4)
void SelectEndScopes(SelectProblem p) {
  ScopeChunk chunk(p, FindChunk(p));
  ClearBins();
  simt::AwaitEarlierKernels();
  const SelectHead head = p.heads[chunk.list];
  if (!EndScopeSearch<kFloors>(p, &chunk, head)) return;
  const ScopeThreads threads(chunk.scope.num_heads);
  if (threads.HasThisThread()) EndScope(p, threads, chunk.scope_index);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_BUDGETS_CUH_
