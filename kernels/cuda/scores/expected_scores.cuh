// The kernels of expected_scores.h.
#ifndef KERNELS_CUDA_SCORES_EXPECTED_SCORES_CUH_
#define KERNELS_CUDA_SCORES_EXPECTED_SCORES_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/expected_scores.h"
#include "kernels/cuda/scores/row_lanes.cuh"
#include "kernels/cuda/scores/row_products.cuh"
#include "kernels/cuda/scores/row_stats.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Adds k_n (mean_n + factor (S k)_n) of the 128 columns of a block to the sums.
// The columns are those of two matrices side by side. The mean belongs to the
// first matrix. The elements of a key are read as an A operand, which has the
// same lanes as the products.
template <typename Shape, typename T, int kDim>
SIMT_DEVICE void AddForms(const float* mean, float factor, int32_t block,
                          ProductTiles<Shape>* tiles) {
  const T* const keys = reinterpret_cast<const T*>(simt::SharedBytes());
  const int32_t first_row = WarpIndex() / 2 * 64;
  const int32_t first_column =
      block * Shape::kColumns + WarpIndex() % 2 * (Shape::kColumns / 2);
  const int32_t first_k = first_column % kDim / 16;
  SIMT_UNROLL
  for (int n = 0; n < Shape::kNTiles; n += 2) {
    // Columns 16 k + 2 (lane % 4), the next, and those 8 further.
    float means[4] = {};
    if (first_column < kDim) {
      const float* from = mean + first_column + n * 8 + LaneIndex() % 4 * 2;
      SIMT_UNROLL
      for (int i = 0; i < 4; ++i) means[i] = from[i / 2 * 8 + i % 2];
    }
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      uint32_t a[4];
      LoadRowsA<kDim>(keys, first_row + m * 16, first_k + n / 2, a);
      SIMT_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int tile = i / 4;      // of columns
        const int half = i / 2 % 2;  // of rows
        const uint32_t word = a[tile * 2 + half] >> (i % 2 * 16);
        const float x = simt::ToFloat(T{static_cast<uint16_t>(word)});
        tiles->sums[m][half] +=
            x * (means[tile * 2 + i % 2] +
                 factor * tiles->products[m][n + tile][i % 4]);
      }
    }
  }
}

// Grid: {row_splits.count}. Shared memory: ProductShape::kSharedBytes.
template <typename T, int kDim>
SIMT_KERNEL(kProductThreads, 1)
void ExpectedLogits(ExpectedParams params) {
  simt::AwaitEarlierKernels();
  using Shape = ProductShape<T, kDim>;
  const ListSplit mine = FindRowSplit(params.entries);
  ProductRows rows;
  rows.pool = params.pool;
  rows.entries = LoadEntries(params.entries, mine.list);
  rows.begin = mine.split * kProductRows;
  const int64_t first_q_head = int64_t{mine.list} * params.group_size;
  const bool cov = params.covariances != nullptr;
  MatrixList<T> matrices;
  matrices.count = params.group_size;
  // Without covariances only the mean has blocks.
  matrices.num_columns = cov ? 2 * kDim : kDim;
  if (cov) {
    matrices.first = static_cast<const T*>(params.covariances) +
                     first_q_head * kDim * 2 * kDim;
  }
  const int32_t entry = rows.begin + Thread();
  float* const logits =
      params.logits + rows.entries.offset * params.group_size + entry;
  ForEachProduct<T, kDim>(
      rows, matrices,
      [&](int32_t matrix, int32_t block, ProductTiles<Shape>* tiles) {
        const int64_t q_head = first_q_head + matrix;
        const float factor =
            cov ? 0.5f * params.scale * params.units[q_head] : 0.0f;
        AddForms<Shape, T, kDim>(params.means + q_head * kDim, factor, block,
                                 tiles);
      },
      [&](int32_t q_head, float sum) {
        if (entry >= rows.entries.size) return;
        logits[int64_t{q_head} * rows.entries.size] =
            sum * params.scale * kLog2E;
      });
}

// Grid: {lists * group_size}. Shared memory: kExpectedStatsBytes.
inline constexpr int32_t kExpectedStatsThreads = 256;
inline constexpr int32_t kExpectedStatsBytes = kExpectedStatsThreads / 32 * 8;

SIMT_KERNEL(kExpectedStatsThreads, 4)
void ExpectedStats(ExpectedParams params) {
  simt::AwaitEarlierKernels();
  constexpr int32_t kWarps = kExpectedStatsThreads / 32;
  constexpr int kBatch = 4;  // loads under way
  const int32_t row = static_cast<int32_t>(simt::BlockX());
  const int32_t list = row / params.group_size;
  const int32_t q_head = row - list * params.group_size;
  const EntrySpan entries = LoadEntries(params.entries, list);
  const int32_t num_sinks = entries.CountBelow(params.n_sink);
  const float* const logits = params.logits +
                              entries.offset * params.group_size +
                              int64_t{q_head} * entries.size;
  RowStats total;
  for (int32_t first = num_sinks + Thread(); first < entries.size;
       first += kBatch * kExpectedStatsThreads) {
    float x[kBatch];
    RowStats part;
    SIMT_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const int32_t entry = first + i * kExpectedStatsThreads;
      x[i] = entry < entries.size ? logits[entry] : -INFINITY;
      part.max = fmaxf(part.max, x[i]);
    }
    const float base = FiniteMax(part.max);
    SIMT_UNROLL
    for (int i = 0; i < kBatch; ++i) part.sum += simt::Exp2(x[i] - base);
    total.Add(part);
  }
  total = SumOverLanes(total, 16);
  const auto maxima = simt::Shared<float>(0, kWarps);
  const auto sums = simt::Shared<float>(4 * kWarps, kWarps);
  if (LaneIndex() == 0) {
    maxima.Store(WarpIndex(), total.max);
    sums.Store(WarpIndex(), total.sum);
  }
  simt::SyncBlock();
  if (Thread() != 0) return;
  for (int32_t warp = 1; warp < kWarps; ++warp) {
    RowStats part;
    part.max = maxima.Load(warp);
    part.sum = sums.Load(warp);
    total.Add(part);
  }
  params.lse[row] = total.Lse();
}

// The weights of an entry and the size of its value.
struct ExpectedWeight {
  float sum = 0.0f;     // over query heads
  float square = 0.0f;  // |v|^2
};

// Grid: {row_splits.count}. The lanes that hold the row of an entry share its
// query heads.
template <typename T, int kDim>
SIMT_KERNEL(kRowSplitThreads, 8)
void ExpectedScores(ExpectedParams params) {
  simt::AwaitEarlierKernels();
  using Lanes = RowLanes<T, kDim>;
  const ListSplit mine = FindRowSplit(params.entries);
  const EntrySpan entries = LoadEntries(params.entries, mine.list);
  const float* const logits =
      params.logits + entries.offset * params.group_size;
  const float* const lse = params.lse + int64_t{mine.list} * params.group_size;
  const int32_t row_lane = LaneIndex() % Lanes::kRowLanes;
  ForEachRow<T, kDim>(
      params.pool, entries, params.vnorm ? RowPart::kValues : RowPart::kNone,
      mine.split,
      [&](int32_t entry, const RowChunk<T>& value, bool exists) {
        ExpectedWeight weight;
        for (int32_t g = row_lane; exists && g < params.group_size;
             g += Lanes::kRowLanes) {
          weight.sum +=
              simt::Exp2(logits[int64_t{g} * entries.size + entry] - lse[g]);
        }
        weight.sum = Lanes::Sum(weight.sum);
        weight.square = Lanes::Sum(value.Square());
        return weight;
      },
      [&](int32_t entry, const ExpectedWeight& weight) {
        float score = weight.sum / static_cast<float>(params.group_size);
        if (params.vnorm) {
          score = (score + params.eps) * simt::Sqrt(weight.square);
        }
        params.scores[entries.offset + entry] =
            entries.positions[entry] < params.n_sink ? INFINITY : score;
      });
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_EXPECTED_SCORES_CUH_
