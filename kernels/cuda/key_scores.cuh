// Kernels of key_scores.h.
#ifndef KERNELS_CUDA_KEY_SCORES_CUH_
#define KERNELS_CUDA_KEY_SCORES_CUH_

#include <cstdint>

#include "kernels/cuda/entry_rows.cuh"
#include "kernels/cuda/key_scores.h"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/row_lanes.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

template <int kDim>
inline constexpr int32_t kSumSharedBytes = kSplitThreads / 32 * kDim * 4;

// Grid: {num_splits, lists}. Shared memory: kSumSharedBytes.
template <typename T, int kDim>
SIMT_KERNEL(kSplitThreads, 4)
void SumKeys(KeyScoreParams params) {
  using Lanes = RowLanes<T, kDim>;
  const int32_t list = static_cast<int32_t>(simt::BlockY());
  const int32_t split = static_cast<int32_t>(simt::BlockX());
  if (!HasSplit(params.entries, list, split)) return;
  const EntrySpan entries = LoadEntries(params.entries, list);
  float sums[kChunk] = {};
  const float floor =
      params.anchor == KeyAnchor::kPairwise ? kKeyCosineFloor : kKeyAnchorFloor;
  ForEachRow<T, kDim>(
      params.pool, entries, RowPart::kKeys, split,
      [&](int32_t, const RowChunk<T>& chunk, bool exists) {
        float weight = 1.0f;
        if (params.anchor != KeyAnchor::kRaw) {
          float square = 0.0f;
          SIMT_UNROLL
          for (int i = 0; i < kChunk; ++i) square += chunk.x[i] * chunk.x[i];
          weight = 1.0f / AtLeast(simt::Sqrt(Lanes::Sum(square)), floor);
        }
        SIMT_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          if (exists) sums[i] += weight * chunk.x[i];
        }
      });
  const auto warps = simt::Shared<float>(0, kSplitThreads / 32 * kDim);
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
  float* out =
      params.partial_sums + (int64_t{list} * params.num_splits + split) * kDim;
  for (int32_t i = Thread(); i < kDim; i += kSplitThreads) {
    float sum = 0.0f;
    for (int32_t warp = 0; warp < kSplitThreads / 32; ++warp) {
      sum += warps.Load(warp * kDim + i);
    }
    out[i] = sum;
  }
}

inline constexpr int32_t kAnchorSharedBytes = kSplitThreads / 32 * 4;

// The mean of a list's keys in one channel.
template <int kDim>
SIMT_DEVICE float MeanOfKeys(const KeyScoreParams& params, int32_t list,
                             int32_t size, int32_t channel) {
  int32_t num_splits = (size + kSplitEntries - 1) / kSplitEntries;
  if (BM_PLANTED(kAnchorLosesSplit) && num_splits > 1) --num_splits;
  const float* sums =
      params.partial_sums + int64_t{list} * params.num_splits * kDim + channel;
  double sum = 0.0;
  SIMT_UNROLL_BY(8)
  for (int32_t split = 0; split < num_splits; ++split) {
    sum += static_cast<double>(sums[int64_t{split} * kDim]);
  }
  return static_cast<float>(sum / static_cast<double>(size));
}

// Grid: {lists}. Shared memory: kAnchorSharedBytes.
template <int kDim>
SIMT_KERNEL(kSplitThreads, 4)
void FinishAnchors(KeyScoreParams params) {
  const int32_t list = static_cast<int32_t>(simt::BlockX());
  const int32_t size = LoadEntries(params.entries, list).size;
  float* anchor = params.anchors + int64_t{list} * (kDim + 1);
  float square = 0.0f;
  for (int32_t i = Thread(); i < kDim; i += kSplitThreads) {
    const float x = params.anchor == KeyAnchor::kMedian
                        ? params.medians[int64_t{list} * kDim + i]
                        : MeanOfKeys<kDim>(params, list, size, i);
    anchor[i] = x;
    square += x * x;
  }
  SIMT_UNROLL
  for (uint32_t mask = 1; mask < 32; mask *= 2) {
    square += simt::ShuffleXor(square, mask);
  }
  const auto squares = simt::Shared<float>(0, kSplitThreads / 32);
  if (LaneIndex() == 0) squares.Store(WarpIndex(), square);
  simt::SyncBlock();
  if (Thread() != 0) return;
  float total = 0.0f;
  for (int32_t warp = 0; warp < kSplitThreads / 32; ++warp) {
    total += squares.Load(warp);
  }
  anchor[kDim] = params.anchor == KeyAnchor::kPairwise
                     ? 1.0f
                     : AtLeast(simt::Sqrt(total), kKeyCosineFloor);
}

// What of a key and the anchor a metric needs, over one lane's elements.
struct KeyProducts {
  float square = 0.0f;    // |k|^2
  float dot = 0.0f;       // <k, a>
  float distance = 0.0f;  // |k - a|^2
};

SIMT_DEVICE float KeyScore(KeyMetric metric, const KeyProducts& products,
                           float anchor_length) {
  switch (metric) {
    case KeyMetric::kCosine:
      return -products.dot /
             (AtLeast(simt::Sqrt(products.square), kKeyCosineFloor) *
              anchor_length);
    case KeyMetric::kDot:
      return -products.dot;
    case KeyMetric::kEuclidean:
      return simt::Sqrt(products.distance);
    case KeyMetric::kNorm:
      break;
  }
  return -simt::Sqrt(products.square);
}

// Grid: {num_splits, lists}.
template <typename T, int kDim>
SIMT_KERNEL(kSplitThreads, 4)
void CompareKeys(KeyScoreParams params) {
  using Lanes = RowLanes<T, kDim>;
  const int32_t list = static_cast<int32_t>(simt::BlockY());
  const int32_t split = static_cast<int32_t>(simt::BlockX());
  if (!HasSplit(params.entries, list, split)) return;
  const EntrySpan entries = LoadEntries(params.entries, list);
  const bool has_anchor = params.metric != KeyMetric::kNorm;
  float anchor[kChunk] = {};
  float anchor_length = 1.0f;
  if (has_anchor) {
    const float* row = params.anchors + int64_t{list} * (kDim + 1);
    SIMT_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      anchor[i] = row[LaneIndex() % Lanes::kRowLanes * kChunk + i];
    }
    anchor_length = row[kDim];
  }
  ForEachRow<T, kDim>(
      params.pool, entries, RowPart::kKeys, split,
      [&](int32_t entry, const RowChunk<T>& chunk, bool exists) {
        KeyProducts products;
        SIMT_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          const float x = chunk.x[i];
          products.square += x * x;
          products.dot += x * anchor[i];
          products.distance += (x - anchor[i]) * (x - anchor[i]);
        }
        products.square = Lanes::Sum(products.square);
        products.dot = Lanes::Sum(products.dot);
        if (params.metric == KeyMetric::kEuclidean) {
          products.distance = Lanes::Sum(products.distance);
        }
        if (exists && LaneIndex() % Lanes::kRowLanes == 0) {
          params.scores[entries.offset + entry] =
              KeyScore(params.metric, products, anchor_length);
        }
      });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_KEY_SCORES_CUH_
