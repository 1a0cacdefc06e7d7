// TinyModel: a small Llama-style transformer with random weights, and its
// row-wise arithmetic.
//
// A layer is: RMSNorm, grouped-query attention with rotary embedding
// (rotate-half, true positions), RMSNorm, SwiGLU MLP. Each half is added to the
// residual. After the layers come a final RMSNorm and an output matrix. Layers
// may attend to the last tokens only (sliding windows), as in Mistral, Gemma
// and gpt-oss. (Llama: Touvron et al. 2023; RoPE: Su et al., 2104.09864; GQA:
// Ainslie et al., 2305.13245; SwiGLU: Shazeer, 2002.05202; RMSNorm: Zhang and
// Sennrich, 1910.07467.)
//
// Weights come from a counter-based generator, so a seed gives the same model
// on every machine. The weights are scaled so that attention logits have a
// standard deviation of about 3. So a head attends to few tokens, and evicting
// the wrong entries changes the output. Output logits have the same deviation.
// The two best differ by about 1, so greedy decoding is well defined.
//
// Thread-safe: immutable once built.
#ifndef ENGINE_REFERENCE_TINY_MODEL_H_
#define ENGINE_REFERENCE_TINY_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/layer_groups.h"
#include "blockmgr/base/model_layout.h"

namespace blockmgr {

// Widths are multiples of kLinearMultiple.
struct TinyShape {
  int32_t num_layers = 4;
  int32_t num_q_heads = 8;
  int32_t num_heads = 2;  // KV heads
  int32_t head_dim = 32;
  int32_t hidden = 256;
  int32_t mlp = 512;
  int32_t vocabulary = 256;
  double rope_theta = 10000.0;
  // The window of each layer in tokens, 0 for full attention. The list is
  // repeated over the layers. Empty means full attention in all layers.
  std::vector<int32_t> windows = {};

  absl::Status Validate() const;
  int32_t q_width() const { return num_q_heads * head_dim; }
  int32_t kv_width() const { return num_heads * head_dim; }
  // REQUIRES: the shape is valid.
  LayerGroups Groups() const;
};

// Returns the layout of this model's pool. The layout is not validated.
// REQUIRES: the shape is valid.
ModelLayout MakeLayout(const TinyShape& shape, int32_t page_size, DType dtype,
                       int32_t num_blocks);

// All matrices are [in, out], row-major.
struct TinyLayer {
  std::vector<float> attention_norm;  // [hidden]
  std::vector<float> query;           // [hidden, q_width]
  std::vector<float> key;             // [hidden, kv_width]
  std::vector<float> value;           // [hidden, kv_width]
  std::vector<float> output;          // [q_width, hidden]
  std::vector<float> mlp_norm;        // [hidden]
  std::vector<float> gate;            // [hidden, mlp]
  std::vector<float> up;              // [hidden, mlp]
  std::vector<float> down;            // [mlp, hidden]
};

struct TinyWeights {
  std::vector<float> embedding;  // [vocabulary, hidden]
  std::vector<TinyLayer> layers;
  std::vector<float> final_norm;  // [hidden]
  std::vector<float> head;        // [hidden, vocabulary]
};

class TinyModel {
 public:
  // This is added to the mean square in every RMSNorm.
  static constexpr float kNormEpsilon = 1e-5f;

  // REQUIRES: `shape` is valid.
  TinyModel(const TinyShape& shape, uint64_t seed);

  const TinyShape& shape() const { return shape_; }
  const TinyWeights& weights() const { return weights_; }
  // Returns the layer group and slot of each layer.
  const LayerGroups& groups() const { return groups_; }
  // Returns the embedding row of a token. Clients may send any id, so ids
  // beyond the vocabulary wrap around. REQUIRES: token >= 0.
  int32_t EmbeddingRow(int32_t token) const {
    return token % shape_.vocabulary;
  }

 private:
  TinyShape shape_;
  LayerGroups groups_;
  TinyWeights weights_;
};

// TinyForward computes the part of a forward pass that works on rows, one row
// per token. The caller does attention and keeps the cache:
//
//   Begin
//   for each layer:
//     Project
//     <the caller appends keys() and values() to the cache, and attends with
//      queries() into attention()>
//     Finish
//   Logits
//
// The result of a row does not depend on the other rows, bit for bit. Buffers
// are reused from pass to pass. The model is borrowed. Thread-compatible.
class TinyForward {
 public:
  explicit TinyForward(const TinyModel* model) : model_(*model) {}

  // Begins a pass over tokens[i] at positions[i].
  void Begin(std::span<const int32_t> tokens,
             std::span<const int32_t> positions);
  void Project(int32_t layer);
  void Finish(int32_t layer);
  // Returns the logits of one row, [vocabulary]. Valid until the next call.
  std::span<const float> Logits(size_t row);

  // Returns the queries of the last Project, after RoPE.
  std::span<const float> queries() const {
    return queries_;
  }  // [rows, q_width]
  // Returns the queries of the last Project, before RoPE.
  std::span<const float> raw_queries() const {
    return raw_queries_;
  }                                                          // [rows, q_width]
  std::span<const float> keys() const { return keys_; }      // [rows, kv_width]
  std::span<const float> values() const { return values_; }  // [rows, kv_width]
  std::span<float> attention() { return attention_; }        // [rows, q_width]

 private:
  void Normalize(std::span<const float> gains, std::span<const float> rows,
                 std::vector<float>* normalized) const;
  void Rotate(int32_t num_heads, std::span<float> rows) const;

  const TinyModel& model_;
  size_t num_rows_ = 0;
  std::vector<float> residual_;    // [rows, hidden]
  std::vector<float> normalized_;  // [rows, hidden]
  std::vector<float> delta_;       // [rows, hidden]
  std::vector<float> queries_;
  std::vector<float> raw_queries_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> attention_;
  std::vector<float> gate_;    // [rows, mlp]
  std::vector<float> up_;      // [rows, mlp]
  std::vector<float> cosine_;  // [rows, head_dim / 2]
  std::vector<float> sine_;    // [rows, head_dim / 2]
  std::vector<float> logits_;  // [vocabulary]
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_MODEL_H_
