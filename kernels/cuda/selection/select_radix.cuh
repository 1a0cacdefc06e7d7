// Threshold radix select: three passes over the keys with histograms of 11, 11
// and 10 bits, without a sort.
//
// A search finds the k best keys of a group. If the group is one head, one
// block does the search (select_heads.cuh). If the group is one long head
// (select_divided.cuh) or all heads of a scope (select_scopes.cuh), many blocks
// do the search, with one kernel per pass.
#ifndef KERNELS_CUDA_SELECTION_SELECT_RADIX_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_RADIX_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// A digit of the keys. The highest digit is first. The digits before it are
// known.
template <int kDigit>
struct RadixDigit {
  static constexpr bool kIsLast = kDigit == 2;
  static constexpr uint32_t kShift = kDigit == 0 ? 21 : kDigit == 1 ? 10 : 0;
  static constexpr uint32_t kBins = kIsLast ? kLastRadixBins : kRadixBins;
  static constexpr uint32_t kKnown = kDigit == 0   ? 0
                                     : kDigit == 1 ? ~0u << 21
                                                   : ~0u << 10;

  SIMT_DEVICE static uint32_t Of(uint32_t key) {
    return key >> kShift & (kBins - 1);
  }
  // Returns whether the digits before this digit are those of the prefix.
  SIMT_DEVICE static bool Follows(uint32_t key, uint32_t prefix) {
    return ((key ^ prefix) & kKnown) == 0;
  }
};

// The shared memory of a block that searches: bins, the sums of its warps, a
// pick.
inline constexpr uint32_t kRadixPrefixAt = kRadixBins * 4;
inline constexpr uint32_t kRadixPickAt =
    kRadixPrefixAt + kPrefixBytesOf<kSelectHeadThreads>;
inline constexpr uint32_t kRadixSharedBytes = kRadixPickAt + 16;

SIMT_DEVICE simt::SharedArray<uint32_t> RadixBins() {
  return simt::Shared<uint32_t>(0, kRadixBins);
}

// Clears the bins before the first digit. All threads of a block call it.
// Contains a barrier.
SIMT_DEVICE void ClearBins() {
  const auto fours = simt::Shared<simt::Vector16>(0, kRadixBins / 4);
  for (uint32_t i = simt::ThreadIndex(); i < kRadixBins / 4;
       i += simt::num_threads()) {
    fours.Store(i, {});
  }
  simt::SyncBlock();
}

// Returns the search for the `wanted` best of `size` keys.
SIMT_DEVICE RadixSearch BeginSearch(int64_t wanted, int64_t size) {
  RadixSearch search = {};
  search.wanted = wanted;
  search.mode = wanted <= 0      ? RadixSearch::kNone
                : wanted >= size ? RadixSearch::kAll
                                 : RadixSearch::kSearch;
  return search;
}

// The bin in which the wanted best keys of a group end.
struct BinPick {
  uint32_t bin;
  uint32_t wanted;  // of the bin's keys: not 0
  bool whole;       // which are all of them
};

// The bins of a thread, the highest first, and the number of keys in higher
// bins. The bins hold all keys of a group. This much is known before the wanted
// number of keys is known.
template <int kDigit, uint32_t kThreads>
struct BinSums {
  static constexpr uint32_t kBins = RadixDigit<kDigit>::kBins;
  static constexpr uint32_t kBinsPerThread = kBins / kThreads;
  static_assert(kBinsPerThread * kThreads == kBins);

  uint32_t counts[kBinsPerThread];
  uint32_t before;

  // Clears the bins. All kThreads threads of a block call it. Contains
  // barriers.
  SIMT_DEVICE void Take() {
    const auto bins = RadixBins();
    uint32_t sum = 0;
    SIMT_UNROLL
    for (uint32_t i = 0; i < kBinsPerThread; ++i) {
      counts[i] = bins.Load(Top() - i);
      sum += counts[i];
      bins.Store(Top() - i, 0);
    }
    uint32_t total;
    before = BlockPrefix<kThreads>(sum, kRadixPrefixAt, &total);
  }

  // Stores the counts without the `best` best keys, in the bins. Calls
  // use(bin) in the thread that has the bin in which these end. All threads
  // call it. Contains a barrier.
  template <typename Use>
  SIMT_DEVICE void StoreWithout(int64_t best, const Use& use) const {
    int64_t left = best - before;
    SIMT_UNROLL
    for (uint32_t i = 0; i < kBinsPerThread; ++i) {
      if (left > 0 && left <= counts[i]) use(Top() - i);
      const uint32_t removed = left <= 0          ? 0
                               : left < counts[i] ? static_cast<uint32_t>(left)
                                                  : counts[i];
      RadixBins().Store(Top() - i, counts[i] - removed);
      left -= counts[i];
    }
    simt::SyncBlock();
  }

  // Returns the bin in which the `wanted` best keys end, in every thread. All
  // threads call it. Contains a barrier.
  SIMT_DEVICE BinPick Pick(int64_t wanted) const {
    const auto pick = simt::Shared<uint32_t>(kRadixPickAt, 3);
    int64_t above = before;
    SIMT_UNROLL
    for (uint32_t i = 0; i < kBinsPerThread; ++i) {
      if (above < wanted && above + counts[i] >= wanted) {
        pick.Store(0, Top() - i);
        pick.Store(1, static_cast<uint32_t>(wanted - above));
        pick.Store(2, counts[i]);
      }
      above += counts[i];
    }
    simt::SyncBlock();
    return {pick.Load(0), pick.Load(1), pick.Load(1) == pick.Load(2)};
  }

 private:
  // Thread 0 has the highest bins.
  SIMT_DEVICE static uint32_t Top() {
    return kBins - 1 - simt::ThreadIndex() * kBinsPerThread;
  }
};

// Returns the pick for the `wanted` best keys, in every thread. The bins hold
// all keys of the group and are zero afterwards. All kThreads threads of a
// block call it.
template <int kDigit, uint32_t kThreads>
SIMT_DEVICE BinPick PickBin(int64_t wanted) {
  BinSums<kDigit, kThreads> sums;
  sums.Take();
  return sums.Pick(wanted);
}

// Adds a digit to the state of a search.
template <int kDigit>
SIMT_DEVICE void Narrow(const BinPick& pick, RadixSearch* search) {
  search->prefix |= pick.bin << RadixDigit<kDigit>::kShift;
  search->wanted = pick.wanted;
  // The number was not 0 before, because not all keys are wanted.
  if (RadixDigit<kDigit>::kIsLast && pick.whole) {
    --search->prefix;
    search->wanted = 0;
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_RADIX_CUH_
