// The kernel of value_norm_scores.h.
#ifndef KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_CUH_
#define KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/scores/entry_rows.cuh"
#include "kernels/cuda/scores/row_products.cuh"
#include "kernels/cuda/scores/value_norm_scores.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Adds the sizes of a block's products to the sums.
template <bool kL2, typename Shape>
SIMT_DEVICE void AddSizes(ProductTiles<Shape>* tiles) {
  SIMT_UNROLL
  for (int m = 0; m < Shape::kMTiles; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < Shape::kNTiles; ++n) {
      SIMT_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float x = tiles->products[m][n][j];
        tiles->sums[m][j / 2] += kL2 ? x * x : fabsf(x);
      }
    }
  }
}

// Grid: {row_splits.count}. Shared memory: ProductShape::kSharedBytes.
template <typename T, int kDim>
SIMT_KERNEL(kProductThreads, 1)
void ValueNorms(ValueNormParams params) {
  simt::AwaitEarlierKernels();
  using Shape = ProductShape<T, kDim>;
  const ListSplit mine = FindRowSplit(params.entries);
  ProductRows rows;
  rows.pool = params.pool;
  rows.entries = LoadEntries(params.entries, mine.list);
  rows.begin = mine.split * kProductRows;
  rows.shift = params.pool.kv_stride;
  const int32_t head = mine.list % params.entries.num_heads;
  MatrixList<T> matrices;
  matrices.num_columns = params.model_dim;
  matrices.count = params.group_size;
  matrices.first = static_cast<const T*>(params.projection) +
                   int64_t{head} * params.group_size * kDim * params.model_dim;
  const int32_t entry = rows.begin + Thread();
  const bool exists = entry < rows.entries.size;
  float* const matrix = params.norms + rows.entries.offset * params.group_size;
  float mean = 0.0f;
  ForEachProduct<T, kDim>(
      rows, matrices,
      [&](int32_t, int32_t, ProductTiles<Shape>* tiles) {
        // The condition is tested once per block, not per product.
        if (params.l2) {
          AddSizes<true>(tiles);
        } else {
          AddSizes<false>(tiles);
        }
      },
      [&](int32_t q_head, float sum) {
        const float norm = params.l2 ? simt::Sqrt(sum) : sum;
        mean += norm;
        if (params.per_query_head && exists) {
          matrix[int64_t{q_head} * rows.entries.size + entry] = norm;
        }
      });
  if (!params.per_query_head && exists) {
    params.norms[rows.entries.offset + entry] =
        mean / static_cast<float>(params.group_size);
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_VALUE_NORM_SCORES_CUH_
