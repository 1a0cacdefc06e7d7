// The search of a divided head, and its survivors: what select_heads.cuh does
// in one block, in a block per chunk of the head. There is a kernel per digit,
// then a kernel for the survivors, and once more as many for critical's second
// stage. Blocks of other heads have nothing to do. Shared memory of the
// kernels: kRadixSharedBytes.
#ifndef KERNELS_CUDA_SELECTION_SELECT_DIVIDED_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_DIVIDED_CUH_

#include <cstdint>

#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_chunks.cuh"
#include "kernels/cuda/selection/select_heads.cuh"
#include "kernels/cuda/selection/select_keys.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Grid: chunks.count. Does a digit of the search of every divided head. The
// last block of a head picks the bin.
template <int kDigit, bool kSecond>
SIMT_KERNEL(kSelectThreads, 4)
void SelectHeadPass(SelectProblem p) {
  using Digit = RadixDigit<kDigit>;
  EntryChunk<kSecond> chunk(p, FindChunk(p));
  const bool divided = chunk.size >= p.divide_from;
  if (divided && !kSecond) chunk.Load(p);
  ClearBins();
  simt::AwaitEarlierKernels();
  if (!divided) return;
  const SelectHead head = p.heads[chunk.list];
  const SharedSearch shared = SearchOfHead(p, chunk.list);
  const RadixSearch search = *shared.search;
  if (search.mode != RadixSearch::kSearch) return;
  // The search is still that of the first stage then.
  if (kSecond && head.second_wanted == 0) return;
  const PastRange past = PastOf(head);
  if (kSecond) chunk.Load(p);
  chunk.ForEach(p, [&](uint32_t key, int32_t entry) {
    if (!past.Has(entry) || !Digit::Follows(key, search.prefix)) return;
    RadixBins().AtomicAdd(Digit::Of(key), 1u);
  });
  simt::SyncBlock();
  ThreadBins<Digit::kBins> bins;
  if (AddBins(shared, true, &bins)) PickSharedBin<kDigit>(shared, &bins);
}

// Grid: chunks.count. Writes the survivors of every divided head. The last
// block of a head takes the ties and begins critical's second stage.
template <bool kSecond>
SIMT_KERNEL(kSelectThreads, 4)
void SelectHeadSurvivors(SelectProblem p) {
  constexpr int32_t kWords = KeyBatch<kSecond>::kSize;
  constexpr int32_t kEntries =
      kWords * static_cast<int32_t>(simt::kWarpThreads);
  constexpr auto kWarps =
      static_cast<int32_t>(kSelectThreads / simt::kWarpThreads);
  const EntryChunk<kSecond> chunk(p, FindChunk(p));
  simt::AwaitEarlierKernels();
  if (chunk.size < p.divide_from) return;
  const SelectHead state = p.heads[chunk.list];
  if (kSecond && state.second_wanted == 0) return;
  const SharedSearch shared = SearchOfHead(p, chunk.list);
  const RadixSearch search = *shared.search;
  const bool splits_ties =
      search.mode == RadixSearch::kSearch && search.wanted > 0;
  const int64_t first_word = SurvivorWord(chunk.offset, chunk.list);
  const auto lane = static_cast<int32_t>(simt::Lane());
  FoundWords found;
  for (int32_t first =
           chunk.begin + static_cast<int32_t>(simt::Warp()) * kEntries;
       first < chunk.end; first += kWarps * kEntries) {
    LookAtEntries<kSecond>(p, chunk.list, state, search, false, first, &found);
    if (lane >= kWords || first + lane * 32 >= chunk.end) continue;
    p.survivors[first_word + first / 32 + lane] = found.above;
    if (splits_ties) p.ties[first_word + first / 32 + lane] = found.ties;
  }
  if (!kSecond) AddNan(p, found.num_nan);
  const bool goes_on = !kSecond && state.second_wanted > 0;
  if (!splits_ties && !goes_on) return;
  if (!simt::LastBlockDone(shared.counter, shared.num_blocks)) return;
  if (goes_on && simt::ThreadIndex() == 0) {
    // The first stage left more entries than the second takes: together they
    // take fewer than the head's past.
    *shared.search = BeginSearch(state.second_wanted, INT64_MAX);
  }
  if (!splits_ties) return;
  TakeFirstTies<kSelectThreads>(p, chunk.list, search.wanted);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_DIVIDED_CUH_
