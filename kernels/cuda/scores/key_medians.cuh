// The medians of normalized keys, per channel: keydiff's anchor=median of
// key_scores.h.
#ifndef KERNELS_CUDA_SCORES_KEY_MEDIANS_CUH_
#define KERNELS_CUDA_SCORES_KEY_MEDIANS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/row_lanes.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Grid: {row_splits.count}. Writes params.lengths.
template <typename T, int kDim>
SIMT_KERNEL(kRowSplitThreads, 8)
void MeasureKeys(KeyScoreParams params) {
  simt::AwaitEarlierKernels();
  using Lanes = RowLanes<T, kDim>;
  const ListSplit mine = FindRowSplit(params.entries);
  const EntrySpan entries = LoadEntries(params.entries, mine.list);
  ForEachRow<T, kDim>(
      params.pool, entries, RowPart::kKeys, mine.split,
      [](int32_t, const RowChunk<T>& chunk, bool) {
        return Lanes::Sum(chunk.Square());
      },
      [&](int32_t entry, float square) {
        params.lengths[entries.offset + entry] =
            AtLeast(simt::Sqrt(square), kKeyAnchorFloor);
      });
}

// A CTA has the kChunk channels of one 16-byte piece of all rows. Each warp
// finds the median of one channel.
inline constexpr int32_t kMedianThreads = 32 * kChunk;
inline constexpr int32_t kMedianDigitBits = 8;
inline constexpr int32_t kMedianBins = 1 << kMedianDigitBits;

// The shared memory of FindMedians.
struct MedianMemory {
  simt::SharedArray<uint32_t> bins;      // [kChunk, kMedianBins]
  simt::SharedArray<uint32_t> prefixes;  // [kChunk], digits of keys so far
  simt::SharedArray<uint32_t> nans;      // a bit for each channel that has one

  SIMT_DEVICE MedianMemory()
      : bins(simt::Shared<uint32_t>(0, kChunk * kMedianBins)),
        prefixes(simt::Shared<uint32_t>(4 * kChunk * kMedianBins, kChunk)),
        nans(simt::Shared<uint32_t>(4 * kChunk * (kMedianBins + 1), 1)) {}
};
inline constexpr int32_t kMedianSharedBytes =
    4 * (kChunk * (kMedianBins + 1) + 1);

// The input of a CTA: one piece of all rows of a list.
template <int kDim>
struct MedianBlock {
  static constexpr uint32_t kChunks = kDim / kChunk;
  int32_t list = static_cast<int32_t>(simt::BlockX() / kChunks);
  int32_t chunk = static_cast<int32_t>(simt::BlockX() % kChunks);
  EntrySpan entries;

  SIMT_DEVICE explicit MedianBlock(const KeyScoreParams& params)
      : entries(LoadEntries(params.entries, list)) {}
};

// Calls use(keys) with the order keys of the CTA's channels for every entry of
// this thread.
template <typename T, int kDim, typename Use>
SIMT_DEVICE void ForEachChunkKeys(const KeyScoreParams& params,
                                  const MedianBlock<kDim>& block,
                                  const Use& use) {
  constexpr int kBatch = 4;  // rows of a thread under way
  const EntrySpan& entries = block.entries;
  const int64_t chunk_bytes = int64_t{block.chunk} * 16;
  for (int32_t first = Thread(); first < entries.size;
       first += kBatch * kMedianThreads) {
    simt::Vector16 rows[kBatch] = {};
    float lengths[kBatch] = {};
    SIMT_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      const int32_t entry = first + j * kMedianThreads;
      if (entry >= entries.size) continue;
      rows[j] = simt::LoadGlobal16(
          SlotAddress(params.pool, entries.slots[entry]) + chunk_bytes);
      lengths[j] = params.lengths[entries.offset + entry];
    }
    SIMT_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      if (first + j * kMedianThreads >= entries.size) continue;
      RowChunk<T> chunk;
      chunk.Unpack(rows[j]);
      uint32_t keys[kChunk];
      SIMT_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        keys[i] = OrderKey(chunk.x[i] / lengths[j]);
      }
      use(keys);
    }
  }
}

// Adds the digits at `shift` of the keys that have the prefix to the bins.
template <typename T, int kDim>
SIMT_DEVICE void CountMedianDigits(const KeyScoreParams& params,
                                   const MedianBlock<kDim>& block,
                                   uint32_t shift, const MedianMemory& memory) {
  constexpr uint32_t kFirstShift = 32 - kMedianDigitBits;
  const uint32_t known =
      shift == kFirstShift ? 0 : ~0u << (shift + kMedianDigitBits);
  uint32_t prefixes[kChunk];
  SIMT_UNROLL
  for (int i = 0; i < kChunk; ++i) prefixes[i] = memory.prefixes.Load(i);
  uint32_t nans = 0;
  ForEachChunkKeys<T>(params, block, [&](const uint32_t(&keys)[kChunk]) {
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      if (keys[i] == kNanKey) nans |= 1u << i;
      if (((keys[i] ^ prefixes[i]) & known) != 0) continue;
      memory.bins.AtomicAdd(
          i * kMedianBins + (keys[i] >> shift & (kMedianBins - 1)), 1u);
    }
  });
  if (shift == kFirstShift && nans != 0) memory.nans.AtomicOr(0, nans);
}

// C. For the warp's channel: returns the digit of the key that `rank` smaller
// keys precede. Subtracts the keys with lower digits from the rank, and clears
// the bins.
SIMT_DEVICE uint32_t PickMedianDigit(const MedianMemory& memory,
                                     uint32_t* rank) {
  constexpr int kLaneBins = kMedianBins / 32;
  const uint32_t first = simt::Warp() * kMedianBins + simt::Lane() * kLaneBins;
  uint32_t counts[kLaneBins];
  uint32_t sum = 0;
  SIMT_UNROLL
  for (int i = 0; i < kLaneBins; ++i) {
    counts[i] = memory.bins.Load(first + i);
    memory.bins.Store(first + i, 0);
    sum += counts[i];
  }
  uint32_t before = sum;
  for (uint32_t delta = 1; delta < 32; delta *= 2) {
    const uint32_t below = simt::ShuffleUp(before, delta);
    if (simt::Lane() >= delta) before += below;
  }
  before -= sum;
  const bool mine = before <= *rank && *rank - before < sum;
  uint32_t digit = simt::Lane() * kLaneBins;
  SIMT_UNROLL
  for (int i = 0; i < kLaneBins - 1; ++i) {
    if (*rank - before < counts[i]) break;
    before += counts[i];
    ++digit;
  }
  const uint32_t source =
      static_cast<uint32_t>(simt::FirstBit(simt::Ballot(mine)));
  *rank -= simt::Shuffle(before, source);
  return simt::Shuffle(digit, source);
}

// Grid: {lists * kDim / kChunk}. Shared memory: kMedianSharedBytes. Writes
// params.medians. The median of an even number of values is the mean of the
// middle two. If one value is NaN, the median is NaN.
template <typename T, int kDim>
SIMT_KERNEL(kMedianThreads, 2)
void FindMedians(KeyScoreParams params) {
  simt::AwaitEarlierKernels();
  const MedianBlock<kDim> block(params);
  const int32_t size = block.entries.size;
  if (size == 0) return;
  const MedianMemory memory;
  for (int32_t i = Thread(); i < kChunk * kMedianBins; i += kMedianThreads) {
    memory.bins.Store(i, 0);
  }
  if (Thread() < kChunk) memory.prefixes.Store(Thread(), 0);
  if (Thread() == 0) memory.nans.Store(0, 0);
  // The upper of the middle two values, in the warp's channel.
  uint32_t rank = static_cast<uint32_t>(size) / 2;
  uint32_t upper = 0;
  for (int32_t shift = 32 - kMedianDigitBits; shift >= 0;
       shift -= kMedianDigitBits) {
    // The bins are clear and the prefixes are written.
    simt::SyncBlock();
    CountMedianDigits<T>(params, block, static_cast<uint32_t>(shift), memory);
    simt::SyncBlock();
    upper |= PickMedianDigit(memory, &rank) << shift;
    if (LaneIndex() == 0) memory.prefixes.Store(WarpIndex(), upper);
  }
  simt::SyncBlock();
  // The largest smaller value is the lower of the middle two, unless both are
  // equal.
  if (size % 2 == 0) {
    uint32_t prefixes[kChunk];
    uint32_t largest[kChunk] = {};
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) prefixes[i] = memory.prefixes.Load(i);
    ForEachChunkKeys<T>(params, block, [&](const uint32_t(&keys)[kChunk]) {
      SIMT_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        const bool below = keys[i] < prefixes[i];
        if (below && keys[i] > largest[i]) largest[i] = keys[i];
      }
    });
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) memory.bins.AtomicMax(i, largest[i]);
    simt::SyncBlock();
  }
  if (LaneIndex() != 0) return;
  const bool same = size % 2 == 1 || rank > 0;
  const double high = static_cast<double>(NumberOfKey(upper));
  const double low =
      same ? high
           : static_cast<double>(NumberOfKey(memory.bins.Load(simt::Warp())));
  const bool has_nan = (memory.nans.Load(0) >> WarpIndex() & 1u) != 0;
  params.medians[int64_t{simt::BlockX()} * kChunk + WarpIndex()] =
      has_nan ? NAN : static_cast<float>((low + high) / 2.0);
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_KEY_MEDIANS_CUH_
