// The kernels of key_scores.h.
#ifndef KERNELS_CUDA_SCORES_KEY_SCORES_CUH_
#define KERNELS_CUDA_SCORES_KEY_SCORES_CUH_

#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/key_scores.h"
#include "kernels/cuda/scores/row_lanes.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <int kDim>
inline constexpr int32_t kSumSharedBytes = kRowSplitThreads / 32 * kDim * 4;

// Grid: {row_splits.count}. Shared memory: kSumSharedBytes.
template <typename T, int kDim>
SIMT_KERNEL(kRowSplitThreads, 8)
void SumKeys(KeyScoreParams params) {
  simt::AwaitEarlierKernels();
  using Lanes = RowLanes<T, kDim>;
  const ListSplit mine = FindRowSplit(params.entries);
  const EntrySpan entries = LoadEntries(params.entries, mine.list);
  float sums[kChunk] = {};
  const bool raw = params.anchor == KeyAnchor::kRaw;
  const float largest_weight =
      1.0f / (params.anchor == KeyAnchor::kPairwise ? kKeyCosineFloor
                                                    : kKeyAnchorFloor);
  ForEachRow<T, kDim>(
      params.pool, entries, RowPart::kKeys, mine.split,
      [&](int32_t, const RowChunk<T>& chunk, bool exists) {
        // ReverseSqrt takes the place of 1 / length, because no row should wait
        // for the branches of a division. NaN is kept.
        float weight = simt::ReverseSqrt(Lanes::Sum(chunk.Square()));
        if (weight > largest_weight) weight = largest_weight;
        if (raw) weight = 1.0f;
        SIMT_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          if (exists) sums[i] += weight * chunk.x[i];
        }
        return 0;
      },
      [](int32_t, int) {});
  const auto warps = simt::Shared<float>(0, kRowSplitThreads / 32 * kDim);
  SIMT_UNROLL
  for (int i = 0; i < kChunk; ++i) {
    for (int mask = Lanes::kRowLanes; mask < 32; mask *= 2) {
      sums[i] += simt::ShuffleXor(sums[i], static_cast<uint32_t>(mask));
    }
    if (LaneIndex() < Lanes::kRowLanes) {
      warps.Store(WarpIndex() * kDim + LaneIndex() * kChunk + i, sums[i]);
    }
  }
  simt::SyncBlock();
  float* out = params.partial_sums + int64_t{simt::BlockX()} * kDim;
  for (int32_t i = Thread(); i < kDim; i += kRowSplitThreads) {
    float sum = 0.0f;
    for (int32_t warp = 0; warp < kRowSplitThreads / 32; ++warp) {
      sum += warps.Load(warp * kDim + i);
    }
    out[i] = sum;
  }
}

// FinishAnchors: several threads add up a channel. Each takes every 16th, 8th
// or 4th split.
inline constexpr int32_t kAnchorThreads = 1024;
inline constexpr int32_t kAnchorSharedBytes =
    kAnchorThreads * 8 + kAnchorThreads / 32 * 4;

// Returns this thread's part of the sum of a list's keys in a channel.
template <int kDim>
SIMT_DEVICE double PartOfSum(const KeyScoreParams& params, int32_t list) {
  const int32_t begin = params.entries.row_splits.offsets[list];
  const int32_t end = params.entries.row_splits.offsets[list + 1];
  const float* sums = params.partial_sums + Thread() % kDim;
  double sum = 0.0;
  SIMT_UNROLL_BY(8)
  for (int32_t split = begin + Thread() / kDim; split < end;
       split += kAnchorThreads / kDim) {
    sum += static_cast<double>(sums[int64_t{split} * kDim]);
  }
  return sum;
}

// Grid: {lists}. Shared memory: kAnchorSharedBytes.
template <int kDim>
SIMT_KERNEL(kAnchorThreads, 1)
void FinishAnchors(KeyScoreParams params) {
  simt::AwaitEarlierKernels();
  const int32_t list = static_cast<int32_t>(simt::BlockX());
  const int32_t size = LoadEntries(params.entries, list).size;
  const bool median = params.anchor == KeyAnchor::kMedian;
  const auto parts = simt::Shared<double>(0, kAnchorThreads);
  const auto squares =
      simt::Shared<float>(kAnchorThreads * 8, kAnchorThreads / 32);
  if (!median) parts.Store(Thread(), PartOfSum<kDim>(params, list));
  simt::SyncBlock();
  float* anchor = params.anchors + int64_t{list} * (kDim + 1);
  float x = 0.0f;
  if (Thread() < kDim && median) {
    x = params.medians[int64_t{list} * kDim + Thread()];
  } else if (Thread() < kDim) {
    double sum = 0.0;
    SIMT_UNROLL
    for (int32_t part = Thread(); part < kAnchorThreads; part += kDim) {
      sum += parts.Load(part);
    }
    x = static_cast<float>(sum / static_cast<double>(size));
  }
  if (Thread() < kDim) anchor[Thread()] = x;
  float square = x * x;
  SIMT_UNROLL
  for (uint32_t mask = 1; mask < 32; mask *= 2) {
    square += simt::ShuffleXor(square, mask);
  }
  if (LaneIndex() == 0) squares.Store(WarpIndex(), square);
  simt::SyncBlock();
  if (Thread() != 0) return;
  float total = 0.0f;
  SIMT_UNROLL
  for (int32_t warp = 0; warp < kDim / 32; ++warp) total += squares.Load(warp);
  anchor[kDim] = params.anchor == KeyAnchor::kPairwise
                     ? 1.0f
                     : AtLeast(simt::Sqrt(total), kKeyCosineFloor);
}

// The values of a key and the anchor that a metric needs. The other values are
// zero.
struct KeyProducts {
  float square = 0.0f;    // |k|^2
  float dot = 0.0f;       // <k, a>
  float distance = 0.0f;  // |k - a|^2
};

template <int kDim, KeyMetric kMetric>
SIMT_DEVICE float KeyScore(const KeyScoreParams& params, int32_t list,
                           const KeyProducts& products) {
  switch (kMetric) {
    case KeyMetric::kCosine:
      // The anchor's length is loaded here, which saves a register while rows
      // are under way.
      return -products.dot /
             (AtLeast(simt::Sqrt(products.square), kKeyCosineFloor) *
              params.anchors[int64_t{list} * (kDim + 1) + kDim]);
    case KeyMetric::kDot:
      return -products.dot;
    case KeyMetric::kEuclidean:
      return simt::Sqrt(products.distance);
    case KeyMetric::kNorm:
      break;
  }
  return -simt::Sqrt(products.square);
}

// Grid: {row_splits.count}.
template <typename T, int kDim, KeyMetric kMetric>
SIMT_KERNEL(kRowSplitThreads, 8)
void CompareKeys(KeyScoreParams params) {
  simt::AwaitEarlierKernels();
  using Lanes = RowLanes<T, kDim>;
  const ListSplit mine = FindRowSplit(params.entries);
  const EntrySpan entries = LoadEntries(params.entries, mine.list);
  float anchor[kChunk] = {};
  if constexpr (kMetric != KeyMetric::kNorm) {
    const float* row = params.anchors + int64_t{mine.list} * (kDim + 1);
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      anchor[i] = row[LaneIndex() % Lanes::kRowLanes * kChunk + i];
    }
  }
  ForEachRow<T, kDim>(
      params.pool, entries, RowPart::kKeys, mine.split,
      [&](int32_t, const RowChunk<T>& chunk, bool) {
        float square = 0.0f;
        float dot = 0.0f;
        float distance = 0.0f;
        SIMT_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          const float x = chunk.x[i];
          square += x * x;
          dot += x * anchor[i];
          distance += (x - anchor[i]) * (x - anchor[i]);
        }
        KeyProducts sums;
        if constexpr (kMetric == KeyMetric::kEuclidean) {
          sums.distance = Lanes::Sum(distance);
        }
        if constexpr (kMetric == KeyMetric::kCosine ||
                      kMetric == KeyMetric::kNorm) {
          sums.square = Lanes::Sum(square);
        }
        if constexpr (kMetric == KeyMetric::kCosine ||
                      kMetric == KeyMetric::kDot) {
          sums.dot = Lanes::Sum(dot);
        }
        return sums;
      },
      [&](int32_t entry, const KeyProducts& sums) {
        params.scores[entries.offset + entry] =
            KeyScore<kDim, kMetric>(params, mine.list, sums);
      });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_KEY_SCORES_CUH_
