// TinyModel: a small Llama-style transformer with random weights, and its
// row-wise arithmetic.
//
// Per layer: RMSNorm, grouped-query attention with rotary embedding
// (rotate-half, true positions), RMSNorm, SwiGLU MLP, each half added to the
// residual; then a final RMSNorm and a separate output matrix. (Llama: Touvron
// et al. 2023; RoPE: Su et al., 2104.09864; GQA: Ainslie et al., 2305.13245;
// SwiGLU: Shazeer, 2002.05202; RMSNorm: Zhang and Sennrich, 1910.07467.)
// Layers may attend to the last tokens only (sliding windows), as those of
// Mistral, Gemma and gpt-oss do.
//
// Weights come from a counter-based generator, so a seed means the same model
// everywhere. They are scaled so that attention logits have a standard
// deviation of about 3 (a head looks at few tokens: what is evicted matters)
// and output logits too (the two best differ by about 1: greedy decoding is
// well defined).
//
// Thread-safe once built (immutable).
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
  // Tokens that the layers attend to, 0: all; repeated over the layers. Empty:
  // all of them attend to all.
  std::vector<int32_t> windows = {};

  absl::Status Validate() const;
  int32_t q_width() const { return num_q_heads * head_dim; }
  int32_t kv_width() const { return num_heads * head_dim; }
  // REQUIRES: the shape is valid.
  LayerGroups Groups() const;
};

// The layout of this model's pool. Not validated. REQUIRES: the shape is.
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
  // Added to the mean square in every RMSNorm.
  static constexpr float kNormEpsilon = 1e-5f;

  // REQUIRES: `shape` is valid.
  TinyModel(const TinyShape& shape, uint64_t seed);

  const TinyShape& shape() const { return shape_; }
  const TinyWeights& weights() const { return weights_; }
  // Where the layers are in the layout.
  const LayerGroups& groups() const { return groups_; }
  // The embedding row of a token. Any client may send any id, so ids beyond the
  // vocabulary wrap around. REQUIRES: token >= 0.
  int32_t EmbeddingRow(int32_t token) const {
    return token % shape_.vocabulary;
  }

 private:
  TinyShape shape_;
  LayerGroups groups_;
  TinyWeights weights_;
};

// The part of a forward pass that works on rows, one per token; attention and
// the cache are the caller's:
//
//   Begin; for each layer: Project, <append keys() and values(), attend
//   queries() into attention()>, Finish; Logits.
//
// A row's results are bit for bit independent of the other rows.
// Thread-compatible; buffers are reused from pass to pass. The model is
// borrowed.
class TinyForward {
 public:
  explicit TinyForward(const TinyModel* model) : model_(*model) {}

  // Embeds tokens[i], which stands at positions[i].
  void Begin(std::span<const int32_t> tokens,
             std::span<const int32_t> positions);
  void Project(int32_t layer);
  void Finish(int32_t layer);
  // Logits of one row, [vocabulary]; valid until the next call.
  std::span<const float> Logits(size_t row);

  // After RoPE, as of the last Project.
  std::span<const float> queries() const {
    return queries_;
  }                                                          // [rows, q_width]
  // Before RoPE, as of the last Project.
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
