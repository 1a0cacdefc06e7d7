// Softmax statistics of rows whose logits come in pieces.
#ifndef KERNELS_CUDA_SCORES_ROW_STATS_CUH_
#define KERNELS_CUDA_SCORES_ROW_STATS_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Softmax statistics of one row, in log2, of the keys so far.
struct RowStats {
  float max = -INFINITY;
  float sum = 0.0f;

  SIMT_DEVICE void Add(const RowStats& other) {
    const float joint = fmaxf(max, other.max);
    const float base = FiniteMax(joint);
    sum =
        sum * simt::Exp2(max - base) + other.sum * simt::Exp2(other.max - base);
    max = joint;
  }
  // Returns the logarithm to base 2 of the softmax's denominator.
  SIMT_DEVICE float Lse() const {
    return sum == 0.0f ? -INFINITY : max + simt::Log2(sum);
  }
};

// Adds the statistics of lanes whose numbers differ in the bits up to
// `last_mask`. All these lanes get the sum.
SIMT_DEVICE RowStats SumOverLanes(RowStats total, uint32_t last_mask) {
  for (uint32_t mask = 1; mask <= last_mask; mask *= 2) {
    RowStats other;
    other.max = simt::ShuffleXor(total.max, mask);
    other.sum = simt::ShuffleXor(total.sum, mask);
    total.Add(other);
  }
  return total;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SCORES_ROW_STATS_CUH_
