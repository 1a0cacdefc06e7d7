// Inner loops of the CPU backend. Highway vectorises them and chooses the
// machine's instruction set at run time.
//
// Every function is a fixed sequence of fp32 operations: the same rows in the
// same order give the same bits on one machine. Instruction sets differ in the
// last bits (vector width, fused multiply-add).
//
// Nothing allocates. Thread-safe: no state.
#ifndef KERNELS_CPU_TILE_OPS_H_
#define KERNELS_CPU_TILE_OPS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "blockmgr/base/dtype.h"

namespace blockmgr {

// The number of rows of a tile. 64 rows of K and V of 128 bf16 elements are 32
// KiB, the size of an L1 cache.
inline constexpr int32_t kTileRows = 64;
// Rows of a tile are read in groups of this many. A reader of n rows touches n
// rows, rounded up to a whole group.
inline constexpr int32_t kRowGroup = 4;

// Up to kTileRows consecutive rows of an attention list, in list order.
struct KvTile {
  // The K rows. The V row of a token is kv_stride bytes after its K row.
  // Pointers after the live rows, up to a multiple of kRowGroup, repeat any
  // readable row.
  std::array<const std::byte*, kTileRows> keys;
  int64_t kv_stride = 0;
  // Elements of a row: a multiple of 4, or of 8 for 2-byte types.
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;
  // Whether the rows are in the L1 cache already, and need no prefetching.
  bool is_near = false;
};

// A softmax over the rows seen so far: the greatest logit and the sum of
// exp(logit - max). sum == 0 means that no row was seen.
struct SoftmaxState {
  float max = 0.0f;
  float sum = 0.0f;
};

// The queries of one head that attend to the same rows: one per query head of
// the group, for each of some consecutive tokens. The vector of head g of token
// i begins at queries + i * token_stride + g * head_dim, and so does its
// unnormalised output.
struct TileQueries {
  const float* queries = nullptr;
  float* output = nullptr;
  int64_t token_stride = 0;
  int64_t group_size = 0;
  std::span<SoftmaxState> states;  // [tokens, group_size]
};

// Computes one step of online softmax attention (Milakov, Gimelshein
// 1805.02867). Adds the first num_rows rows of the tile to each query's state
// and to its output. The bits of a query do not depend on the others. REQUIRES:
// 0 < num_rows <= kTileRows; output is zero while sum == 0.
void AttendTile(const KvTile& tile, int32_t num_rows, float scale,
                const TileQueries& queries);

// Copies rows [first_row, num_rows) of a tile to memory of fp32, and points the
// same rows of `wide` at the copies, so that many queries convert them only
// once. Pads `wide` as KvTile says. REQUIRES: 0 <= first_row < num_rows <=
// kTileRows; `floats` has WideTileFloats(head_dim) elements.
void WidenTile(const KvTile& tile, int32_t first_row, int32_t num_rows,
               float* floats, KvTile* wide);
constexpr int64_t WideTileFloats(int32_t head_dim) {
  return int64_t{2} * kTileRows * head_dim;
}

// Adds softmax(logits[0 .. num_logits))[j] to sums[j] for every j of sums.
// Overwrites the logits and the floats after them, up to a multiple of
// kTileRows. A NaN among the logits makes every share NaN. REQUIRES: 0 <
// num_logits, sums.size() <= num_logits.
void AddSoftmax(float* logits, int64_t num_logits, std::span<float> sums);

// Set out[i] = ToBFloat16(in[i]), or ToFloat16(in[i]). REQUIRES: `in` and `out`
// have one size, a multiple of 4.
void EncodeBFloat16(std::span<const float> in, std::span<uint16_t> out);
void EncodeFloat16(std::span<const float> in, std::span<uint16_t> out);

}  // namespace blockmgr

#endif  // KERNELS_CPU_TILE_OPS_H_
