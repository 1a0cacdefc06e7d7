// Products of rows with a matrix, for devices without cuBLAS; see
// ProductParams.
//
// A warp has 16 outputs (the A operand of the tensor core) of up to 32 rows (B
// operands). Operands come straight from global memory. A product does not
// depend on the order of its terms, so a lane takes 8 neighbouring elements of
// a row in one load where the fragments have pairs, and both operands in the
// same way.
#ifndef KERNELS_CUDA_LAYERS_ROW_PRODUCTS_CUH_
#define KERNELS_CUDA_LAYERS_ROW_PRODUCTS_CUH_

#include <cstdint>

#include "kernels/cuda/layers/layer_rows.h"
#include "kernels/cuda/mma_rows.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Loads 8 elements of a row, or zeros.
template <typename T>
SIMT_DEVICE simt::Vector16 LoadEight(const void* rows, int64_t row, int32_t in,
                                     int32_t i, bool valid) {
  if (!valid) return simt::Vector16{{0, 0, 0, 0}};
  return simt::LoadGlobal16(static_cast<const T*>(rows) + row * in + i);
}

// Grid: {blocks of kRowProductOuts outputs, blocks of kRowProductRows rows}.
template <typename T>
SIMT_KERNEL(kRowProductThreads, 4)
void MultiplyRows(ProductParams params) {
  simt::AwaitEarlierKernels();
  constexpr int kTiles = kRowProductRows / 8;
  const int32_t first_out =
      static_cast<int32_t>(simt::BlockX()) * kRowProductOuts + WarpIndex() * 16;
  if (first_out >= params.out) return;
  const int32_t first_row =
      static_cast<int32_t>(simt::BlockY()) * kRowProductRows;
  const int32_t group = LaneIndex() / 4;
  const int32_t lane_first = LaneIndex() % 4 * 8;
  const int32_t low = first_out + group;
  const int32_t high = low + 8;
  float sums[kTiles][4] = {};
  for (int32_t k = 0; k < params.in; k += 32) {
    const int32_t i = k + lane_first;
    const bool inside = i < params.in;
    const simt::Vector16 a = LoadEight<T>(params.weights, low, params.in, i,
                                          inside && low < params.out);
    const simt::Vector16 b = LoadEight<T>(params.weights, high, params.in, i,
                                          inside && high < params.out);
    SIMT_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      if (first_row + tile * 8 >= params.num_rows) continue;
      const int32_t row = first_row + tile * 8 + group;
      const simt::Vector16 x = LoadEight<T>(params.input, row, params.in, i,
                                            inside && row < params.num_rows);
      SIMT_UNROLL
      for (int half = 0; half < 4; half += 2) {
        const uint32_t operand[4] = {a.words[half], b.words[half],
                                     a.words[half + 1], b.words[half + 1]};
        simt::Mma16816<T>(sums[tile], operand, x.words[half],
                          x.words[half + 1]);
      }
    }
  }
  SIMT_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    SIMT_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int32_t row = first_row + tile * 8 + LaneIndex() % 4 * 2 + j % 2;
      const int32_t out = j < 2 ? low : high;
      if (row >= params.num_rows || out >= params.out) continue;
      params.output[int64_t{row} * params.out + out] = sums[tile][j];
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_ROW_PRODUCTS_CUH_
