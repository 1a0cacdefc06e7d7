// Kernel of value_norm_scores.h.
#ifndef KERNELS_CUDA_VALUE_NORM_SCORES_CUH_
#define KERNELS_CUDA_VALUE_NORM_SCORES_CUH_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/entry_rows.cuh"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/planted_bugs.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/value_norm_scores.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Shared memory: kNormRows values, kStages slabs of kSlabRows x kColumns
// elements of the projection, and row sums. Eight warps: four by two, 64 values
// and 64 columns each.
template <typename T, int kDim>
struct NormShape {
  static constexpr int kColumns = 128;
  static constexpr int kSlabRows = 64;
  // 256 elements of values leave room for two.
  static constexpr int kStages = kDim == 256 ? 2 : 3;
  static constexpr int kSlabsPerBlock = kDim / kSlabRows;
  static constexpr int kSlabElements = kSlabRows * kColumns;
  static constexpr int kMTiles = 4;
  static constexpr int kNTiles = 8;
  static constexpr size_t kValueBytes = sizeof(T) * kNormRows * kDim;
  static constexpr size_t kSlabBytes = sizeof(T) * kStages * kSlabElements;
  static constexpr size_t kSharedBytes =
      kValueBytes + kSlabBytes + sizeof(float) * 2 * kNormRows;
  static_assert(kSharedBytes <= kMaxSharedBytes, "does not fit an SM");
};

// One slab: rows [64 part, 64 part + 64) of a query head's projection, columns
// [128 block, 128 block + 128).
struct NormSlab {
  int32_t q_head = 0;  // of the group
  int32_t block = 0;
  int32_t part = 0;
};

template <typename Shape>
SIMT_DEVICE NormSlab SlabAt(int32_t index, int32_t num_blocks) {
  NormSlab slab;
  slab.part = index % Shape::kSlabsPerBlock;
  const int32_t rest = index / Shape::kSlabsPerBlock;
  slab.block = rest % num_blocks;
  slab.q_head = rest / num_blocks;
  return slab;
}

// Columns beyond the last are zeros: they add nothing.
template <typename Shape, typename T, int kDim>
SIMT_DEVICE void CopySlab(const ValueNormParams& params, int32_t head,
                          const NormSlab& slab, T* to) {
  constexpr int kChunks = Shape::kColumns / kChunk;
  const int64_t q_head = int64_t{head} * params.group_size + slab.q_head;
  const T* matrix =
      static_cast<const T*>(params.projection) +
      (q_head * kDim + slab.part * Shape::kSlabRows) * params.model_dim;
  SIMT_UNROLL
  for (int i = 0; i < Shape::kSlabRows * kChunks / kNormThreads; ++i) {
    const int32_t element = i * kNormThreads + Thread();
    const int32_t row = element / kChunks;
    const int32_t chunk = element % kChunks;
    const int64_t column =
        int64_t{slab.block} * Shape::kColumns + chunk * kChunk;
    const bool exists =
        column < params.model_dim - (BM_PLANTED(kNormLosesColumns) ? 8 : 0);
    const T* from = exists ? matrix + row * params.model_dim + column : matrix;
    simt::CopyAsync16(to + SwizzledChunk<Shape::kColumns>(row, chunk), from,
                      exists);
  }
}

template <typename Shape>
struct NormTiles {
  float products[Shape::kMTiles][Shape::kNTiles][4];
  float sums[Shape::kMTiles][2];  // rows lane / 4 and + 8, this lane's columns

  SIMT_DEVICE void ResetProducts() {
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      SIMT_UNROLL
      for (int n = 0; n < Shape::kNTiles; ++n) {
        SIMT_UNROLL
        for (int j = 0; j < 4; ++j) products[m][n][j] = 0.0f;
      }
    }
  }
  SIMT_DEVICE void ResetSums() {
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) sums[m][0] = sums[m][1] = 0.0f;
  }
  SIMT_DEVICE void AddProducts(bool l2) {
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      SIMT_UNROLL
      for (int n = 0; n < Shape::kNTiles; ++n) {
        SIMT_UNROLL
        for (int j = 0; j < 4; ++j) {
          const float x = products[m][n][j];
          sums[m][j / 2] += l2 ? x * x : fabsf(x);
        }
      }
    }
  }
};

template <typename Shape, typename T, int kDim>
SIMT_DEVICE void MultiplySlab(const T* values, const T* slab, int32_t part,
                              NormTiles<Shape>* tiles) {
  const int32_t first_row = WarpIndex() / 2 * 64;
  const int32_t first_chunk = WarpIndex() % 2 * 8;
  SIMT_UNROLL
  for (int k = 0; k < Shape::kSlabRows / 16; ++k) {
    uint32_t a[Shape::kMTiles][4];
    SIMT_UNROLL
    for (int m = 0; m < Shape::kMTiles; ++m) {
      LoadRowsA<kDim>(values, first_row + m * 16,
                      part * (Shape::kSlabRows / 16) + k, a[m]);
    }
    SIMT_UNROLL
    for (int n = 0; n < Shape::kNTiles; n += 2) {
      uint32_t b[4];
      LoadColumnsB<Shape::kColumns>(slab, k * 16, first_chunk + n, b);
      SIMT_UNROLL
      for (int m = 0; m < Shape::kMTiles; ++m) {
        simt::Mma16816<T>(tiles->products[m][n], a[m], b[0], b[1]);
        simt::Mma16816<T>(tiles->products[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// One query head's norms: sums over the lanes of a row, then over the two warps
// that share it. Thread r gets the norm of value r.
template <typename Shape>
SIMT_DEVICE float FinishNorm(const ValueNormParams& params,
                             const NormTiles<Shape>& tiles) {
  const auto sums = simt::Shared<float>(Shape::kValueBytes + Shape::kSlabBytes,
                                        2 * kNormRows);
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum = SumOverColumns(tiles.sums[m][half]);
      const int32_t row =
          WarpIndex() / 2 * 64 + m * 16 + LaneIndex() / 4 + half * 8;
      if (LaneIndex() % 4 == 0) {
        sums.Store(WarpIndex() % 2 * kNormRows + row, sum);
      }
    }
  }
  simt::SyncBlock();
  const float sum = sums.Load(Thread()) + sums.Load(kNormRows + Thread());
  return params.l2 ? simt::Sqrt(sum) : sum;
}

// Grid: {entries of the longest list / kNormRows, rounded up; lists}.
template <typename T, int kDim>
SIMT_KERNEL(kNormThreads, 1)
void ValueNorms(ValueNormParams params) {
  using Shape = NormShape<T, kDim>;
  const int32_t list = static_cast<int32_t>(simt::BlockY());
  const EntrySpan entries = LoadEntries(params.entries, list);
  const int32_t begin = static_cast<int32_t>(simt::BlockX()) * kNormRows;
  if (begin >= entries.size) return;
  const int32_t head = list % params.entries.num_heads;
  T* const values = reinterpret_cast<T*>(simt::SharedBytes());
  T* const slabs = values + kNormRows * kDim;
  for (int32_t row = WarpIndex() * 32; row < WarpIndex() * 32 + 32; row += 16) {
    CopyEntryRows<kDim>(params.pool, entries, begin + row, entries.size,
                        params.pool.view.kv_stride, values, row);
  }
  const int32_t num_blocks = static_cast<int32_t>(
      (params.model_dim + Shape::kColumns - 1) / Shape::kColumns);
  const int32_t num_slabs =
      params.group_size * num_blocks * Shape::kSlabsPerBlock;
  const auto copy = [&](int32_t index) {
    if (index < num_slabs) {
      CopySlab<Shape, T, kDim>(
          params, head, SlabAt<Shape>(index, num_blocks),
          slabs + index % Shape::kStages * Shape::kSlabElements);
    }
    simt::CommitCopies();  // the first group holds the values too
  };
  for (int32_t i = 0; i < Shape::kStages - 1; ++i) copy(i);
  NormTiles<Shape> tiles;
  tiles.ResetProducts();
  tiles.ResetSums();
  const int32_t entry = begin + Thread();
  float* const matrix = params.norms + entries.offset * params.group_size;
  float mean = 0.0f;
  for (int32_t index = 0; index < num_slabs; ++index) {
    simt::WaitCopies<Shape::kStages - 2>();
    if (!BM_PLANTED(kNoBarrierBeforeSlab)) simt::SyncBlock();
    copy(index + Shape::kStages - 1);
    const NormSlab slab = SlabAt<Shape>(index, num_blocks);
    MultiplySlab<Shape, T, kDim>(
        values, slabs + index % Shape::kStages * Shape::kSlabElements,
        slab.part, &tiles);
    if (slab.part < Shape::kSlabsPerBlock - 1) continue;
    tiles.AddProducts(params.l2);
    tiles.ResetProducts();
    if (slab.block < num_blocks - 1) continue;
    const float norm = FinishNorm<Shape>(params, tiles);
    tiles.ResetSums();
    mean += norm;
    if (params.per_query_head && entry < entries.size) {
      matrix[int64_t{slab.q_head} * entries.size + entry] = norm;
    }
  }
  if (!params.per_query_head && entry < entries.size) {
    params.norms[entries.offset + entry] =
        mean / static_cast<float>(params.group_size);
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_VALUE_NORM_SCORES_CUH_
