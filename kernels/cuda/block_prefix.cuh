// Sums over the threads of a warp, and prefix sums over the threads of a block.
#ifndef KERNELS_CUDA_BLOCK_PREFIX_CUH_
#define KERNELS_CUDA_BLOCK_PREFIX_CUH_

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// C. Returns the sum of all lanes' values, in every lane.
template <typename T>
SIMT_DEVICE T WarpSum(T value) {
  for (uint32_t mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
    value += simt::ShuffleXor(value, mask);
  }
  return value;
}

// C. Returns the sum of the values of this lane and of all lower lanes, in the
// first kLanes lanes.
template <uint32_t kLanes = simt::kWarpThreads, typename T>
SIMT_DEVICE T WarpPrefix(T value) {
  SIMT_UNROLL
  for (uint32_t delta = 1; delta < kLanes; delta *= 2) {
    const T below = simt::ShuffleUp(value, delta);
    if (simt::Lane() >= delta) value += below;
  }
  return value;
}

// The shared memory that a block of kThreads threads needs for prefix sums,
// bytes.
template <uint32_t kThreads>
inline constexpr uint32_t kPrefixBytesOf = kThreads / simt::kWarpThreads *
                                           sizeof(uint64_t);
// The shared memory of a block of the usual size.
inline constexpr uint32_t kPrefixThreads = 256;
inline constexpr uint32_t kPrefixSharedBytes = kPrefixBytesOf<kPrefixThreads>;

// Returns the sum of the values of all lower threads of the block. Sets *total
// to the sum of all threads. T has 4 or 8 bytes. Uses kPrefixBytesOf<kThreads>
// of shared memory at `offset`. All kThreads threads call it.
template <uint32_t kThreads = kPrefixThreads, typename T>
SIMT_DEVICE T BlockPrefix(T value, uint32_t offset, T* total) {
  constexpr uint32_t kWarps = kThreads / simt::kWarpThreads;
  static_assert(kWarps <= simt::kWarpThreads, "a lane per warp");
  const auto sums = simt::Shared<T>(offset, kWarps);
  const T sum = WarpPrefix(value);
  if (simt::Lane() == simt::kWarpThreads - 1) sums.Store(simt::Warp(), sum);
  simt::SyncBlock();
  const uint32_t lane = simt::Lane();
  const T others = WarpPrefix<kWarps>(lane < kWarps ? sums.Load(lane) : T{0});
  *total = simt::Shuffle(others, kWarps - 1);
  // The sum of the earlier warps; 0 in the first warp.
  T before = simt::Shuffle(others, simt::Warp() - (simt::Warp() > 0 ? 1 : 0));
  if (simt::Warp() == 0) before = 0;
  simt::SyncBlock();
  return before + sum - value;
}

// The words that a block takes in one turn, neighbouring words per thread: the
// bits set in the words before the thread's words, and in all words of the
// turn.
template <uint32_t kThreads, int32_t kWordsPerThread = 4>
struct WordTurn {
  static constexpr int32_t kSize = kWordsPerThread;
  static constexpr int32_t kStep = kSize * static_cast<int32_t>(kThreads);

  int32_t first;
  uint32_t words[kSize];
  uint32_t before;
  uint32_t total;

  // Takes the words base .. base + kStep - 1 that are below `count`. load(i)
  // returns word i. Uses the shared memory of BlockPrefix, at 0. All threads of
  // the block call it.
  template <typename Load>
  SIMT_DEVICE WordTurn(int32_t base, int32_t count, const Load& load)
      : first(base + kSize * static_cast<int32_t>(simt::ThreadIndex())) {
    uint32_t num_set = 0;
    SIMT_UNROLL
    for (int32_t k = 0; k < kSize; ++k) {
      words[k] = first + k < count ? load(first + k) : 0;
      num_set += static_cast<uint32_t>(simt::PopCount(words[k]));
    }
    before = BlockPrefix<kThreads>(num_set, 0, &total);
  }
};

// Returns the number of bits that are set in `count` words, in every thread. A
// block of kThreads threads calls it. Uses the shared memory of BlockPrefix, at
// 0.
template <uint32_t kThreads>
SIMT_DEVICE uint32_t CountBits(const uint32_t* words, uint32_t count) {
  constexpr uint32_t kBatch = 16;  // under way at a time
  uint32_t sum = 0;
  for (uint32_t first = simt::ThreadIndex(); first < count;
       first += kBatch * kThreads) {
    uint32_t batch[kBatch];
    SIMT_UNROLL
    for (uint32_t k = 0; k < kBatch; ++k) {
      const uint32_t i = first + k * kThreads;
      batch[k] = words[i < count ? i : first];
    }
    SIMT_UNROLL
    for (uint32_t k = 0; k < kBatch; ++k) {
      const bool exists = first + k * kThreads < count;
      sum += exists ? static_cast<uint32_t>(simt::PopCount(batch[k])) : 0;
    }
  }
  uint32_t total;
  BlockPrefix<kThreads>(sum, 0, &total);
  return total;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_BLOCK_PREFIX_CUH_
