// The search of a scope's pool finds the best entries of all its heads.
//
// In the last pass the digit is also counted per head. The number of each
// head's entries above the scope's threshold is then known without another read
// of the keys.
//
// A head with a floor takes its best entries before the pool is made. They need
// no search of their own. The last block of the head removes them from the
// head's counts, before these are added to the counts of the scope. A later
// pass needs this only if the last of these entries has the digits that the
// scope's threshold has so far.
#ifndef KERNELS_CUDA_SELECTION_SELECT_SCOPES_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_SCOPES_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_chunks.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns the number of blocks that have chunks of a scope's heads.
SIMT_DEVICE uint32_t CountChunks(const SelectProblem& p,
                                 const SelectScope& scope) {
  return static_cast<uint32_t>(
      p.chunks.offsets[scope.first_head + scope.num_heads] -
      p.chunks.offsets[scope.first_head]);
}

SIMT_DEVICE void AddCount(int64_t* sum, uint32_t count) {
  simt::AtomicAdd(reinterpret_cast<uint64_t*>(sum), uint64_t{count});
}

// C. Returns the scope of a head.
SIMT_DEVICE int32_t FindScope(const SelectProblem& p, int32_t head) {
  return CountLeading(
             p.num_scopes,
             [&](int32_t i) { return p.scopes[i].first_head <= head; }) -
         1;
}

// A chunk of a head, and the scope of the head.
struct ScopeChunk : EntryChunk<false> {
  int32_t scope_index;
  SelectScope scope;
  SharedSearch shared;  // of the scope

  SIMT_DEVICE ScopeChunk(const SelectProblem& p, const ListSplit& chunk)
      : EntryChunk(p, chunk),
        scope_index(FindScope(p, list)),
        scope(p.scopes[scope_index]),
        shared(p, scope_index, CountChunks(p, scope)) {
    Load(p);
  }
};

// Adds the digits of one chunk of a head's past to the bins, which are zero
// before. In the last pass also adds the number of keys above all counted keys
// to heads[].above. With kFloors every pass instead adds the keys that the
// previous digit has put above the threshold. All threads of a block call it.
// Contains a barrier.
template <int kDigit, bool kFloors>
SIMT_DEVICE void CountChunk(const SelectProblem& p, ScopeChunk* chunk,
                            const SelectHead& state, uint32_t prefix) {
  using Digit = RadixDigit<kDigit>;
  constexpr bool kAbove = kFloors ? kDigit > 0 : Digit::kIsLast;
  using Earlier = RadixDigit<(kFloors && kDigit > 0 ? kDigit - 1 : 0)>;
  const int32_t past_end = state.num_sinks + state.num_past;
  const auto bins = RadixBins();
  uint32_t above = 0;
  chunk->ForEach(p, [&](uint32_t key, int32_t entry) {
    if (entry < state.num_sinks || entry >= past_end) return;
    if (Digit::Follows(key, prefix)) {
      bins.AtomicAdd(Digit::Of(key), 1u);
    } else if (kAbove && key > prefix && Earlier::Follows(key, prefix)) {
      ++above;
    }
  });
  if (kAbove) {
    above = WarpSum(above);
    if (simt::Lane() == 0 && above != 0) {
      AddCount(&p.heads[chunk->list].above, above);
    }
  }
  simt::SyncBlock();
}

// Does the part of a pass that belongs to a head with a floor: adds the block's
// bins to those of the head. Returns whether this is the head's last block. Its
// bins are then those of the head without the floor. All threads of a block
// call it.
template <int kDigit>
SIMT_DEVICE bool TakeFloor(const SelectProblem& p, const ScopeChunk& chunk,
                           int64_t floor, uint32_t prefix) {
  using Digit = RadixDigit<kDigit>;
  const SharedSearch shared = SearchOfHead(p, chunk.list);
  ThreadBins<Digit::kBins> bins;
  bins.Load();
  bins.AddTo(shared.histogram);
  if (!simt::LastBlockDone(shared.counter, shared.num_blocks)) return false;
  // The last digit's bins are needed once more, for the cuts.
  if (Digit::kIsLast) {
    bins.ReadFrom(shared.histogram);
  } else {
    bins.TakeFrom(shared.histogram);
  }
  bins.Store();
  SelectHead* const head = p.heads + chunk.list;
  BinSums<kDigit, kSelectThreads> sums;
  sums.Take();
  sums.StoreWithout(floor - head->above, [&](uint32_t bin) {
    head->floor_key = prefix | bin << Digit::kShift;
  });
  return true;
}

// Returns whether the floor of a head ends among the keys that a pass counts.
template <int kDigit>
SIMT_DEVICE bool EndsFloor(const SelectHead& head, uint32_t prefix) {
  return head.floor_count > 0 &&
         RadixDigit<kDigit>::Follows(head.floor_key, prefix);
}

// Reduces a block's bins to those of the scope's pool. Returns whether the
// block has bins to add. All threads of a block call it.
template <int kDigit, bool kFloors>
SIMT_DEVICE bool KeepPool(const SelectProblem& p, const ScopeChunk& chunk,
                          const SelectHead& head, uint32_t prefix) {
  if (!kFloors || head.floor_count == 0) return true;
  if (EndsFloor<kDigit>(head, prefix)) {
    return TakeFloor<kDigit>(p, chunk, head.floor_count, prefix);
  }
  // The floor ended in an earlier pass. It took all keys that this pass counts,
  // or none of them.
  return head.floor_key > prefix;
}

// Grid: chunks.count. Does the second digit of every scope's search. Shared
// memory: kRadixSharedBytes.
template <bool kFloors>
SIMT_KERNEL(kSelectThreads, 4)
void SelectScopePass(SelectProblem p) {
  ScopeChunk chunk(p, FindChunk(p));
  ClearBins();
  simt::AwaitEarlierKernels();
  const SelectHead head = p.heads[chunk.list];
  const RadixSearch search = *chunk.shared.search;
  if (search.mode != RadixSearch::kSearch) return;
  CountChunk<1, kFloors>(p, &chunk, head, search.prefix);
  const bool adds = KeepPool<1, kFloors>(p, chunk, head, search.prefix);
  ThreadBins<kRadixBins> bins;
  if (AddBins(chunk.shared, adds, &bins)) {
    PickSharedBin<1>(chunk.shared, &bins);
  }
}

// The last digits that were counted of the heads of a scope, one warp per head.
struct CutCounts {
  static constexpr uint32_t kLanes = simt::kWarpThreads;
  static constexpr uint32_t kTurns = kLastRadixBins / kLanes;

  uint32_t counts[kTurns];

  SIMT_DEVICE static uint32_t* BinsOf(const SelectProblem& p, int64_t head) {
    return p.histograms + (p.num_scopes + head) * kRadixBins + simt::Lane();
  }

  SIMT_DEVICE void Load(const SelectProblem& p, int64_t head) {
    const uint32_t* const bins = BinsOf(p, head);
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      counts[turn] = bins[turn * kLanes];
    }
    // All loads come before their uses. A compiler mixes the two to save
    // registers, and then waits for one load after another.
    simt::SyncWarp();
  }

  // Stores the number of entries of the head's past above the scope's
  // threshold, and equal to it. Clears the head's bins.
  SIMT_DEVICE void Cut(const SelectProblem& p, int64_t head,
                       const BinPick& pick) const {
    uint32_t* const bins = BinsOf(p, head);
    const uint32_t first_above = pick.bin + (pick.whole ? 0 : 1);
    uint32_t above = 0;
    uint32_t equal = 0;
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      if (counts[turn] == 0) continue;
      bins[turn * kLanes] = 0;
      const uint32_t bin = turn * kLanes + simt::Lane();
      above += bin >= first_above ? counts[turn] : 0;
      equal += bin + 1 == first_above ? counts[turn] : 0;
    }
    above = WarpSum(above);
    equal = WarpSum(equal);
    if (simt::Lane() != 0) return;
    AddCount(&p.heads[head].above, above);
    p.heads[head].equal = pick.whole ? 0 : equal;
  }
};

// Does the last digit of a scope's search. The bins must be zero. Returns
// whether this is the last block of the scope, in which everything about the
// scope is then known. All threads of all blocks call it.
template <bool kFloors>
SIMT_DEVICE bool EndScopeSearch(const SelectProblem& p, ScopeChunk* chunk,
                                const SelectHead& head) {
  constexpr int kDigit = 2;
  constexpr uint32_t kBins = RadixDigit<kDigit>::kBins;
  const SharedSearch& shared = chunk->shared;
  RadixSearch search = *shared.search;
  const bool searches = search.mode == RadixSearch::kSearch;
  ThreadBins<kBins> bins;
  if (searches) {
    CountChunk<kDigit, kFloors>(p, chunk, head, search.prefix);
    if (!kFloors || !EndsFloor<kDigit>(head, search.prefix)) {
      bins.Load();
      bins.AddTo(SearchOfHead(p, chunk->list).histogram);
    }
    if (KeepPool<kDigit, kFloors>(p, *chunk, head, search.prefix)) {
      bins.Load();
      bins.AddTo(shared.histogram);
    }
  }
  if (!simt::LastBlockDone(shared.counter, shared.num_blocks)) return false;
  if (!searches) return true;
  // The loads of `cut` are under way while the bin is picked. If there are no
  // more heads than warps, no other loads of cuts follow.
  const auto num_heads = static_cast<uint32_t>(chunk->scope.num_heads);
  const int64_t first_head = chunk->scope.first_head;
  CutCounts cut;
  if (simt::Warp() < num_heads) cut.Load(p, first_head + simt::Warp());
  bins.TakeFrom(shared.histogram);
  bins.Store();
  const BinPick pick = PickBin<kDigit, kSelectThreads>(search.wanted);
  Narrow<kDigit>(pick, &search);
  if (simt::ThreadIndex() == 0) *shared.search = search;
  constexpr uint32_t kWarps = kSelectThreads / CutCounts::kLanes;
  for (uint32_t i = simt::Warp(); i < num_heads; i += kWarps) {
    if (i >= kWarps) cut.Load(p, first_head + i);
    cut.Cut(p, first_head + i, pick);
  }
  simt::SyncBlock();
  return true;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_SCOPES_CUH_
