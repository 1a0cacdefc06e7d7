// Threshold radix select: no sort, three passes over the keys with histograms
// of 11, 11 and 10 bits.
//
// A search is for the k best keys of a group: of one head, which is a block's
// (select_heads.cuh), or of all heads of a scope, which is that of many blocks
// and a kernel per pass (select_scopes.cuh).
#ifndef KERNELS_CUDA_SELECTION_SELECT_RADIX_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_RADIX_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// A digit of the keys, the highest first, and those known before it is picked.
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
  // Whether the digits before this one are those of the prefix.
  SIMT_DEVICE static bool Follows(uint32_t key, uint32_t prefix) {
    return ((key ^ prefix) & kKnown) == 0;
  }
};

// Shared memory of a block that searches: bins, sums of its warps, a pick.
inline constexpr uint32_t kRadixPrefixAt = kRadixBins * 4;
inline constexpr uint32_t kRadixPickAt =
    kRadixPrefixAt + kPrefixBytesOf<kSelectHeadThreads>;
inline constexpr uint32_t kRadixSharedBytes = kRadixPickAt + 16;

SIMT_DEVICE simt::SharedArray<uint32_t> RadixBins() {
  return simt::Shared<uint32_t>(0, kRadixBins);
}

// Zeros before the first digit. All threads of a block; a barrier.
SIMT_DEVICE void ClearBins() {
  const auto fours = simt::Shared<simt::Vector16>(0, kRadixBins / 4);
  for (uint32_t i = simt::ThreadIndex(); i < kRadixBins / 4;
       i += simt::NumThreads()) {
    fours.Store(i, {});
  }
  simt::SyncBlock();
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

// The bin where a group's wanted best end.
struct BinPick {
  uint32_t bin;
  uint32_t wanted;  // of the bin's keys: not 0
  bool whole;       // which are all of them
};

// Of bins that hold all keys of a group, those of a thread, the highest first,
// and how many keys are in higher ones: all that is to be known before it is
// known how many keys are wanted.
template <int kDigit, uint32_t kThreads>
struct BinSums {
  static constexpr uint32_t kBins = RadixDigit<kDigit>::kBins;
  static constexpr uint32_t kBinsPerThread = kBins / kThreads;
  static_assert(kBinsPerThread * kThreads == kBins);

  uint32_t counts[kBinsPerThread];
  uint32_t before;

  // Leaves the bins zero. All kThreads threads of a block; barriers.
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

  // Where the `wanted` best end, in every thread. All threads; a barrier.
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

// The pick for the `wanted` best, in every thread, where the bins hold all keys
// of the group; they are zero afterwards. All kThreads threads of a block.
template <int kDigit, uint32_t kThreads>
SIMT_DEVICE BinPick PickBin(int64_t wanted) {
  BinSums<kDigit, kThreads> sums;
  sums.Take();
  return sums.Pick(wanted);
}

// Adds a digit to what a search knows.
template <int kDigit>
SIMT_DEVICE void Narrow(const BinPick& pick, RadixSearch* search) {
  search->prefix |= pick.bin << RadixDigit<kDigit>::kShift;
  search->wanted = pick.wanted;
  // Not 0 before: not all keys are wanted.
  if (RadixDigit<kDigit>::kIsLast && pick.whole) {
    --search->prefix;
    search->wanted = 0;
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_RADIX_CUH_
