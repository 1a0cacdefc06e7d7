// The arithmetic of a transformer on rows of activations, one row per token:
// the parameters of the kernels in layer_rows.cuh and row_products.cuh. Plain
// data, C++17. All pointers are device memory.
//
// Inputs of matrix products are 16-bit elements, of the type of the weights.
// Everything else is fp32. The bits of a row depend neither on the other rows
// nor on their number.
#ifndef KERNELS_CUDA_LAYERS_LAYER_ROWS_H_
#define KERNELS_CUDA_LAYERS_LAYER_ROWS_H_

#include <cstdint>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

// residual = scale * embedding[token]. REQUIRES: tokens are below the rows of
// the embedding.
struct EmbedParams {
  int32_t num_rows = 0;
  int32_t width = 0;
  const int32_t* tokens = nullptr;  // [num_rows]
  const void* embedding = nullptr;  // [vocabulary, width]
  float scale = 1.0f;
  float* residual = nullptr;  // [num_rows, width]
};

// Adds to the residual what a half of a layer has computed, and normalises the
// sum for the next half. RMSNorm is x * gain / sqrt(mean(x^2) + epsilon).
struct NormParams {
  int32_t num_rows = 0;
  int32_t width = 0;
  float epsilon = 0.0f;
  // The row of the residual of each row. Null means that row i has row i.
  // REQUIRES: null, or `delta` is.
  const int32_t* places = nullptr;  // [num_rows]
  float* residual = nullptr;        // [rows, width]
  // [num_rows, width]. Null if nothing is added.
  const float* delta = nullptr;
  // The factor of each row of delta; null means 1.
  const float* delta_scales = nullptr;  // [num_rows]
  // Gains of an RMSNorm of delta before it is added; null means none.
  const float* delta_gains = nullptr;  // [width]
  // [width]. Null if `normalized` is null.
  const float* gains = nullptr;
  // [num_rows, width]. Null if no normalized rows are wanted.
  void* normalized = nullptr;
};

// Turns the projections of a layer into heads: adds biases, normalises each
// query and key (gains may be null), rotates both (rotate-half: element i of a
// head pairs with element i + head_dim / 2), and rounds to the pool's elements.
struct HeadParams {
  int32_t num_rows = 0;
  int32_t num_q_heads = 0;
  int32_t num_heads = 0;
  int32_t num_shards = 1;
  float epsilon = 0.0f;
  // Queries, keys, values, [num_rows, num_q_heads + 2 * num_heads, head_dim].
  // Queries get their biases and norms in place, but are not rotated here.
  float* projected = nullptr;
  const float* bias = nullptr;  // [num_q_heads + 2 * num_heads, head_dim]
  const float* query_gains = nullptr;  // [head_dim]
  const float* key_gains = nullptr;    // [head_dim]
  const float* cosines = nullptr;      // [num_rows, head_dim / 2]
  const float* sines = nullptr;        // [num_rows, head_dim / 2]
  // [num_shards, num_rows, num_q_heads / num_shards, head_dim]
  void* queries = nullptr;
  void* keys = nullptr;    // [num_rows, num_heads, head_dim]
  void* values = nullptr;  // [num_rows, num_heads, head_dim]
};

// Turns the output of attention into the input of a product.
struct MergeParams {
  int32_t num_rows = 0;
  // The width of all shards together, a multiple of 8 * num_shards.
  int32_t width = 0;
  int32_t num_shards = 1;
  // [num_shards, num_rows, width / num_shards], the pool's elements
  const void* attention = nullptr;
  void* merged = nullptr;  // [num_rows, width]
};

// Computes gate(x) * up of a gated MLP. The product's elements may have a small
// range (fp16), and gated activations a large one. So a row is multiplied by a
// power of two that brings its largest element to [2^13, 2^14); the value is
// gated * scale.
struct GateParams {
  int32_t num_rows = 0;
  int32_t width = 0;
  // True means GELU in its approximation by tanh. False means SiLU.
  bool gelu = false;
  const float* gate_up = nullptr;  // [num_rows, 2, width]
  void* gated = nullptr;           // [num_rows, width]
  float* scales = nullptr;         // [num_rows]
};

// output[r][o] = sum of weights[o][i] * input[r][i], added in fp32. REQUIRES:
// `in` is a multiple of 8.
struct ProductParams {
  int32_t num_rows = 0;
  int32_t in = 0;
  int32_t out = 0;
  const void* weights = nullptr;  // [out, in]
  const void* input = nullptr;    // [num_rows, in]
  float* output = nullptr;        // [num_rows, out]
};

// The most threads of a block that has a row. Narrow rows get fewer.
inline constexpr int32_t kLayerThreads = 256;
// Heads: a warp has a head.
inline constexpr int32_t kHeadThreads = 128;
inline constexpr int32_t kMergeThreads = 256;
// Products: a warp has 16 outputs of 32 rows.
inline constexpr int32_t kRowProductThreads = 128;
inline constexpr int32_t kRowProductOuts = kRowProductThreads / 32 * 16;
inline constexpr int32_t kRowProductRows = 32;

}  // namespace blockmgr

#endif  // KERNELS_CUDA_LAYERS_LAYER_ROWS_H_
