// The search of a head, and its survivors: a block does all of it. What it
// costs is instructions of one SM, in sm_90's code about 50 of a warp per 32
// entries, and 130 for entries that find no place in the cache below. Shared
// memory of the kernels: kHeadSharedBytes.
#ifndef KERNELS_CUDA_SELECT_HEADS_CUH_
#define KERNELS_CUDA_SELECT_HEADS_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/select_keys.cuh"
#include "kernels/cuda/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The keys of a head's past, the first kCachedKeys of them: made once, and then
// looked at in shared memory.
inline constexpr int32_t kCachedKeys = 32768;
inline constexpr uint32_t kHeadSharedBytes =
    kRadixSharedBytes + 4 * uint32_t{kCachedKeys};
static_assert(kHeadSharedBytes <= kMaxSharedBytes, "does not fit an SM");

// There, of an entry that the first stage of critical took, in the second. No
// number has this key.
inline constexpr uint32_t kTakenKey = 0;

SIMT_DEVICE simt::SharedArray<uint32_t> CachedKeys() {
  return simt::Shared<uint32_t>(kRadixSharedBytes, kCachedKeys);
}

SIMT_DEVICE int32_t NumCached(const SelectHead& state) {
  return state.num_past < kCachedKeys ? state.num_past : kCachedKeys;
}

// Counts the first digit, and fills the cache.
template <bool kSecond>
SIMT_DEVICE void CountFirstDigit(const SelectProblem& p, int32_t head,
                                 const SelectHead& state) {
  using Batch = KeyBatch<kSecond>;
  constexpr auto kStride = static_cast<int32_t>(kSelectHeadThreads);
  static_assert(kCachedKeys % (Batch::kSize * kStride) == 0);
  const auto bins = RadixBins();
  const auto keys = CachedKeys();
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  const int32_t end = state.num_sinks + state.num_past;
  for (int32_t turn = 0; turn < state.num_past;
       turn += Batch::kSize * kStride) {
    const Batch batch(p, head, state, state.num_sinks + turn + thread, kStride,
                      end);
    SIMT_UNROLL
    for (int32_t k = 0; k < Batch::kSize; ++k) {
      if (!batch.exist[k]) continue;
      if (turn < kCachedKeys) {
        keys.Store(static_cast<uint32_t>(turn + k * kStride + thread),
                   batch.taken[k] ? kTakenKey : batch.keys[k]);
      }
      if (!batch.taken[k]) {
        bins.AtomicAdd(RadixDigit<0>::Of(batch.keys[k]), 1u);
      }
    }
  }
}

template <int kDigit, bool kSecond>
SIMT_DEVICE void CountDigit(const SelectProblem& p, int32_t head,
                            const SelectHead& state, uint32_t prefix) {
  using Digit = RadixDigit<kDigit>;
  const auto bins = RadixBins();
  const auto keys = CachedKeys();
  const auto count = [&](uint32_t key) {
    if (!Digit::Follows(key, prefix)) return;
    bins.AtomicAdd(Digit::Of(key), 1u);
  };
  const auto count_cached = [&](uint32_t key) {
    if (!kSecond || key != kTakenKey) count(key);
  };
  const auto num_cached = static_cast<uint32_t>(NumCached(state));
  const auto fours =
      simt::Shared<simt::Vector16>(kRadixSharedBytes, kCachedKeys / 4);
  for (uint32_t i = simt::ThreadIndex(); i < num_cached / 4;
       i += kSelectHeadThreads) {
    const simt::Vector16 four = fours.Load(i);
    SIMT_UNROLL
    for (const uint32_t key : four.words) count_cached(key);
  }
  if (simt::ThreadIndex() < num_cached % 4) {
    count_cached(keys.Load(num_cached / 4 * 4 + simt::ThreadIndex()));
  }
  if (BM_PLANTED(kSelectForgetsUncached)) return;
  ForEachKey<kSecond, kSelectHeadThreads>(
      p, head, state, state.num_sinks + kCachedKeys,
      state.num_sinks + state.num_past, count);
}

template <int kDigit, bool kSecond>
SIMT_DEVICE void SearchDigit(const SelectProblem& p, int32_t head,
                             const SelectHead& state, RadixSearch* search) {
  if constexpr (kDigit == 0) {
    CountFirstDigit<kSecond>(p, head, state);
  } else {
    CountDigit<kDigit, kSecond>(p, head, state, search->prefix);
  }
  if (!BM_PLANTED(kSelectNoBarrierBeforePick)) simt::SyncBlock();
  Narrow<kDigit>(PickBin<kDigit, kSelectHeadThreads>(search->wanted), search);
}

// A search in a head's past, to its end, in every thread; the keys are in the
// cache then. All threads of a block; begins with a barrier, which publishes
// survivors.
template <bool kSecond>
SIMT_DEVICE void SearchHead(const SelectProblem& p, int32_t head,
                            const SelectHead& state, RadixSearch* search) {
  if (search->mode != RadixSearch::kSearch) return;
  ClearBins();
  SearchDigit<0, kSecond>(p, head, state, search);
  SearchDigit<1, kSecond>(p, head, state, search);
  SearchDigit<2, kSecond>(p, head, state, search);
}

// The head of a block, its own search done.
struct SearchedHead {
  int32_t head;
  SelectHead state;
  RadixSearch search;

  SIMT_DEVICE explicit SearchedHead(const SelectProblem& p)
      : head(static_cast<int32_t>(simt::BlockX())),
        state(p.heads[head]),
        search(p.searches[p.num_scopes + head]) {
    SearchHead<false>(p, head, state, &search);
  }
};

// Grid: num_heads. What heads take of their past before their scopes' pools are
// made.
SIMT_KERNEL(kSelectHeadThreads, 1)
void SelectFloors(SelectProblem p) {
  simt::AwaitEarlierKernels();
  const SearchedHead own(p);
  if (simt::ThreadIndex() != 0) return;
  p.searches[p.num_scopes + own.head] = own.search;
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

// What a warp finds out of some entries of a head, 32 to a word: lane k has the
// words of the k-th 32.
struct FoundWords {
  uint32_t above = 0;
  uint32_t ties = 0;
  uint32_t num_nan = 0;  // of the lane's own entries, so far

  SIMT_DEVICE void Set(int32_t k, uint32_t new_above, uint32_t new_ties) {
    if (static_cast<int32_t>(simt::Lane()) != k) return;
    above = new_above;
    ties = new_ties;
  }
};

// C. Of entries whose keys are in the cache, from `first` of the past on.
template <bool kSecond>
SIMT_DEVICE void LookAtCached(const RadixSearch& search, int32_t first,
                              FoundWords* found) {
  const auto keys = CachedKeys();
  SIMT_UNROLL
  for (int32_t k = 0; k < KeyBatch<kSecond>::kSize; ++k) {
    const uint32_t key =
        keys.Load(static_cast<uint32_t>(first) + k * 32 + simt::Lane());
    const bool taken = kSecond && key == kTakenKey;
    found->num_nan += key == kNanKey ? 1 : 0;
    found->Set(k, simt::Ballot(taken || key > search.prefix),
               simt::Ballot(!taken && key == search.prefix));
  }
}

// C. Of any entries of the head, from `first` on.
template <bool kSecond>
SIMT_DEVICE void LookAtEntries(const SelectProblem& p, int32_t head,
                               const SelectHead& state,
                               const RadixSearch& search, int32_t first,
                               FoundWords* found) {
  using Batch = KeyBatch<kSecond>;
  constexpr int32_t kLanes = simt::kWarpThreads;
  const int32_t mine = first + static_cast<int32_t>(simt::Lane());
  const Batch batch(p, head, state, mine, kLanes, NumEntries(state));
  // Nobody reads these words any more.
  simt::SyncWarp();
  SIMT_UNROLL
  for (int32_t k = 0; k < Batch::kSize; ++k) {
    const Standing standing =
        StandingOf(state, search, mine + k * kLanes, batch, k);
    // Positions, which are keys where there are no scores, are no NaN.
    found->num_nan += batch.exist[k] && batch.keys[k] == kNanKey ? 1 : 0;
    found->Set(k, simt::Ballot(standing == kAbove),
               simt::Ballot(standing == kEqualTo));
  }
}

// Writes a head's survivors, a word per warp and turn. Where not all entries
// equal to the threshold survive, those at the lowest positions do. All threads
// of a block.
template <bool kSecond>
SIMT_DEVICE void WriteSurvivors(const SelectProblem& p, int32_t head,
                                const SelectHead& state,
                                const RadixSearch& search) {
  constexpr int32_t kWords = KeyBatch<kSecond>::kSize;
  constexpr int32_t kEntries =
      kWords * static_cast<int32_t>(simt::kWarpThreads);
  constexpr auto kWarps =
      static_cast<int32_t>(kSelectHeadThreads / simt::kWarpThreads);
  // Words behind the last candidate's are written, too.
  const auto num_entries =
      static_cast<int32_t>(p.offsets[head + 1] - p.offsets[head]);
  const int64_t first_word = SurvivorWord(p.offsets[head], head);
  const bool searched = search.mode == RadixSearch::kSearch;
  const bool splits_ties = searched && search.wanted > 0;
  const int32_t num_cached = searched ? NumCached(state) : 0;
  FoundWords found;
  for (int32_t first = static_cast<int32_t>(simt::Warp()) * kEntries;
       first < num_entries; first += kWarps * kEntries) {
    const int32_t past = first - state.num_sinks;
    if (past >= 0 && past + kEntries <= num_cached) {
      LookAtCached<kSecond>(search, past, &found);
    } else {
      LookAtEntries<kSecond>(p, head, state, search, first, &found);
    }
    const auto lane = static_cast<int32_t>(simt::Lane());
    if (lane >= kWords || first + lane * 32 >= num_entries) continue;
    p.survivors[first_word + first / 32 + lane] = found.above;
    if (splits_ties) p.ties[first_word + first / 32 + lane] = found.ties;
  }
  if (!kSecond) {
    const uint32_t num_nan = WarpSum(found.num_nan);
    if (num_nan > 0 && simt::Lane() == 0) {
      simt::AtomicAdd(reinterpret_cast<uint64_t*>(p.num_nan),
                      uint64_t{num_nan});
    }
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
  const SearchedHead own(p);
  WriteSurvivors<false>(p, own.head, own.state, own.search);
  if (!kCritical || own.state.second_wanted == 0) return;
  // What the first stage left is more than the second takes: together they are
  // less than the head's past.
  RadixSearch second = BeginSearch(own.state.second_wanted, INT64_MAX);
  SearchHead<true>(p, own.head, own.state, &second);
  WriteSurvivors<true>(p, own.head, own.state, second);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_HEADS_CUH_
