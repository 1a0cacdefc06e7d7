// The search of a head, and its survivors. One block does all of it, except for
// divided heads (select_divided.cuh). Its cost is the instructions of one SM,
// most of them for the first read of the keys. This first read begins while the
// kernel before still ends. Shared memory of the kernels: kHeadSharedBytes.
#ifndef KERNELS_CUDA_SELECTION_SELECT_HEADS_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_HEADS_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_keys.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The keys of a head's first entries. They are computed once and then read from
// shared memory. Entry i is at place skew + i, so that four keys in 16 aligned
// bytes of global memory are four such keys here, too.
inline constexpr int32_t kCachedKeys = 32768 + 32;
inline constexpr uint32_t kHeadSharedBytes =
    kRadixSharedBytes + 4 * uint32_t{kCachedKeys};
static_assert(kHeadSharedBytes <= kMaxSharedBytes, "does not fit an SM");

// The key in the second stage of critical of an entry that the first stage
// took. No number has this key, or its first digit.
inline constexpr uint32_t kTakenKey = 0;

SIMT_DEVICE simt::SharedArray<uint32_t> CachedKeys() {
  return simt::Shared<uint32_t>(kRadixSharedBytes, kCachedKeys);
}
SIMT_DEVICE simt::SharedArray<simt::Vector16> CachedFours() {
  return simt::Shared<simt::Vector16>(kRadixSharedBytes, kCachedKeys / 4);
}

// The facts of a head that are known before any kernel of a selection has run.
struct HeadEntries {
  const uint32_t* words;  // scores, or positions where there are none
  bool scored;
  int64_t offset;
  int32_t size;
  int32_t skew;
  int32_t num_cached;  // entries

  SIMT_DEVICE HeadEntries(const SelectProblem& p, int32_t head)
      : scored(p.scores != nullptr),
        offset(p.offsets[head]),
        size(static_cast<int32_t>(p.offsets[head + 1] - offset)) {
    const void* const all =
        scored ? static_cast<const void*>(p.scores) : p.positions;
    words = static_cast<const uint32_t*>(all) + offset;
    skew = static_cast<int32_t>(reinterpret_cast<uintptr_t>(words) / 4 % 4);
    num_cached = size < kCachedKeys - skew ? size : kCachedKeys - skew;
  }
  // Positions are already in order, and exact.
  SIMT_DEVICE uint32_t KeyOf(uint32_t word) const {
    return scored ? OrderKey(simt::BitsToFloat(word)) : word;
  }
};

// The entries of a head that a search counts.
struct PastRange {
  int32_t begin;
  int32_t end;

  SIMT_DEVICE bool Has(int32_t entry) const {
    return entry >= begin && entry < end;
  }
};

SIMT_DEVICE PastRange PastOf(const SelectHead& state) {
  return {state.num_sinks, state.num_sinks + state.num_past};
}

// Fills the cache and counts the first digit of the keys in `past`. All threads
// of a block call it.
SIMT_DEVICE void FillCache(const HeadEntries& entries, const PastRange& past) {
  constexpr int32_t kBatch = 4;
  constexpr auto kThreads = static_cast<int32_t>(kSelectHeadThreads);
  const auto bins = RadixBins();
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  const auto count = [&](int32_t entry, uint32_t key) {
    if (past.Has(entry)) bins.AtomicAdd(RadixDigit<0>::Of(key), 1u);
  };
  // Groups of four entries that all exist. Before and after them are up to
  // three entries each.
  const int32_t missing = (4 - entries.skew) % 4;
  const int32_t lead =
      missing < entries.num_cached ? missing : entries.num_cached;
  const int32_t num_fours = (entries.num_cached - lead) / 4;
  const int32_t first_place = (entries.skew + lead) / 4;
  for (int32_t turn = 0; turn < num_fours; turn += kBatch * kThreads) {
    simt::Vector16 fours[kBatch];
    SIMT_UNROLL
    for (int32_t k = 0; k < kBatch; ++k) {
      const int32_t i = turn + k * kThreads + thread;
      fours[k] = simt::LoadGlobal16(entries.words + lead +
                                    4 * (i < num_fours ? i : num_fours - 1));
    }
    SIMT_UNROLL
    for (int32_t k = 0; k < kBatch; ++k) {
      const int32_t i = turn + k * kThreads + thread;
      if (i >= num_fours) continue;
      SIMT_UNROLL
      for (uint32_t& word : fours[k].words) word = entries.KeyOf(word);
      CachedFours().Store(static_cast<uint32_t>(first_place + i), fours[k]);
      SIMT_UNROLL
      for (int32_t j = 0; j < 4; ++j) {
        count(lead + 4 * i + j, fours[k].words[j]);
      }
    }
  }
  if (thread >= entries.num_cached - 4 * num_fours) return;
  const int32_t entry = thread < lead ? thread : 4 * num_fours + thread;
  const uint32_t key = entries.KeyOf(entries.words[entry]);
  CachedKeys().Store(static_cast<uint32_t>(entries.skew + entry), key);
  count(entry, key);
}

// Turns first keys into keys of critical's second stage, for entries of a past
// that was searched.
struct SecondKeys {
  const float* sizes;  // value norms or products, of the head's entries
  bool products;
  bool scored;
  float eps;
  // The first stage took all keys above this one, and some of those equal to it
  // if it split ties.
  uint32_t threshold;
  bool split_ties;
  const uint32_t* survivors;  // of the first stage, from the head's first on

  SIMT_DEVICE SecondKeys(const SelectProblem& p, int32_t head,
                         const HeadEntries& entries, const RadixSearch& first)
      : sizes((p.products != nullptr ? p.products : p.value_norms) +
              entries.offset),
        products(p.products != nullptr),
        scored(entries.scored),
        eps(p.eps),
        threshold(first.mode == RadixSearch::kSearch ? first.prefix : ~0u),
        split_ties(first.mode == RadixSearch::kSearch && first.wanted > 0),
        survivors(p.survivors + SurvivorWord(entries.offset, head)) {}

  // Returns whether four sizes are aligned where four cached keys are.
  SIMT_DEVICE bool IsAligned(const HeadEntries& entries) const {
    return static_cast<int32_t>(reinterpret_cast<uintptr_t>(sizes) / 4 % 4) ==
           entries.skew;
  }

  // Returns kTakenKey for an entry that the first stage took. `size` is that of
  // the entry. NaN's key is the key of a NaN here, too.
  SIMT_DEVICE uint32_t Of(int32_t entry, uint32_t key, float size) const {
    if (HasTaken(entry, key)) return kTakenKey;
    const float score = scored ? NumberOfKey(key)
                               : static_cast<float>(static_cast<int32_t>(key));
    return OrderKey(products ? size : (score + eps) * size);
  }

 private:
  SIMT_DEVICE bool HasTaken(int32_t entry, uint32_t key) const {
    if (split_ties && key == threshold) {
      return (survivors[entry / 32] >> (entry % 32) & 1u) != 0;
    }
    return key > threshold;
  }
};

// Replaces four keys of the cache from `place` on and counts their first digit.
SIMT_DEVICE void ReplaceFour(const SecondKeys& second, int32_t entry,
                             uint32_t four, const simt::Vector16& sizes) {
  simt::Vector16 keys = CachedFours().Load(four);
  SIMT_UNROLL
  for (int32_t j = 0; j < 4; ++j) {
    keys.words[j] =
        second.Of(entry + j, keys.words[j], simt::BitsToFloat(sizes.words[j]));
    if (keys.words[j] == kTakenKey) continue;
    RadixBins().AtomicAdd(RadixDigit<0>::Of(keys.words[j]), 1u);
  }
  CachedFours().Store(four, keys);
}

// Replaces the keys of fours. Entry `lead` is the first of the first four.
template <bool kAligned>
SIMT_DEVICE void ReplaceFours(const SecondKeys& second,
                              const HeadEntries& entries, int32_t lead,
                              int32_t num_fours) {
  constexpr int32_t kBatch = 2;  // more take too many registers
  constexpr auto kThreads = static_cast<int32_t>(kSelectHeadThreads);
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  const int32_t first_four = (entries.skew + lead) / 4;
  for (int32_t turn = 0; turn < num_fours; turn += kBatch * kThreads) {
    simt::Vector16 sizes[kBatch];
    SIMT_UNROLL
    for (int32_t k = 0; k < kBatch; ++k) {
      const int32_t i = turn + k * kThreads + thread;
      const float* const from =
          second.sizes + lead + 4 * (i < num_fours ? i : num_fours - 1);
      if (kAligned) {
        sizes[k] = simt::LoadGlobal16(from);
      } else {
        SIMT_UNROLL
        for (int32_t j = 0; j < 4; ++j) {
          sizes[k].words[j] = simt::FloatBits(from[j]);
        }
      }
    }
    SIMT_UNROLL
    for (int32_t k = 0; k < kBatch; ++k) {
      const int32_t i = turn + k * kThreads + thread;
      if (i >= num_fours) continue;
      ReplaceFour(second, lead + 4 * i, static_cast<uint32_t>(first_four + i),
                  sizes[k]);
    }
  }
}

// Turns the cache into that of critical's second stage and counts the first
// digit, for the past alone. All threads of a block call it.
SIMT_DEVICE void FillSecondCache(const SecondKeys& second,
                                 const HeadEntries& entries,
                                 const PastRange& past) {
  const int32_t end =
      past.end < entries.num_cached ? past.end : entries.num_cached;
  if (past.begin >= end) return;
  // As in FillCache.
  const int32_t missing = (4 - (entries.skew + past.begin) % 4) % 4;
  const int32_t size = end - past.begin;
  const int32_t num_lead = missing < size ? missing : size;
  const int32_t num_fours = (size - num_lead) / 4;
  const int32_t lead = past.begin + num_lead;
  if (second.IsAligned(entries)) {
    ReplaceFours<true>(second, entries, lead, num_fours);
  } else {
    ReplaceFours<false>(second, entries, lead, num_fours);
  }
  const auto thread = static_cast<int32_t>(simt::ThreadIndex());
  if (thread >= size - 4 * num_fours) return;
  const int32_t entry =
      past.begin + (thread < num_lead ? thread : 4 * num_fours + thread);
  const auto place = static_cast<uint32_t>(entries.skew + entry);
  const uint32_t key =
      second.Of(entry, CachedKeys().Load(place), second.sizes[entry]);
  CachedKeys().Store(place, key);
  if (key != kTakenKey) {
    RadixBins().AtomicAdd(RadixDigit<0>::Of(key), 1u);
  }
}

// Counts the digits of a head's keys in the cache.
template <int kDigit>
SIMT_DEVICE void CountCached(const HeadEntries& entries, const PastRange& past,
                             uint32_t prefix) {
  using Digit = RadixDigit<kDigit>;
  const auto bins = RadixBins();
  const auto count = [&](uint32_t key) {
    if (!Digit::Follows(key, prefix)) return;
    bins.AtomicAdd(Digit::Of(key), 1u);
  };
  const auto begin = static_cast<uint32_t>(entries.skew + past.begin);
  const auto end = static_cast<uint32_t>(
      entries.skew +
      (past.end < entries.num_cached ? past.end : entries.num_cached));
  for (uint32_t i = begin / 4 + simt::ThreadIndex(); i * 4 < end;
       i += kSelectHeadThreads) {
    if (i * 4 >= begin && i * 4 + 4 <= end) {
      const simt::Vector16 four = CachedFours().Load(i);
      SIMT_UNROLL
      for (const uint32_t key : four.words) count(key);
      continue;
    }
    for (uint32_t place = i * 4; place < i * 4 + 4; ++place) {
      if (place >= begin && place < end) count(CachedKeys().Load(place));
    }
  }
}

// Counts the digits of the keys after the cache.
template <int kDigit, bool kSecond>
SIMT_DEVICE void CountUncached(const SelectProblem& p, int32_t head,
                               const SelectHead& state,
                               const HeadEntries& entries, uint32_t prefix) {
  using Digit = RadixDigit<kDigit>;
  const PastRange past = PastOf(state);
  ForEachKey<kSecond, kSelectHeadThreads>(
      p, head, state,
      past.begin > entries.num_cached ? past.begin : entries.num_cached,
      past.end, [prefix](uint32_t key) {
        if (!Digit::Follows(key, prefix)) return;
        RadixBins().AtomicAdd(Digit::Of(key), 1u);
      });
}

// The head of a block, and its own search.
struct SearchedHead {
  int32_t head;
  HeadEntries entries;
  SelectHead state;
  RadixSearch search;
  uint32_t num_nan;  // of a searched past, in the first thread

  // Waits for earlier kernels. All of them except the last are known to have
  // ended when this kernel begins. was_split: the kernel that splits heads is
  // one of those. All threads of a block call it.
  SIMT_DEVICE SearchedHead(const SelectProblem& p, bool was_split)
      : head(static_cast<int32_t>(simt::BlockX())),
        entries(p, head),
        num_nan(0) {
    ClearBins();
    PastRange past = {0, 0};
    if (was_split) {
      // The kernel that may still run writes memory beside it.
      past.begin = simt::LoadUncached(&p.heads[head].num_sinks);
      past.end = past.begin + simt::LoadUncached(&p.heads[head].num_past);
    }
    FillCache(entries, past);
    simt::SyncBlock();
    const bool all_counted = was_split && past.end <= entries.num_cached;
    BinSums<0, kSelectHeadThreads> sums;
    if (all_counted) sums.Take();
    simt::AwaitEarlierKernels();
    state = p.heads[head];
    search = p.searches[p.num_scopes + head];
    if (search.mode != RadixSearch::kSearch) return;
    if (!all_counted) {
      if (!was_split) CountCached<0>(entries, PastOf(state), 0);
      CountUncached<0, false>(p, head, state, entries, 0);
      simt::SyncBlock();
      sums.Take();
    }
    // No key of a number or of a position has NaN's first digit.
    static_assert(kNanKey >> RadixDigit<0>::kShift == kRadixBins - 1);
    if (simt::ThreadIndex() == 0) num_nan = sums.counts[0];
    Narrow<0>(sums.Pick(search.wanted), &search);
    CountDigit<1, false>(p, &search);
    CountDigit<2, false>(p, &search);
  }

  // CriticalKV's second search, among the entries that the first stage left.
  // All threads of a block call it. It begins with a barrier, which publishes
  // survivors.
  SIMT_DEVICE RadixSearch SearchSecond(const SelectProblem& p) {
    // The first stage left more entries than the second takes: together they
    // take fewer than the head's past.
    RadixSearch second = BeginSearch(state.second_wanted, INT64_MAX);
    ClearBins();
    FillSecondCache(SecondKeys(p, head, entries, search), entries,
                    PastOf(state));
    EndDigit<0, true>(p, &second);
    CountDigit<1, true>(p, &second);
    CountDigit<2, true>(p, &second);
    return second;
  }

 private:
  template <int kDigit, bool kSecond>
  SIMT_DEVICE void CountDigit(const SelectProblem& p, RadixSearch* which) {
    CountCached<kDigit>(entries, PastOf(state), which->prefix);
    EndDigit<kDigit, kSecond>(p, which);
  }

  // Ends a digit after the keys in the cache are counted: counts the other keys
  // and picks the bin.
  template <int kDigit, bool kSecond>
  SIMT_DEVICE void EndDigit(const SelectProblem& p, RadixSearch* which) {
    CountUncached<kDigit, kSecond>(p, head, state, entries, which->prefix);
    simt::SyncBlock();
    Narrow<kDigit>(PickBin<kDigit, kSelectHeadThreads>(which->wanted), which);
  }
};

// The order of an entry and its head's threshold.
enum Standing : uint32_t { kBelow, kEqualTo, kAbove };

template <bool kSecond>
SIMT_DEVICE Standing StandingOf(const SelectHead& state,
                                const RadixSearch& search, int32_t i,
                                const KeyBatch<kSecond>& batch, int32_t k) {
  if (!batch.exist[k]) return kBelow;
  if (batch.taken[k]) return kAbove;
  if (i < state.take_first || i >= CountEntries(state) - state.take_last) {
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

// Returns the lowest `count` set bits of a word.
SIMT_DEVICE uint32_t LowestBits(uint32_t word, int64_t count) {
  if (count >= simt::PopCount(word)) return word;
  uint32_t others = word;
  for (int64_t i = count; i > 0; --i) others &= others - 1;
  return word ^ others;
}

// Keeps the first `wanted` of the entries that equal a head's threshold. All
// threads of a block call it after all words of the head are written. Uses the
// shared memory of BlockPrefix, at 0.
template <uint32_t kThreads>
SIMT_DEVICE void TakeFirstTies(const SelectProblem& p, int32_t head,
                               int64_t wanted) {
  constexpr int32_t kTurnWords = 4096;
  using Turn = WordTurn<kThreads, kTurnWords / int32_t{kThreads}>;
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
    wanted -= turn.total;
  }
}

// The results of a warp for some entries of a head, 32 per word: lane k has the
// words of the k-th 32.
struct FoundWords {
  uint32_t above = 0;
  uint32_t ties = 0;
  uint32_t num_nan = 0;  // of the lane's own entries, so far, and not counted

  SIMT_DEVICE void Set(int32_t k, uint32_t new_above, uint32_t new_ties) {
    if (static_cast<int32_t>(simt::Lane()) != k) return;
    above = new_above;
    ties = new_ties;
  }
};

// C. For entries whose keys are in the cache, from `place` on. NaN among them
// are already counted.
template <bool kSecond, bool kTies>
SIMT_DEVICE void LookAtCached(const RadixSearch& search, uint32_t place,
                              FoundWords* found) {
  const auto keys = CachedKeys();
  SIMT_UNROLL
  for (int32_t k = 0; k < KeyBatch<kSecond>::kSize; ++k) {
    const uint32_t key =
        keys.Load(place + static_cast<uint32_t>(k) * 32 + simt::Lane());
    // kTakenKey is below all keys. Less 1 it is above all.
    const uint32_t above =
        simt::Ballot(kSecond ? key - 1 >= search.prefix : key > search.prefix);
    found->Set(k, above, kTies ? simt::Ballot(key == search.prefix) : 0);
  }
}

// C. For any entries of the head, from `first` on. If nan_counted, NaN in the
// past are already counted.
template <bool kSecond>
SIMT_DEVICE void LookAtEntries(const SelectProblem& p, int32_t head,
                               const SelectHead& state,
                               const RadixSearch& search, bool nan_counted,
                               int32_t first, FoundWords* found) {
  using Batch = KeyBatch<kSecond>;
  constexpr int32_t kLanes = simt::kWarpThreads;
  const int32_t mine = first + static_cast<int32_t>(simt::Lane());
  const Batch batch(p, head, state.offset, mine, kLanes, CountEntries(state));
  // No thread reads these words any more.
  simt::SyncWarp();
  SIMT_UNROLL
  for (int32_t k = 0; k < Batch::kSize; ++k) {
    const int32_t entry = mine + k * kLanes;
    const Standing standing = StandingOf(state, search, entry, batch, k);
    // Without scores the keys are positions, and no position is NaN.
    const bool is_nan = batch.exist[k] && batch.keys[k] == kNanKey;
    const bool counted = nan_counted && PastOf(state).Has(entry);
    found->num_nan += is_nan && !counted ? 1 : 0;
    found->Set(k, simt::Ballot(standing == kAbove),
               simt::Ballot(standing == kEqualTo));
  }
}

// C. Adds the lanes' numbers of NaN.
SIMT_DEVICE void AddNan(const SelectProblem& p, uint32_t num_nan) {
  num_nan = WarpSum(num_nan);
  if (num_nan == 0 || simt::Lane() != 0) return;
  simt::AtomicAdd(reinterpret_cast<uint64_t*>(p.num_nan), uint64_t{num_nan});
}

// Writes a head's survivors, one word per warp and turn. If not all entries
// equal to the threshold survive, the entries at the lowest positions do. All
// threads of a block call it.
template <bool kSecond>
SIMT_DEVICE void WriteSurvivors(const SelectProblem& p, const SearchedHead& own,
                                const RadixSearch& search) {
  constexpr int32_t kWords = KeyBatch<kSecond>::kSize;
  constexpr int32_t kEntries =
      kWords * static_cast<int32_t>(simt::kWarpThreads);
  constexpr auto kWarps =
      static_cast<int32_t>(kSelectHeadThreads / simt::kWarpThreads);
  // Words after the last candidate are written, too.
  const int32_t num_entries = own.entries.size;
  const int64_t first_word = SurvivorWord(own.entries.offset, own.head);
  const bool searched = search.mode == RadixSearch::kSearch;
  const bool splits_ties = searched && search.wanted > 0;
  PastRange cached = PastOf(own.state);
  if (own.entries.num_cached < cached.end) cached.end = own.entries.num_cached;
  if (!searched) cached.end = 0;
  FoundWords found;
  for (int32_t first = static_cast<int32_t>(simt::Warp()) * kEntries;
       first < num_entries; first += kWarps * kEntries) {
    const auto place = static_cast<uint32_t>(own.entries.skew + first);
    if (first < cached.begin || first + kEntries > cached.end) {
      LookAtEntries<kSecond>(p, own.head, own.state, search, searched, first,
                             &found);
    } else if (splits_ties) {
      LookAtCached<kSecond, true>(search, place, &found);
    } else {
      LookAtCached<kSecond, false>(search, place, &found);
    }
    const auto lane = static_cast<int32_t>(simt::Lane());
    if (lane >= kWords || first + lane * 32 >= num_entries) continue;
    p.survivors[first_word + first / 32 + lane] = found.above;
    if (splits_ties) p.ties[first_word + first / 32 + lane] = found.ties;
  }
  if (!kSecond) AddNan(p, found.num_nan + own.num_nan);
  if (!splits_ties) return;
  simt::SyncBlock();
  TakeFirstTies<kSelectHeadThreads>(p, own.head, search.wanted);
}

// Returns whether many blocks search a head together (select_divided.cuh).
SIMT_DEVICE bool IsDivided(const SelectProblem& p, int32_t head) {
  return p.offsets[head + 1] - p.offsets[head] >= p.divide_from;
}

// Grid: num_heads. Goes from the search of a head's budget to its survivors,
// for heads that are not divided.
// With kCritical it does both stages of CriticalKV, the second stage among the
// entries that the first stage left. Runs after SelectSplit, or after
// SelectEndScopes if budgets depend on scores.
template <bool kCritical>
SIMT_KERNEL(kSelectHeadThreads, 1)
void SelectSurvivors(SelectProblem p) {
  if (IsDivided(p, static_cast<int32_t>(simt::BlockX()))) {
    simt::AwaitEarlierKernels();
    return;
  }
  SearchedHead own(p, IsScored(p));
  WriteSurvivors<false>(p, own, own.search);
  if (!kCritical || own.state.second_wanted == 0) return;
  WriteSurvivors<true>(p, own, own.SearchSecond(p));
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_HEADS_CUH_
