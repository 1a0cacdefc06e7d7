// The search of a head, and its survivors: a block does all of it, whose loads
// after the first pass over a head of up to 32,000 entries find them in the
// SM's cache. Shared memory of the kernels: kRadixSharedBytes.
#ifndef KERNELS_CUDA_SELECT_HEADS_CUH_
#define KERNELS_CUDA_SELECT_HEADS_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/select_keys.cuh"
#include "kernels/cuda/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <int kDigit, bool kSecond>
SIMT_DEVICE void SearchDigit(const SelectProblem& p, int32_t head,
                             const SelectHead& state, RadixSearch* search) {
  using Digit = RadixDigit<kDigit>;
  const auto bins = RadixBins();
  ForEachKey<kSecond, kSelectHeadThreads>(
      p, head, state, state.num_sinks, state.num_sinks + state.num_past,
      [&](uint32_t key) {
        if (!Digit::Follows(key, search->prefix)) return;
        bins.AtomicAdd(Digit::Of(key), 1u);
      });
  if (!BM_PLANTED(kSelectNoBarrierBeforePick)) simt::SyncBlock();
  Narrow<kDigit>(PickBin<kDigit, kSelectHeadThreads>(search->wanted), search);
}

// A search in a head's past, to its end, in every thread. All threads of a
// block; begins with a barrier, which publishes survivors.
template <bool kSecond>
SIMT_DEVICE void SearchHead(const SelectProblem& p, int32_t head,
                            const SelectHead& state, RadixSearch* search) {
  if (search->mode != RadixSearch::kSearch) return;
  ClearBins();
  SearchDigit<0, kSecond>(p, head, state, search);
  SearchDigit<1, kSecond>(p, head, state, search);
  SearchDigit<2, kSecond>(p, head, state, search);
}

// Grid: num_heads. What heads take of their past before their scopes' pools are
// made.
SIMT_KERNEL(kSelectHeadThreads, 1)
void SelectFloors(SelectProblem p) {
  simt::AwaitEarlierKernels();
  const auto head = static_cast<int32_t>(simt::BlockX());
  const SelectHead state = p.heads[head];
  RadixSearch search = p.searches[p.num_scopes + head];
  SearchHead<false>(p, head, state, &search);
  if (simt::ThreadIndex() == 0) p.searches[p.num_scopes + head] = search;
}

// How an entry stands to its head's threshold.
enum Standing : uint32_t { kBelow, kEqualTo, kAbove };

template <bool kSecond>
SIMT_DEVICE Standing StandingOf(const SelectHead& state,
                                const RadixSearch& search, int32_t i,
                                const KeyBatch<kSecond>& batch, int32_t k) {
  if (!batch.exist[k]) return kBelow;
  if (batch.taken[k]) return kAbove;
  if (i < state.take_first || i >= NumEntries(state) - state.take_last) {
    return kAbove;
  }
  if (search.mode == RadixSearch::kNone || i < state.num_sinks ||
      i >= state.num_sinks + state.num_past) {
    return kBelow;
  }
  if (search.mode == RadixSearch::kAll) return kAbove;
  const uint32_t key = batch.keys[k];
  return key > search.prefix    ? kAbove
         : key == search.prefix ? kEqualTo
                                : kBelow;
}

// The lowest `count` of a word's bits.
SIMT_DEVICE uint32_t LowestBits(uint32_t word, int64_t count) {
  const int size = simt::PopCount(word);
  if (count >= size) return word;
  const bool highest = BM_PLANTED(kSelectTiesToHigher);
  uint32_t others = word;
  for (int64_t i = highest ? size - count : count; i > 0; --i) {
    others &= others - 1;
  }
  return highest ? others : word ^ others;
}

// Of the entries equal to a head's threshold, the first `wanted` survive. All
// threads of a block, when all words of the head are written.
SIMT_DEVICE void TakeFirstTies(const SelectProblem& p, int32_t head,
                               int64_t wanted) {
  using Turn = WordTurn<kSelectHeadThreads>;
  const auto num_entries =
      static_cast<int32_t>(p.offsets[head + 1] - p.offsets[head]);
  const int32_t num_words = (num_entries + 31) / 32;
  const int64_t first_word = SurvivorWord(p.offsets[head], head);
  const uint32_t* const ties = p.ties + first_word;
  uint32_t* const survivors = p.survivors + first_word;
  for (int32_t base = 0; base < num_words && wanted > 0; base += Turn::kStep) {
    const Turn turn(base, num_words, [&](int32_t i) { return ties[i]; });
    int64_t left = wanted - turn.before;
    SIMT_UNROLL
    for (int32_t k = 0; k < Turn::kSize; ++k) {
      if (left > 0 && turn.words[k] != 0) {
        survivors[turn.first + k] |= LowestBits(turn.words[k], left);
      }
      left -= simt::PopCount(turn.words[k]);
    }
    if (!BM_PLANTED(kSelectForgetsEarlierTies)) wanted -= turn.total;
  }
}

// Writes a head's survivors, a word per warp and turn. Where not all entries
// equal to the threshold survive, those at the lowest positions do. All threads
// of a block.
template <bool kSecond>
SIMT_DEVICE void WriteSurvivors(const SelectProblem& p, int32_t head,
                                const SelectHead& state,
                                const RadixSearch& search) {
  using Batch = KeyBatch<kSecond>;
  constexpr int32_t kLanes = simt::kWarpThreads;
  constexpr auto kThreads = static_cast<int32_t>(kSelectHeadThreads);
  // Words behind the last candidate's are written, too.
  const auto num_entries =
      static_cast<int32_t>(p.offsets[head + 1] - p.offsets[head]);
  const int32_t candidates = NumEntries(state);
  const int64_t first_word = SurvivorWord(p.offsets[head], head);
  const bool splits_ties =
      search.mode == RadixSearch::kSearch && search.wanted > 0;
  uint32_t num_nan = 0;
  for (int32_t first =
           static_cast<int32_t>(simt::Warp()) * Batch::kSize * kLanes;
       first < num_entries; first += Batch::kSize * kThreads) {
    const Batch batch(p, head, state,
                      first + static_cast<int32_t>(simt::Lane()), kLanes,
                      candidates);
    // Nobody reads these words any more.
    simt::SyncWarp();
    SIMT_UNROLL
    for (int32_t k = 0; k < Batch::kSize; ++k) {
      const int32_t i = first + k * kLanes + static_cast<int32_t>(simt::Lane());
      const Standing standing = StandingOf(state, search, i, batch, k);
      const uint32_t above = simt::Ballot(standing == kAbove);
      const uint32_t ties = simt::Ballot(standing == kEqualTo);
      // Positions, which are keys where there are no scores, are no NaN.
      const bool is_nan = batch.exist[k] && batch.keys[k] == kNanKey;
      num_nan += simt::PopCount(simt::Ballot(is_nan));
      if (simt::Lane() != 0 || i >= num_entries) continue;
      p.survivors[first_word + i / 32] = above;
      if (splits_ties) p.ties[first_word + i / 32] = ties;
    }
  }
  if (!kSecond && num_nan > 0 && simt::Lane() == 0) {
    simt::AtomicAdd(reinterpret_cast<uint64_t*>(p.num_nan), uint64_t{num_nan});
  }
  if (!splits_ties) return;
  if (!BM_PLANTED(kSelectTakesTiesEarly)) simt::SyncBlock();
  TakeFirstTies(p, head, search.wanted);
}

// Grid: num_heads. From the search of a head's budget to its survivors; with
// kCritical both stages of CriticalKV, the second one in what the first left.
template <bool kCritical>
SIMT_KERNEL(kSelectHeadThreads, 1)
void SelectSurvivors(SelectProblem p) {
  simt::AwaitEarlierKernels();
  const auto head = static_cast<int32_t>(simt::BlockX());
  const SelectHead state = p.heads[head];
  RadixSearch search = p.searches[p.num_scopes + head];
  SearchHead<false>(p, head, state, &search);
  WriteSurvivors<false>(p, head, state, search);
  if (!kCritical || state.second_wanted == 0) return;
  // What the first stage left is more than the second takes: together they are
  // less than the head's past.
  search = BeginSearch(state.second_wanted, INT64_MAX);
  SearchHead<true>(p, head, state, &search);
  WriteSurvivors<true>(p, head, state, search);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_HEADS_CUH_
