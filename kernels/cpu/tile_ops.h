// Inner loops of the CPU backend, vectorised with Highway and chosen at run
// time for the machine's instruction set.
//
// Every function is a fixed sequence of fp32 operations for its arguments: same
// rows in the same order, same bits, on one machine. Instruction sets differ in
// the last bits (vector width, fused multiply-add).
//
// Nothing here allocates. Thread-safe: no state.
#ifndef KERNELS_CPU_TILE_OPS_H_
#define KERNELS_CPU_TILE_OPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "blockmgr/base/dtype.h"

namespace blockmgr {

// Rows are handled in tiles: 64 rows of K and V of 128 bf16 elements are 32
// KiB, an L1 cache.
inline constexpr int32_t kTileRows = 64;
// Rows inside a tile are read in groups of this many, so a reader of n rows
// touches the first n rounded up.
inline constexpr int32_t kRowGroup = 4;

// Up to kTileRows consecutive rows of an attention list, in list order.
struct KvTile {
  // K rows; the V row of each is kv_stride bytes further. Pointers past the
  // live rows, up to a multiple of kRowGroup, repeat any readable row.
  std::array<const std::byte*, kTileRows> keys;
  int64_t kv_stride = 0;
  // Elements of a row; a multiple of 4, for 2-byte types of 8.
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
};

// Of a softmax seen so far: its greatest logit and the sum of
// exp(logit - max). No rows yet: sum == 0.
struct SoftmaxState {
  float max = 0.0f;
  float sum = 0.0f;
};

// One step of online softmax attention (Milakov, Gimelshein 1805.02867) for
// `states.size()` queries that share a head: adds the first num_rows rows of
// the tile to each query's state and to its unnormalised output. queries and
// output: [states.size(), head_dim]. REQUIRES: 0 < num_rows <= kTileRows;
// output is zero while sum == 0.
void AttendTile(const KvTile& tile, int32_t num_rows, float scale,
                const float* queries, std::span<SoftmaxState> states,
                float* output);

// sums[j] += softmax(logits[0 .. num_logits))[j] for every j of sums.
// Overwrites the logits and what follows them up to a multiple of kTileRows.
// NaN among the logits makes every share NaN.
// REQUIRES: 0 < num_logits, sums.size() <= num_logits.
void AddSoftmax(float* logits, int64_t num_logits, std::span<float> sums);

// out[i] = ToBFloat16(in[i]), or ToFloat16(in[i]). REQUIRES: same sizes, a
// multiple of 4.
void EncodeBFloat16(std::span<const float> in, std::span<uint16_t> out);
void EncodeFloat16(std::span<const float> in, std::span<uint16_t> out);

}  // namespace blockmgr

#endif  // KERNELS_CPU_TILE_OPS_H_
