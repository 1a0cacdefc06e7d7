// Threshold radix select: no sort, three passes over the keys with histograms
// of 11, 11 and 10 bits; then survivors in one more.
//
// A search is for the k best keys of a group: of one head, or of a scope's
// heads. Every block counts the digit of its chunk in shared memory and, unless
// it is the only one, adds it to the group's histogram with integer atomics,
// whose order does not show; the last block of the group picks the bin and
// leaves the histogram zero.
#ifndef KERNELS_CUDA_SELECT_RADIX_CUH_
#define KERNELS_CUDA_SELECT_RADIX_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Candidates of a head: what comes after them is not looked at.
SIMT_DEVICE int32_t NumEntries(const SelectHead& head) {
  return head.num_sinks + head.num_past + head.num_recent;
}

// C. The chunk of a block of a flat grid.
SIMT_DEVICE ListSplit FindChunk(const SelectProblem& p) {
  return FindSplit(p.chunks.offsets, p.num_heads,
                   static_cast<int32_t>(simt::BlockX()));
}

// Blocks that have chunks of some heads.
SIMT_DEVICE uint32_t NumChunks(const SelectProblem& p, int32_t first_head,
                               int32_t num_heads) {
  return static_cast<uint32_t>(p.chunks.offsets[first_head + num_heads] -
                               p.chunks.offsets[first_head]);
}

// Entries that a thread loads before it looks at the first: a wait for memory
// is then one for all of them.
inline constexpr int32_t kKeyBatch = 8;

// Of a head, entries first, first + stride, .. below `end`: the keys of their
// scores, or in critical's second stage, kSecond, of their products. Loads have
// no branch of their own, which would have each wait for the one before it;
// those that do not exist load another's. REQUIRES: the head has entries.
template <bool kSecond>
struct KeyBatch {
  uint32_t keys[kKeyBatch];
  bool exist[kKeyBatch];
  bool taken[kKeyBatch];  // by the first stage, in the second

  SIMT_DEVICE KeyBatch(const SelectProblem& p, int32_t head, int32_t first,
                       int32_t stride, int32_t end) {
    const int64_t offset = p.offsets[head];
    const bool products = kSecond && p.products != nullptr;
    const bool positions = !products && p.scores == nullptr;
    const void* const words = products ? static_cast<const void*>(p.products)
                              : positions
                                  ? static_cast<const void*>(p.positions)
                                  : p.scores;
    int32_t entries[kKeyBatch];
    SIMT_UNROLL
    for (int32_t k = 0; k < kKeyBatch; ++k) {
      const int32_t i = first + k * stride;
      exist[k] = i < end;
      entries[k] = exist[k] ? i : end > 0 ? end - 1 : 0;
      keys[k] = static_cast<const uint32_t*>(words)[offset + entries[k]];
      taken[k] = false;
    }
    if constexpr (kSecond) FindTaken(p, SurvivorWord(offset, head), entries);
    if (kSecond && !products) {
      Multiply(p, offset, positions, entries);
    } else if (!positions) {  // which are in order as they are, and exact
      SIMT_UNROLL
      for (int32_t k = 0; k < kKeyBatch; ++k) {
        keys[k] = OrderKey(simt::BitsToFloat(keys[k]));
      }
    }
  }

 private:
  SIMT_DEVICE void FindTaken(const SelectProblem& p, int64_t first_word,
                             const int32_t (&entries)[kKeyBatch]) {
    SIMT_UNROLL
    for (int32_t k = 0; k < kKeyBatch; ++k) {
      const uint32_t word = p.survivors[first_word + entries[k] / 32];
      taken[k] = exist[k] && (word >> (entries[k] % 32) & 1u) != 0;
    }
  }

  // From scores, or positions, to (score + eps) norm.
  SIMT_DEVICE void Multiply(const SelectProblem& p, int64_t offset,
                            bool positions,
                            const int32_t (&entries)[kKeyBatch]) {
    SIMT_UNROLL
    for (int32_t k = 0; k < kKeyBatch; ++k) {
      const float score =
          positions ? static_cast<float>(static_cast<int32_t>(keys[k]))
                    : simt::BitsToFloat(keys[k]);
      keys[k] = OrderKey((score + p.eps) * p.value_norms[offset + entries[k]]);
    }
  }
};

// Calls use(key) for those entries of a head in [begin, end) that are this
// thread's and not taken.
template <bool kSecond, typename Use>
SIMT_DEVICE void ForEachKey(const SelectProblem& p, int32_t head, int32_t begin,
                            int32_t end, const Use& use) {
  constexpr auto kThreads = static_cast<int32_t>(kSelectThreads);
  for (int32_t first = begin + static_cast<int32_t>(simt::ThreadIndex());
       first < end; first += kKeyBatch * kThreads) {
    const KeyBatch<kSecond> batch(p, head, first, kThreads, end);
    SIMT_UNROLL
    for (int32_t k = 0; k < kKeyBatch; ++k) {
      if (batch.exist[k] && !batch.taken[k]) use(batch.keys[k]);
    }
  }
}

// A digit of the keys, the highest first, and those known before it is picked.
template <int kDigit>
struct RadixDigit {
  static constexpr uint32_t kShift = kDigit == 0 ? 21 : kDigit == 1 ? 10 : 0;
  static constexpr uint32_t kMask = kDigit == 2 ? 0x3FF : 0x7FF;
  static constexpr uint32_t kKnown = kDigit == 0   ? 0
                                     : kDigit == 1 ? ~0u << 21
                                                   : ~0u << 10;

  SIMT_DEVICE static uint32_t Of(uint32_t key) { return key >> kShift & kMask; }
};

// Adds the digits of one chunk of one head to shared memory.
template <int kDigit, bool kSecond>
SIMT_DEVICE void CountDigits(const SelectProblem& p, const ListSplit& chunk,
                             bool of_scope, const RadixSearch& search,
                             const simt::SharedArray<uint32_t>& bins) {
  const int32_t head = chunk.list;
  const SelectHead state = p.heads[head];
  const int32_t begin = chunk.split * p.chunk_entries;
  const int32_t end = begin + p.chunk_entries < state.num_past
                          ? begin + p.chunk_entries
                          : state.num_past;
  const auto floor_mode = of_scope ? state.floor.mode : RadixSearch::kNone;
  if (floor_mode == RadixSearch::kAll) return;
  using Digit = RadixDigit<kDigit>;
  const uint32_t known = BM_PLANTED(kSelectForgetsPrefix) ? 0 : Digit::kKnown;
  const auto matches = [&](uint32_t key) {
    return (key & known) == (search.prefix & known);
  };
  const auto add = [&](uint32_t key) {
    // What the head took for itself is not in the pool: all above its own
    // threshold, and some of those equal to it.
    if (floor_mode == RadixSearch::kSearch && key > state.floor.prefix &&
        !BM_PLANTED(kSelectFloorCountsTwice)) {
      return;
    }
    if (matches(key)) bins.AtomicAdd(Digit::Of(key), 1u);
  };
  ForEachKey<kSecond>(p, head, state.num_sinks + begin, state.num_sinks + end,
                      add);
  if (floor_mode == RadixSearch::kSearch && begin == 0 &&
      simt::ThreadIndex() == 0 && matches(state.floor.prefix)) {
    bins.AtomicAdd(Digit::Of(state.floor.prefix),
                   0u - static_cast<uint32_t>(state.floor.wanted));
  }
}

// One digit of a search: the bin where the group's wanted best end. All threads
// of the group's last block.
template <int kDigit>
SIMT_DEVICE void PickBin(const simt::SharedArray<uint32_t>& bins,
                         RadixSearch* search) {
  constexpr uint32_t kBinsPerThread = kRadixBins / kSelectThreads;
  const int64_t wanted = search->wanted;
  // Thread 0 has the highest bins.
  const uint32_t top = kRadixBins - 1 - simt::ThreadIndex() * kBinsPerThread;
  uint32_t counts[kBinsPerThread];
  uint32_t sum = 0;
  SIMT_UNROLL
  for (uint32_t i = 0; i < kBinsPerThread; ++i) {
    counts[i] = bins.Load(top - i);
    sum += counts[i];
  }
  uint32_t total;
  int64_t before = BlockPrefix(sum, kRadixBins * 4, &total);
  if (before >= wanted || before + sum < wanted) return;
  SIMT_UNROLL
  for (uint32_t i = 0; i < kBinsPerThread; ++i) {
    if (before < wanted && before + counts[i] >= wanted) {
      search->prefix |= (top - i) << RadixDigit<kDigit>::kShift;
      search->wanted = wanted - before;
      // Not 0 before: not all keys are wanted.
      if (kDigit == 2 && before + counts[i] == wanted) {
        --search->prefix;
        search->wanted = 0;
      }
    }
    before += counts[i];
  }
}

// Adds the bins of all blocks of a group up, in the last one's; whether this is
// that one. All threads of all blocks, kSelectThreads each: a number that is
// known here, so that a thread's exchanges are under way at a time.
SIMT_DEVICE bool SumBins(const SelectProblem& p, int64_t group,
                         uint32_t num_blocks,
                         const simt::SharedArray<uint32_t>& bins) {
  constexpr uint32_t kTurns = kRadixBins / kSelectThreads;
  static_assert(kTurns * kSelectThreads == kRadixBins);
  uint32_t* const histogram =
      p.histograms + group * kRadixBins + simt::ThreadIndex();
  uint32_t counts[kTurns];
  SIMT_UNROLL
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    counts[turn] = bins.Load(turn * kSelectThreads + simt::ThreadIndex());
  }
  SIMT_UNROLL
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    if (counts[turn] == 0) continue;
    simt::AtomicAdd(histogram + turn * kSelectThreads, counts[turn]);
  }
  if (!simt::LastBlockDone(p.counters + group, num_blocks)) return false;
  // Exchanged, not loaded: from where the atomics of other blocks went, and
  // back to zero for the next pass.
  SIMT_UNROLL
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    counts[turn] = simt::AtomicExchange(histogram + turn * kSelectThreads, 0u);
  }
  SIMT_UNROLL
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    bins.Store(turn * kSelectThreads + simt::ThreadIndex(), counts[turn]);
  }
  if (!BM_PLANTED(kSelectNoBarrierAfterSum)) simt::SyncBlock();
  return true;
}

// Grid: chunks.count. Searches of heads, or of scopes.
template <int kDigit, bool kSecond>
SIMT_KERNEL(kSelectThreads, 4)
void SelectRadixPass(SelectProblem p, bool of_scope) {
  simt::AwaitEarlierKernels();
  const ListSplit chunk = FindChunk(p);
  const int32_t head = chunk.list;
  const int32_t scope = p.heads[head].scope;
  const int64_t group = of_scope ? scope : p.num_scopes + head;
  const RadixSearch search = p.searches[group];
  if (search.mode != RadixSearch::kSearch) return;
  // Before the keys, which take longer: nobody waits for it then.
  uint32_t num_blocks = of_scope ? NumChunks(p, p.scopes[scope].first_head,
                                             p.scopes[scope].num_heads)
                                 : NumChunks(p, head, 1);
  const auto bins = simt::Shared<uint32_t>(0, kRadixBins);
  for (uint32_t i = simt::ThreadIndex(); i < kRadixBins;
       i += simt::NumThreads()) {
    bins.Store(i, 0);
  }
  if (!BM_PLANTED(kSelectNoBarrierAfterClear)) simt::SyncBlock();
  CountDigits<kDigit, kSecond>(p, chunk, of_scope, search, bins);
  if (!BM_PLANTED(kSelectNoBarrierBeforePick)) simt::SyncBlock();
  if (num_blocks > 1) {
    if (BM_PLANTED(kSelectPicksEarly)) --num_blocks;
    if (!SumBins(p, group, num_blocks, bins)) return;
  }
  PickBin<kDigit>(bins, p.searches + group);
}

inline constexpr uint32_t kRadixSharedBytes = kRadixBins * 4 + 64;

// Of a chunk of a head's pool, how much is above its scope's threshold and
// equal to it; adds to heads[].above and .equal. All threads of a block.
SIMT_DEVICE void CountAtCut(const SelectProblem& p, const ListSplit& chunk) {
  const int32_t head = chunk.list;
  SelectHead* state = p.heads + head;
  const RadixSearch search = p.searches[state->scope];
  const RadixSearch floor = state->floor;
  if (search.mode != RadixSearch::kSearch || floor.mode == RadixSearch::kAll) {
    return;
  }
  const int32_t begin = chunk.split * p.chunk_entries;
  const int32_t chunk_end = begin + p.chunk_entries;
  const int32_t end = chunk_end < state->num_past ? chunk_end : state->num_past;
  const bool has_floor = floor.mode == RadixSearch::kSearch;
  uint32_t above = 0;
  uint32_t equal = 0;
  const auto add = [&](uint32_t key) {
    if (has_floor && key > floor.prefix &&
        !BM_PLANTED(kSelectFloorCountsTwice)) {
      return;
    }
    above += key > search.prefix ? 1 : 0;
    equal += key == search.prefix ? 1 : 0;
  };
  ForEachKey<false>(p, head, state->num_sinks + begin, state->num_sinks + end,
                    add);
  if (has_floor && begin == 0 && simt::ThreadIndex() == 0) {
    const auto taken = static_cast<uint32_t>(floor.wanted);
    above -= floor.prefix > search.prefix ? taken : 0;
    equal -= floor.prefix == search.prefix ? taken : 0;
  }
  above = WarpSum(above);
  equal = WarpSum(equal);
  if (simt::Lane() != 0) return;
  // As signed numbers: the warp that subtracts may be below zero.
  const auto widen = [](uint32_t count) {
    return static_cast<uint64_t>(
        static_cast<int64_t>(static_cast<int32_t>(count)));
  };
  simt::AtomicAdd(reinterpret_cast<uint64_t*>(&state->above), widen(above));
  simt::AtomicAdd(reinterpret_cast<uint64_t*>(&state->equal), widen(equal));
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
  static_assert(kSelectThreads == kPrefixThreads);
  const auto num_entries =
      static_cast<int32_t>(p.offsets[head + 1] - p.offsets[head]);
  const int32_t num_words = (num_entries + 31) / 32;
  const int64_t first_word = SurvivorWord(p.offsets[head], head);
  const uint32_t* const ties = p.ties + first_word;
  uint32_t* const survivors = p.survivors + first_word;
  for (int32_t base = 0; base < num_words && wanted > 0;
       base += WordTurn::kStep) {
    const WordTurn turn(base, num_words, [&](int32_t i) { return ties[i]; });
    int64_t left = wanted - turn.before;
    SIMT_UNROLL
    for (int32_t k = 0; k < WordTurn::kSize; ++k) {
      if (left > 0 && turn.words[k] != 0) {
        survivors[turn.first + k] |= LowestBits(turn.words[k], left);
      }
      left -= simt::PopCount(turn.words[k]);
    }
    if (!BM_PLANTED(kSelectForgetsEarlierTies)) wanted -= turn.total;
  }
}

// Grid: chunks.count. Writes the survivors of a chunk, a word per warp and
// turn. Where not all entries equal to the threshold survive, the head's last
// block takes those at the lowest positions.
template <bool kSecond>
SIMT_KERNEL(kSelectThreads, 4)
void SelectEmit(SelectProblem p) {
  simt::AwaitEarlierKernels();
  constexpr int32_t kLanes = simt::kWarpThreads;
  const ListSplit mine = FindChunk(p);
  const int32_t head = mine.list;
  const SelectHead state = p.heads[head];
  const RadixSearch search = p.searches[p.num_scopes + head];
  // Words behind the last candidate's are written, too.
  const auto num_entries =
      static_cast<int32_t>(p.offsets[head + 1] - p.offsets[head]);
  const int32_t chunk = mine.split * p.chunk_entries;
  if (chunk >= num_entries) return;
  const int32_t warp_entries =
      p.chunk_entries / static_cast<int32_t>(kSelectThreads / kLanes);
  const int32_t begin =
      chunk + static_cast<int32_t>(simt::Warp()) * warp_entries;
  const int32_t end =
      begin + warp_entries < num_entries ? begin + warp_entries : num_entries;
  const int32_t candidates = NumEntries(state);
  const int64_t first_word = SurvivorWord(p.offsets[head], head);
  const bool splits_ties =
      search.mode == RadixSearch::kSearch && search.wanted > 0;
  uint32_t num_nan = 0;
  for (int32_t first = begin; first < end; first += kKeyBatch * kLanes) {
    const KeyBatch<kSecond> batch(p, head,
                                  first + static_cast<int32_t>(simt::Lane()),
                                  kLanes, end < candidates ? end : candidates);
    // Nobody reads these words any more.
    simt::SyncWarp();
    SIMT_UNROLL
    for (int32_t k = 0; k < kKeyBatch; ++k) {
      const int32_t i = first + k * kLanes + static_cast<int32_t>(simt::Lane());
      const Standing standing = StandingOf(state, search, i, batch, k);
      const uint32_t above = simt::Ballot(standing == kAbove);
      const uint32_t ties = simt::Ballot(standing == kEqualTo);
      // Positions, which are keys where there are no scores, are no NaN.
      const bool is_nan = batch.exist[k] && batch.keys[k] == kNanKey;
      num_nan += simt::PopCount(simt::Ballot(is_nan));
      if (simt::Lane() != 0 || i >= end) continue;
      p.survivors[first_word + i / 32] = above;
      if (splits_ties) p.ties[first_word + i / 32] = ties;
    }
  }
  if (!kSecond && num_nan > 0 && simt::Lane() == 0) {
    simt::AtomicAdd(reinterpret_cast<uint64_t*>(p.num_nan), uint64_t{num_nan});
  }
  if (!splits_ties) return;
  uint32_t num_blocks = NumChunks(p, head, 1);
  if (BM_PLANTED(kSelectTakesTiesEarly) && num_blocks > 1) --num_blocks;
  if (simt::LastBlockDone(p.counters + p.num_scopes + head, num_blocks)) {
    TakeFirstTies(p, head, search.wanted);
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECT_RADIX_CUH_
