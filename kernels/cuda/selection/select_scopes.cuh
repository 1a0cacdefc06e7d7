// The search of a scope's pool finds the best entries of all its heads.
//
// Every block counts a digit of its chunk of one head in shared memory. Unless
// the block is the only block of the scope, it adds the counts to the scope's
// histogram with integer atomics, whose order does not show. The last block of
// the scope picks the bin and clears the histogram. In the last pass the digit
// is also counted per head. The number of each head's entries above the scope's
// threshold is then known without another read of the keys.
#ifndef KERNELS_CUDA_SELECTION_SELECT_SCOPES_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_SCOPES_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_keys.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// C. Finds the chunk of a block of a flat grid.
SIMT_DEVICE ListSplit FindChunk(const SelectProblem& p) {
  return FindSplit(p.chunks.offsets, p.num_heads,
                   static_cast<int32_t>(simt::BlockX()));
}

// Returns the number of blocks that have chunks of a scope's heads.
SIMT_DEVICE uint32_t CountChunks(const SelectProblem& p,
                                 const SelectScope& scope) {
  return static_cast<uint32_t>(
      p.chunks.offsets[scope.first_head + scope.num_heads] -
      p.chunks.offsets[scope.first_head]);
}

// Adds to *sum, which may be negative between additions.
SIMT_DEVICE void AddSigned(int64_t* sum, uint32_t count) {
  simt::AtomicAdd(
      reinterpret_cast<uint64_t*>(sum),
      static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(count))));
}

// C. Returns the scope of a head.
SIMT_DEVICE int32_t FindScope(const SelectProblem& p, int32_t head) {
  return CountLeading(
             p.num_scopes,
             [&](int32_t i) { return p.scopes[i].first_head <= head; }) -
         1;
}

// The entries of a chunk, and the first keys of each thread. A pass can load
// them while the pass before it ends, because none of these kernels writes
// them.
struct ScopeChunk : ListSplit {
  using Batch = KeyBatch<false>;
  static constexpr auto kStride = static_cast<int32_t>(kSelectThreads);

  int32_t scope_index;
  SelectScope scope;
  uint32_t num_blocks;  // of the scope
  int64_t offset;
  int32_t begin;  // of the head's entries
  int32_t end;
  Batch batch;

  SIMT_DEVICE ScopeChunk(const SelectProblem& p, const ListSplit& chunk)
      : ListSplit(chunk),
        scope_index(FindScope(p, list)),
        scope(p.scopes[scope_index]),
        num_blocks(CountChunks(p, scope)),
        offset(p.offsets[list]),
        begin(split * p.chunk_entries),
        end(EndOf(p)) {
    if (begin >= end) return;  // an empty head's
    batch = Batch(p, list, offset, begin + Mine(), kStride, end);
  }

  // Calls use(key, entry) for the entries of this thread.
  template <typename Use>
  SIMT_DEVICE void ForEach(const SelectProblem& p, const Use& use) {
    constexpr int32_t kTurn = Batch::kSize * kStride;
    for (int32_t first = begin;;) {
      SIMT_UNROLL
      for (int32_t k = 0; k < Batch::kSize; ++k) {
        if (batch.exist[k]) use(batch.keys[k], first + k * kStride + Mine());
      }
      first += kTurn;
      if (first >= end) return;
      batch = Batch(p, list, offset, first + Mine(), kStride, end);
    }
  }

 private:
  SIMT_DEVICE static int32_t Mine() {
    return static_cast<int32_t>(simt::ThreadIndex());
  }
  SIMT_DEVICE int32_t EndOf(const SelectProblem& p) const {
    const auto size = static_cast<int32_t>(p.offsets[list + 1] - offset);
    return begin + p.chunk_entries < size ? begin + p.chunk_entries : size;
  }
};

// Adds the digits of one chunk of a head's part of its scope's pool to the
// bins, which are zero before. In the last pass also adds the number of keys
// above all counted keys to heads[].above. All threads of a block call it.
// Contains a barrier.
template <int kDigit>
SIMT_DEVICE void CountChunk(const SelectProblem& p, ScopeChunk* chunk,
                            const SelectHead& state, uint32_t prefix) {
  using Digit = RadixDigit<kDigit>;
  const RadixSearch floor = state.floor;
  const bool has_floor = floor.mode == RadixSearch::kSearch;
  const int32_t past_end = floor.mode == RadixSearch::kAll
                               ? state.num_sinks
                               : state.num_sinks + state.num_past;
  const auto bins = RadixBins();
  uint32_t above = 0;
  const auto add = [&](uint32_t key, uint32_t count) {
    if (Digit::Follows(key, prefix)) {
      bins.AtomicAdd(Digit::Of(key), count);
    } else if (Digit::kIsLast && key > prefix) {
      above += count;
    }
  };
  chunk->ForEach(p, [&](uint32_t key, int32_t entry) {
    if (entry < state.num_sinks || entry >= past_end) return;
    // The entries that the head took for itself are not in the pool: all above
    // its own threshold, and some of the entries equal to it.
    if (has_floor && key > floor.prefix) return;
    add(key, 1);
  });
  if (has_floor && chunk->split == 0 && simt::ThreadIndex() == 0) {
    add(floor.prefix, 0u - static_cast<uint32_t>(floor.wanted));
  }
  if (Digit::kIsLast) {
    above = WarpSum(above);
    if (simt::Lane() == 0 && above != 0) {
      AddSigned(&p.heads[chunk->list].above, above);
    }
  }
  simt::SyncBlock();
}

SIMT_DEVICE uint32_t* HistogramOf(const SelectProblem& p,
                                  const ScopeChunk& chunk) {
  return p.histograms + int64_t{chunk.scope_index} * kRadixBins;
}

// The bins of a histogram that belong to a thread. Their number is a
// compile-time constant, so that a thread has several accesses under way at a
// time.
template <uint32_t kBins>
struct ThreadBins {
  static constexpr uint32_t kTurns = kBins / kSelectThreads;
  static_assert(kTurns * kSelectThreads == kBins);
  uint32_t counts[kTurns];

  SIMT_DEVICE void Load() {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      counts[turn] =
          RadixBins().Load(turn * kSelectThreads + simt::ThreadIndex());
    }
  }
  // Contains a barrier.
  SIMT_DEVICE void Store() const {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      RadixBins().Store(turn * kSelectThreads + simt::ThreadIndex(),
                        counts[turn]);
    }
    simt::SyncBlock();
  }
  SIMT_DEVICE void AddTo(uint32_t* histogram) const {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      if (counts[turn] == 0) continue;
      simt::AtomicAdd(histogram + turn * kSelectThreads + simt::ThreadIndex(),
                      counts[turn]);
    }
  }
  // An exchange, not a load: it reads where the atomics of other blocks wrote,
  // and sets the bins back to zero for the next pass.
  SIMT_DEVICE void TakeFrom(uint32_t* histogram) {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      counts[turn] = simt::AtomicExchange(
          histogram + turn * kSelectThreads + simt::ThreadIndex(), 0u);
    }
  }
};

// Adds a block's bins to its scope's histogram, unless the block is the scope's
// only block. Returns whether it is the last block. All threads of a block call
// it.
SIMT_DEVICE bool AddBins(const SelectProblem& p, const ScopeChunk& chunk,
                         ThreadBins<kRadixBins>* bins) {
  if (chunk.num_blocks > 1) {
    bins->Load();
    bins->AddTo(HistogramOf(p, chunk));
  }
  return simt::LastBlockDone(p.counters + chunk.scope_index, chunk.num_blocks);
}

// Does one of the digits before the last, in the last block of a scope, and
// clears the histogram. All threads of the block call it.
template <int kDigit>
SIMT_DEVICE void PickScopeBin(const SelectProblem& p, const ScopeChunk& chunk,
                              ThreadBins<kRadixBins>* bins) {
  static_assert(!RadixDigit<kDigit>::kIsLast);
  RadixSearch* const place = p.searches + chunk.scope_index;
  RadixSearch search = *place;
  if (chunk.num_blocks > 1) {
    bins->TakeFrom(HistogramOf(p, chunk));
    bins->Store();
  }
  if (search.mode != RadixSearch::kSearch) return;
  Narrow<kDigit>(PickBin<kDigit, kSelectThreads>(search.wanted), &search);
  if (simt::ThreadIndex() == 0) *place = search;
}

// Grid: chunks.count. Does one of the digits before the last. Shared memory:
// kRadixSharedBytes.
template <int kDigit>
SIMT_KERNEL(kSelectThreads, 4)
void SelectScopePass(SelectProblem p) {
  ScopeChunk chunk(p, FindChunk(p));
  ClearBins();
  simt::AwaitEarlierKernels();
  const SelectHead head = p.heads[chunk.list];
  const RadixSearch search = p.searches[chunk.scope_index];
  if (search.mode != RadixSearch::kSearch) return;
  CountChunk<kDigit>(p, &chunk, head, search.prefix);
  ThreadBins<kRadixBins> bins;
  if (AddBins(p, chunk, &bins)) PickScopeBin<kDigit>(p, chunk, &bins);
}

// The last digits that were counted of the heads of a scope, one warp per head.
struct CutCounts {
  static constexpr uint32_t kLanes = simt::kWarpThreads;
  static constexpr uint32_t kTurns = kLastRadixBins / kLanes;

  uint32_t counts[kTurns];

  SIMT_DEVICE static uint32_t* BinsOf(const SelectProblem& p, int64_t head) {
    return p.last_bins + head * kLastRadixBins + simt::Lane();
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

  // Stores the number of entries of the head's pool above the scope's
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
    AddSigned(&p.heads[head].above, above);
    p.heads[head].equal = pick.whole ? 0 : equal;
  }
};

// Does the last digit of a scope's search. The bins must be zero. Returns
// whether this is the last block of the scope, in which everything about the
// scope is then known. All threads of all blocks call it.
SIMT_DEVICE bool EndScopeSearch(const SelectProblem& p, ScopeChunk* chunk,
                                const SelectHead& head) {
  constexpr int kDigit = 2;
  constexpr uint32_t kBins = RadixDigit<kDigit>::kBins;
  const int32_t index = chunk->scope_index;
  RadixSearch search = p.searches[index];
  const bool searches = search.mode == RadixSearch::kSearch;
  uint32_t* const histogram = HistogramOf(p, *chunk);
  ThreadBins<kBins> bins;
  if (searches) {
    CountChunk<kDigit>(p, chunk, head, search.prefix);
    bins.Load();
    bins.AddTo(histogram);
    bins.AddTo(p.last_bins + int64_t{chunk->list} * kBins);
  }
  if (!simt::LastBlockDone(p.counters + index, chunk->num_blocks)) return false;
  if (!searches) return true;
  // The loads of `cut` are under way while the bin is picked. If there are no
  // more heads than warps, no other loads of cuts follow.
  const auto num_heads = static_cast<uint32_t>(chunk->scope.num_heads);
  const int64_t first_head = chunk->scope.first_head;
  CutCounts cut;
  if (simt::Warp() < num_heads) cut.Load(p, first_head + simt::Warp());
  bins.TakeFrom(histogram);
  bins.Store();
  const BinPick pick = PickBin<kDigit, kSelectThreads>(search.wanted);
  Narrow<kDigit>(pick, &search);
  if (simt::ThreadIndex() == 0) p.searches[index] = search;
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
