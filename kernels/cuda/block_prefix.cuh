// Sums over the threads of a warp, and prefix sums over those of a block.
#ifndef KERNELS_CUDA_BLOCK_PREFIX_CUH_
#define KERNELS_CUDA_BLOCK_PREFIX_CUH_

#include <cstdint>

#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// C. The sum of all lanes' values, in every lane.
template <typename T>
SIMT_DEVICE T WarpSum(T value) {
  for (uint32_t mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
    value += simt::ShuffleXor(value, mask);
  }
  return value;
}

// C. The sum of the values of this lane and of all lower ones, in the first
// kLanes lanes.
template <uint32_t kLanes = simt::kWarpThreads, typename T>
SIMT_DEVICE T WarpPrefix(T value) {
  SIMT_UNROLL
  for (uint32_t delta = 1; delta < kLanes; delta *= 2) {
    const T below = simt::ShuffleUp(value, delta);
    if (simt::Lane() >= delta) value += below;
  }
  return value;
}

// Shared memory that a block of so many threads needs for them.
template <uint32_t kThreads>
inline constexpr uint32_t kPrefixBytesOf = kThreads / simt::kWarpThreads *
                                           sizeof(uint64_t);
// What most blocks have.
inline constexpr uint32_t kPrefixThreads = 256;
inline constexpr uint32_t kPrefixSharedBytes = kPrefixBytesOf<kPrefixThreads>;

// Sum of the values of all lower threads of the block, and of all; T of 4 or 8
// bytes. Uses kPrefixBytesOf<kThreads> of shared memory at `offset`. All
// kThreads threads.
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
  // Of the warps before this one; the first gets nothing.
  T before = simt::Shuffle(others, simt::Warp() - (simt::Warp() > 0 ? 1 : 0));
  if (simt::Warp() == 0) before = 0;
  simt::SyncBlock();
  return before + sum - value;
}

// Words that a block takes in a turn, neighbouring ones to a thread, and how
// many bits are set in the turn's words before the thread's, and in all.
template <uint32_t kThreads>
struct WordTurn {
  static constexpr int32_t kSize = 4;  // of a thread
  static constexpr int32_t kStep = kSize * static_cast<int32_t>(kThreads);

  int32_t first;
  uint32_t words[kSize];
  uint32_t before;
  uint32_t total;

  // Of words base .. base + kStep - 1, those below `count`; load(i) is word i.
  // Shared memory as BlockPrefix, at 0. All threads of a block.
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

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_BLOCK_PREFIX_CUH_
