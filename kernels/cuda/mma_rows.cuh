// Rows of K and V in shared memory and their fragments for the tensor core.
//
// A row of kDim 16-bit elements has kDim / 8 chunks of 16 bytes. Chunk c of row
// r is kept at place c ^ (r & 7). The eight rows that an ldmatrix reads at one
// chunk thus lie in different banks. Fragments are those of mma.m16n8k16 (PTX
// ISA, "Matrix Fragments for mma.m16n8k16").
#ifndef KERNELS_CUDA_MMA_ROWS_CUH_
#define KERNELS_CUDA_MMA_ROWS_CUH_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// The dynamic shared memory that a block may have on every supported device
// (sm_80; later devices have 227 KiB).
inline constexpr size_t kMaxSharedBytes = 163 * 1024;
// The elements of one 16-byte chunk.
inline constexpr int kChunk = 8;
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

SIMT_DEVICE int32_t LaneIndex() { return static_cast<int32_t>(simt::Lane()); }
SIMT_DEVICE int32_t WarpIndex() { return static_cast<int32_t>(simt::Warp()); }
SIMT_DEVICE int32_t Thread() {
  return static_cast<int32_t>(simt::ThreadIndex());
}

// Returns the place of an element's chunk, in elements from the first row.
template <int kDim>
SIMT_DEVICE int32_t SwizzledChunk(int32_t row, int32_t chunk) {
  return row * kDim + ((chunk ^ (row & 7)) * kChunk);
}

// Loads the A operand (16 x 16): rows [row, row + 16), elements [16 k, 16 k +
// 16).
template <int kDim, typename T>
SIMT_DEVICE void LoadRowsA(const T* tile, int32_t row, int32_t k,
                           uint32_t (&a)[4]) {
  const int32_t lane = LaneIndex();
  const int32_t r = row + lane % 16;
  const int32_t chunk = k * 2 + lane / 16;
  simt::LoadMatrix4(a, tile + SwizzledChunk<kDim>(r, chunk));
}

// Loads the A operand of the transposed tile: A[i][j] = tile[row + j][16 k +
// i].
template <int kDim, typename T>
SIMT_DEVICE void LoadColumnsA(const T* tile, int32_t row, int32_t k,
                              uint32_t (&a)[4]) {
  const int32_t lane = LaneIndex();
  const int32_t r = row + (lane & 7) + (lane / 16) * 8;
  const int32_t chunk = k * 2 + ((lane / 8) & 1);
  simt::LoadMatrix4Transposed(a, tile + SwizzledChunk<kDim>(r, chunk));
}

// Loads two B operands (16 x 8 each) whose columns are rows: B[i][n] = tile[row
// + n][16 k + i]. b[0], b[1] have the rows [row, row + 8), b[2], b[3] the next
// 8.
template <int kDim, typename T>
SIMT_DEVICE void LoadRowsB(const T* tile, int32_t row, int32_t k,
                           uint32_t (&b)[4]) {
  const int32_t lane = LaneIndex();
  const int32_t r = row + (lane & 7) + (lane / 16) * 8;
  const int32_t chunk = k * 2 + ((lane / 8) & 1);
  simt::LoadMatrix4(b, tile + SwizzledChunk<kDim>(r, chunk));
}

// Loads two B operands whose rows are rows: B[i][n] = tile[row + i][8 c + n].
// b[0], b[1] have chunk c, b[2], b[3] chunk c + 1.
template <int kDim, typename T>
SIMT_DEVICE void LoadColumnsB(const T* tile, int32_t row, int32_t c,
                              uint32_t (&b)[4]) {
  const int32_t lane = LaneIndex();
  simt::LoadMatrix4Transposed(
      b, tile + SwizzledChunk<kDim>(row + lane % 16, c + lane / 16));
}

// Returns a softmax reference that is never -infinity: rows without a live
// entry then give the weight 0, not NaN.
SIMT_DEVICE float FiniteMax(float max) { return max == -INFINITY ? 0.0f : max; }

// Keeps NaN.
SIMT_DEVICE float AtLeast(float value, float floor) {
  return value < floor ? floor : value;
}

// Return the sum and the maximum over the lanes that hold one column of an
// accumulator (equal lane % 4). The order is the same on every lane.
SIMT_DEVICE float SumOverRows(float x) {
  x += simt::ShuffleXor(x, 4);
  x += simt::ShuffleXor(x, 8);
  return x + simt::ShuffleXor(x, 16);
}
SIMT_DEVICE float MaxOverRows(float x) {
  x = fmaxf(x, simt::ShuffleXor(x, 4));
  x = fmaxf(x, simt::ShuffleXor(x, 8));
  return fmaxf(x, simt::ShuffleXor(x, 16));
}
// Return the sum and the maximum over all lanes, in a fixed order.
SIMT_DEVICE float SumOverLanes(float x) {
  x += simt::ShuffleXor(x, 1);
  x += simt::ShuffleXor(x, 2);
  return SumOverRows(x);
}
SIMT_DEVICE float MaxOverLanes(float x) {
  x = fmaxf(x, simt::ShuffleXor(x, 1));
  x = fmaxf(x, simt::ShuffleXor(x, 2));
  return MaxOverRows(x);
}
// Return the sum and the maximum over the lanes that hold one row (equal lane /
// 4).
SIMT_DEVICE float SumOverColumns(float x) {
  x += simt::ShuffleXor(x, 1);
  return x + simt::ShuffleXor(x, 2);
}
SIMT_DEVICE float MaxOverColumns(float x) {
  x = fmaxf(x, simt::ShuffleXor(x, 1));
  return fmaxf(x, simt::ShuffleXor(x, 2));
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_MMA_ROWS_CUH_
