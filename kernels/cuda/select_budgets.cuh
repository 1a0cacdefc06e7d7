// Budgets on the device: one warp per scope does what AllocateBudgets of
// eviction/select.h does, in the same integers.
#ifndef KERNELS_CUDA_SELECT_BUDGETS_CUH_
#define KERNELS_CUDA_SELECT_BUDGETS_CUH_

#include <cstdint>

#include "kernels/cuda/select.h"
#include "kernels/cuda/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Weights are in multiples of 10^-9 entries, the resolution of alpha.
inline constexpr int64_t kSelectWeightUnit = 1000000000;

// Quotas times the sum of weights do not fit 64 bits.
__extension__ typedef __int128 Int128;

SIMT_DEVICE int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
SIMT_DEVICE int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

SIMT_DEVICE Int128 WarpSum128(Int128 value) {
  for (uint32_t mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
    const auto low = static_cast<uint64_t>(value);
    const auto high = static_cast<uint64_t>(value >> 64);
    const uint64_t other_low = simt::ShuffleXor(low, mask);
    const uint64_t other_high = simt::ShuffleXor(high, mask);
    const unsigned __int128 other =
        static_cast<unsigned __int128>(other_high) << 64 | other_low;
    value += static_cast<Int128>(other);
  }
  return value;
}

// How many of `count` ascending positions are below `bound`. One warp.
SIMT_DEVICE int64_t CountBelow(const int32_t* positions, int64_t count,
                               int32_t bound) {
  int64_t first = 0;
  while (count > 0) {
    const int64_t step = (count + simt::kWarpThreads - 1) / simt::kWarpThreads;
    const int64_t end = (static_cast<int64_t>(simt::Lane()) + 1) * step;
    const int64_t probe = (end < count ? end : count) - 1;
    const bool below = positions[first + probe] < bound;
    // The lanes that are below are the first ones.
    const int64_t num_below = simt::PopCount(simt::Ballot(below));
    const int64_t passed = Smaller(num_below * step, count);
    first += passed;
    // The first probe not below is the last of its step: not counted again.
    count = Smaller(step, count - passed) - 1;
  }
  return first;
}

// The last scope that begins at or before a head.
SIMT_DEVICE int32_t ScopeOf(const SelectProblem& p, int32_t head) {
  int32_t scope = 0;
  int32_t num_scopes = p.num_scopes;
  while (num_scopes > 1) {
    const int32_t half = num_scopes / 2;
    if (p.scopes[scope + half].first_head <= head) scope += half;
    num_scopes -= half;
  }
  return scope;
}

// Which entries of a head are candidates, and which of them are protected. One
// warp.
SIMT_DEVICE void SplitHead(const SelectProblem& p, int32_t head,
                           int32_t scope) {
  const SelectScope limits = p.scopes[scope];
  const int32_t* positions = p.positions + p.offsets[head];
  const int64_t count =
      CountBelow(positions, p.offsets[head + 1] - p.offsets[head],
                 BM_PLANTED(kSelectForgetsCut) ? INT32_MAX : limits.cut);
  const int64_t sinks = CountBelow(positions, count, limits.sinks_end);
  const int64_t past =
      CountBelow(positions + sinks, count - sinks, limits.recent_begin);
  if (simt::Lane() != 0) return;
  SelectHead state = {};
  state.scope = scope;
  state.num_sinks = static_cast<int32_t>(sinks);
  state.num_past = static_cast<int32_t>(past);
  state.num_recent = static_cast<int32_t>(count - sinks - past);
  p.heads[head] = state;
}

// The search for the `wanted` best of `size` keys.
SIMT_DEVICE RadixSearch BeginSearch(int64_t wanted, int64_t size) {
  RadixSearch search = {};
  search.wanted = wanted;
  search.mode = wanted <= 0      ? RadixSearch::kNone
                : wanted >= size ? RadixSearch::kAll
                                 : RadixSearch::kSearch;
  return search;
}

SIMT_DEVICE int64_t NumProtected(const SelectHead& head) {
  return static_cast<int64_t>(head.num_sinks) + head.num_recent;
}

// Entries of its past that a head takes before its scope's pool is made: its
// floor; and where the pool is all that a head without protected entries gets,
// its best one (ScoredIdeals of eviction/budgets.cc).
SIMT_DEVICE int64_t FloorOf(const SelectProblem& p, int64_t mean,
                            const SelectHead& head) {
  int64_t floor = 0;
  if (p.budget == SelectBudget::kFloor) {
    floor = (mean - head.fixed) * p.alpha / kSelectWeightUnit;
  }
  return HasFloors(p) && head.fixed == 0 ? Larger(floor, 1) : floor;
}

// Whether budgets depend on scores.
SIMT_HOST_DEVICE bool IsScored(const SelectProblem& p) {
  return p.budget == SelectBudget::kBlend || p.budget == SelectBudget::kFloor;
}

// What a scope's heads get whatever their scores, and the searches of their
// floors. One warp.
SIMT_DEVICE void BeginScope(const SelectProblem& p, int32_t index) {
  const SelectScope scope = p.scopes[index];
  const bool scored = IsScored(p);
  const int64_t mean = scope.entries / scope.num_heads;
  for (uint32_t i = simt::Lane(); i < static_cast<uint32_t>(scope.num_heads);
       i += simt::kWarpThreads) {
    const int64_t head = scope.first_head + static_cast<int64_t>(i);
    SelectHead* state = p.heads + head;
    state->fixed = scored ? Smaller(mean, NumProtected(*state)) : 0;
    p.searches[p.num_scopes + head] =
        BeginSearch(FloorOf(p, mean, *state), state->num_past);
  }
}

// The search of a scope's pool: what its heads' pasts hold beyond what they
// took for themselves. One warp.
SIMT_DEVICE void BeginPool(const SelectProblem& p, int32_t index) {
  const SelectScope scope = p.scopes[index];
  int64_t taken = 0;
  int64_t pool = 0;
  for (uint32_t i = simt::Lane(); i < static_cast<uint32_t>(scope.num_heads);
       i += simt::kWarpThreads) {
    const int64_t head = scope.first_head + static_cast<int64_t>(i);
    SelectHead* state = p.heads + head;
    state->floor = p.searches[p.num_scopes + head];
    const int64_t mean = scope.entries / scope.num_heads;
    state->floor_count = Smaller(FloorOf(p, mean, *state), state->num_past);
    taken += state->fixed + state->floor_count;
    pool += state->num_past - state->floor_count;
  }
  taken = WarpSum(taken);
  pool = WarpSum(pool);
  if (simt::Lane() == 0) {
    p.searches[index] = BeginSearch(scope.entries - taken, pool);
  }
}

// Grid: num_scopes, one warp each. After the floors.
SIMT_KERNEL(32, 8)
void SelectBeginPool(SelectProblem p) {
  BeginPool(p, static_cast<int32_t>(simt::BlockX()));
}

// Largest remainder under bounds, as Apportion of eviction/apportion.h: the
// claims are those of the scope's heads. One warp; every lane has the claims of
// its own heads, and reads those of others between barriers only.
class WarpApportion {
 public:
  SIMT_DEVICE WarpApportion(SelectHead* heads, uint32_t num_heads)
      : heads_(heads), num_heads_(num_heads) {}

  SIMT_DEVICE void Run(int64_t total) {
    int64_t sum_max = 0;
    for (uint32_t i = simt::Lane(); i < num_heads_; i += simt::kWarpThreads) {
      sum_max += heads_[i].max;
      heads_[i].units = 0;
      heads_[i].open = 1;
    }
    rest_ = Smaller(total, WarpSum(sum_max));
    do {
      SumWeights();
    } while (SettleAtBounds());
    RoundQuotas();
  }

 private:
  SIMT_DEVICE int64_t Weight(uint32_t i) const {
    return equal_weights_ ? 1 : heads_[i].claim_weight;
  }

  SIMT_DEVICE void SumWeights() {
    int64_t weights = 0;
    int64_t open = 0;
    for (uint32_t i = simt::Lane(); i < num_heads_; i += simt::kWarpThreads) {
      if (heads_[i].open == 0) continue;
      weights += heads_[i].claim_weight;
      ++open;
    }
    weights = WarpSum(weights);
    open = WarpSum(open);
    equal_weights_ = weights == 0;
    sum_weights_ = equal_weights_ ? open : weights;
  }

  SIMT_DEVICE bool SettleAtBounds() {
    Int128 excess = 0;
    for (uint32_t i = simt::Lane(); i < num_heads_; i += simt::kWarpThreads) {
      if (heads_[i].open == 0) continue;
      const Int128 quota = static_cast<Int128>(Weight(i)) * rest_;
      const Int128 low = static_cast<Int128>(heads_[i].min) * sum_weights_;
      const Int128 high = static_cast<Int128>(heads_[i].max) * sum_weights_;
      if (quota < low) excess += low - quota;
      if (quota > high) excess += high - quota;
    }
    excess = WarpSum128(excess);
    int64_t settled = 0;
    bool any = false;
    for (uint32_t i = simt::Lane(); i < num_heads_; i += simt::kWarpThreads) {
      if (heads_[i].open == 0) continue;
      const Int128 quota = static_cast<Int128>(Weight(i)) * rest_;
      const bool at_min =
          excess >= 0 &&
          quota < static_cast<Int128>(heads_[i].min) * sum_weights_;
      const bool at_max =
          excess <= 0 &&
          quota > static_cast<Int128>(heads_[i].max) * sum_weights_;
      if (!at_min && !at_max) continue;
      heads_[i].units = at_min ? heads_[i].min : heads_[i].max;
      heads_[i].open = 0;
      settled += heads_[i].units;
      any = true;
    }
    rest_ -= WarpSum(settled);
    return simt::Any(any);
  }

  // floor(weight * rest / sum): estimated in floating point, then exact.
  SIMT_DEVICE int64_t FloorQuota(int64_t weight, uint64_t* fraction) const {
    const Int128 quota = static_cast<Int128>(weight) * rest_;
    auto units = static_cast<int64_t>(static_cast<double>(weight) *
                                      static_cast<double>(rest_) /
                                      static_cast<double>(sum_weights_));
    while (static_cast<Int128>(units) * sum_weights_ > quota) --units;
    while (static_cast<Int128>(units + 1) * sum_weights_ <= quota) ++units;
    *fraction = static_cast<uint64_t>(quota - static_cast<Int128>(units) *
                                                  sum_weights_);
    return units;
  }

  SIMT_DEVICE void RoundQuotas() {
    int64_t given = 0;
    for (uint32_t i = simt::Lane(); i < num_heads_; i += simt::kWarpThreads) {
      if (heads_[i].open == 0) continue;
      heads_[i].units = FloorQuota(Weight(i), &heads_[i].fraction);
      given += heads_[i].units;
    }
    const int64_t left = rest_ - WarpSum(given);
    simt::SyncWarp();  // fractions are everybody's to read now
    for (uint32_t i = simt::Lane(); i < num_heads_; i += simt::kWarpThreads) {
      if (heads_[i].open == 0) continue;
      int64_t rank = 0;
      for (uint32_t other = 0; other < num_heads_; ++other) {
        if (heads_[other].open == 0) continue;
        const bool lower =
            BM_PLANTED(kSelectFractionTiesToHigher) ? other > i : other < i;
        const bool first =
            heads_[other].fraction > heads_[i].fraction ||
            (heads_[other].fraction == heads_[i].fraction && lower);
        rank += first ? 1 : 0;
      }
      if (rank < left) ++heads_[i].units;
    }
  }

  SelectHead* heads_;
  uint32_t num_heads_;
  int64_t rest_ = 0;
  int64_t sum_weights_ = 0;
  bool equal_weights_ = false;
};

// f_h: how much of the scope's best is each head's; ties go to the lower head.
SIMT_DEVICE void WeighHeads(const SelectProblem& p, const SelectScope& scope,
                            const RadixSearch& pool) {
  const int64_t mean = scope.entries / scope.num_heads;
  const int64_t uniform = p.budget == SelectBudget::kFloor ? 0 : p.alpha;
  const auto num_heads = static_cast<uint32_t>(scope.num_heads);
  int64_t equals_before = 0;
  for (uint32_t base = 0; base < num_heads; base += simt::kWarpThreads) {
    const uint32_t i = base + simt::Lane();
    SelectHead* state = p.heads + scope.first_head + (i < num_heads ? i : 0);
    const bool search = pool.mode == RadixSearch::kSearch;
    const int64_t equal = search && i < num_heads ? state->equal : 0;
    int64_t through = equal;  // of this head and all lower ones of the turn
    for (uint32_t delta = 1; delta < simt::kWarpThreads; delta *= 2) {
      const int64_t below = simt::ShuffleUp(through, delta);
      if (simt::Lane() >= delta) through += below;
    }
    const int64_t before = equals_before + through - equal;
    equals_before += simt::Shuffle(through, simt::kWarpThreads - 1);
    if (i >= num_heads) continue;
    int64_t count = state->floor_count;
    if (pool.mode == RadixSearch::kAll) {
      count = state->num_past;
    } else if (search) {
      count += state->above + Larger(0, Smaller(equal, pool.wanted - before));
    }
    state->weight =
        count * (kSelectWeightUnit - uniform) + (mean - state->fixed) * uniform;
  }
}

// What becomes of a head's entries under its budget.
SIMT_DEVICE void KeepWithin(const SelectProblem& p, int64_t head,
                            int64_t budget) {
  SelectHead* state = p.heads + head;
  RadixSearch search = BeginSearch(0, 0);
  state->take_first = 0;
  state->take_last = 0;
  state->second_wanted = 0;
  if (budget >= NumEntries(*state)) {
    budget = NumEntries(*state);
    state->take_first = static_cast<int32_t>(budget);
  } else if (budget < NumProtected(*state) &&
             !BM_PLANTED(kSelectForgetsProtection)) {
    const int64_t sinks = Smaller(state->num_sinks, budget);
    state->take_first = static_cast<int32_t>(sinks);
    state->take_last = static_cast<int32_t>(budget - sinks);
  } else {
    state->take_first = state->num_sinks;
    state->take_last = state->num_recent;
    int64_t wanted = budget - NumProtected(*state);
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

// The caller's budget, clipped (ExternalBudgets).
SIMT_DEVICE int64_t GivenBudget(const SelectProblem& p,
                                const SelectScope& scope, int64_t head) {
  const int64_t unit = p.by_page ? p.page_size : 1;
  const int64_t min_units = p.by_page ? scope.min_pages : 0;
  const int64_t wanted = Larger(p.given[head], 0);
  const int64_t units = Larger((wanted + unit - 1) / unit, min_units);
  return Smaller(units * unit, NumEntries(p.heads[head]));
}

// Budgets, and the searches of a scope's heads. One warp.
SIMT_DEVICE void EndScope(const SelectProblem& p, int32_t index) {
  const SelectScope scope = p.scopes[index];
  const auto num_heads = static_cast<uint32_t>(scope.num_heads);
  const bool scored = IsScored(p);
  if (scored) WeighHeads(p, scope, p.searches[index]);
  int64_t fixed = 0;
  for (uint32_t i = simt::Lane(); i < num_heads; i += simt::kWarpThreads) {
    SelectHead* state = p.heads + scope.first_head + i;
    if (!scored) state->weight = 1;
    const int64_t entries = NumEntries(*state);
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
  fixed = WarpSum(fixed);
  if (p.budget != SelectBudget::kGiven) {
    WarpApportion apportion(p.heads + scope.first_head, num_heads);
    apportion.Run(p.by_page ? scope.pages : scope.entries - fixed);
  }
  for (uint32_t i = simt::Lane(); i < num_heads; i += simt::kWarpThreads) {
    const int64_t head = scope.first_head + static_cast<int64_t>(i);
    const SelectHead& state = p.heads[head];
    const int64_t budget =
        p.budget == SelectBudget::kGiven ? GivenBudget(p, scope, head)
        : p.by_page ? Smaller(state.units * p.page_size, NumEntries(state))
                    : state.fixed + state.units;
    KeepWithin(p, head, budget);
  }
}

// Grid: num_heads, one warp each. Splits the heads; a scope's last block goes
// on with the scope, as far as no key has to be looked at.
SIMT_KERNEL(32, 16)
void SelectSplit(SelectProblem p) {
  const auto head = static_cast<int32_t>(simt::BlockX());
  const int32_t scope = ScopeOf(p, head);
  SplitHead(p, head, scope);
  const auto num_heads = static_cast<uint32_t>(p.scopes[scope].num_heads);
  if (!simt::LastBlockDone(p.counters + scope, num_heads)) return;
  BeginScope(p, scope);
  simt::SyncWarp();
  if (!IsScored(p)) {
    EndScope(p, scope);
  } else if (!HasFloors(p)) {
    BeginPool(p, scope);
  }
}

// Grid: (num_heads, num_chunks). Counts at the threshold of every scope; its
// last block has its budgets.
SIMT_KERNEL(kSelectThreads, 4)
void SelectCountAtCut(SelectProblem p) {
  const auto head = static_cast<int32_t>(simt::BlockX());
  CountAtCut(p, head);
  const int32_t scope = p.heads[head].scope;
  const auto num_heads = static_cast<uint32_t>(p.scopes[scope].num_heads);
  if (simt::LastBlockDone(p.counters + scope, num_heads * simt::NumBlocksY()) &&
      simt::Warp() == 0) {
    EndScope(p, scope);
  }
}

// Grid: one thread per head. Searches of critical's second stage, in what the
// first one left.
SIMT_KERNEL(kSelectThreads, 4)
void SelectBeginSecond(SelectProblem p) {
  const int64_t head =
      static_cast<int64_t>(simt::BlockX()) * simt::NumThreads() +
      simt::ThreadIndex();
  if (head >= p.num_heads) return;
  RadixSearch* search = p.searches + p.num_scopes + head;
  // What the first stage left is more than the second takes: together they are
  // less than the head's past.
  *search = BeginSearch(p.heads[head].second_wanted, INT64_MAX);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_BUDGETS_CUH_
