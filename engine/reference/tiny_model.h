// LanguageModel: a transformer's shape and weights. ModelForward: its row-wise
// arithmetic.
//
// A layer is: RMSNorm, grouped-query attention with rotary embedding
// (rotate-half, true positions), RMSNorm, gated MLP. Each half is added to the
// residual. After the layers come a final RMSNorm and an output matrix. Layers
// may attend to the last tokens only (sliding windows), as in Mistral, Gemma
// and gpt-oss. What models have beyond this is data: biases (Qwen2), norms of
// queries and keys and of what a half adds (Gemma 3), two kinds of rotary
// embedding, scales. A part that a model lacks is an empty vector. (Llama:
// Touvron et al. 2023; RoPE: Su et al., 2104.09864; GQA: Ainslie et al.,
// 2305.13245; SwiGLU: Shazeer, 2002.05202; RMSNorm: Zhang and Sennrich,
// 1910.07467; Gemma 3: 2503.19786.)
//
// gguf_model.h loads a model from a file. RandomModel makes one without a file.
//
// Thread-safe: immutable once built.
#ifndef ENGINE_REFERENCE_TINY_MODEL_H_
#define ENGINE_REFERENCE_TINY_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/layer_groups.h"
#include "blockmgr/base/model_layout.h"
#include "engine/gguf/tensor_type.h"
#include "engine/reference/packed_matrix.h"
#include "kernels/cpu/thread_pool.h"

namespace blockmgr {

// The rotary embedding of a layer: the pair (i, i + head_dim / 2) of a head is
// rotated by position * theta^(-2i / head_dim) / divisors[i].
struct Rotary {
  double theta = 10000.0;
  std::vector<float> divisors = {};  // [head_dim / 2]; empty: all are 1
};

// The function that an MLP applies to its gate. kGeluTanh is the approximation
// of GELU by tanh (Hendrycks and Gimpel, 1606.08415).
enum class GateFunction : uint8_t { kSilu, kGeluTanh };

struct ModelShape {
  int32_t num_layers = 4;
  int32_t num_q_heads = 8;
  int32_t num_heads = 2;  // KV heads
  int32_t head_dim = 32;
  int32_t hidden = 256;
  int32_t mlp = 512;
  int32_t vocabulary = 256;
  Rotary rotary = {};         // of layers that attend to all tokens
  Rotary window_rotary = {};  // of layers with a window
  // The window of each layer in tokens, 0 for full attention. The list is
  // repeated over the layers. Empty means full attention in all layers.
  std::vector<int32_t> windows = {};
  GateFunction gate = GateFunction::kSilu;
  float norm_epsilon = 1e-5f;  // added to the mean square in every RMSNorm
  float embedding_scale = 1.0f;
  float score_scale = 0.0f;       // of attention logits; 0: 1 / sqrt(head_dim)
  int32_t context_tokens = 8192;  // what the model is made for
  std::vector<int32_t> end_tokens = {};  // they end an answer

  absl::Status Validate() const;
  int32_t q_width() const { return num_q_heads * head_dim; }
  int32_t kv_width() const { return num_heads * head_dim; }
  // Returns the window of a layer in tokens, 0 for full attention.
  int32_t window_of(int32_t layer) const {
    return windows.empty()
               ? 0
               : windows[static_cast<size_t>(layer) % windows.size()];
  }
  // REQUIRES: the shape is valid.
  LayerGroups Groups() const;
};

// Returns the layout of this model's pool. The layout is not validated.
// REQUIRES: the shape is valid.
ModelLayout MakeLayout(const ModelShape& shape, int32_t page_size, DType dtype,
                       int32_t num_blocks);

// A vector is empty if the model has no such part.
struct ModelLayer {
  std::vector<float> attention_norm;  // [hidden]
  PackedMatrix query;                 // hidden -> q_width
  PackedMatrix key;                   // hidden -> kv_width
  PackedMatrix value;                 // hidden -> kv_width
  std::vector<float> query_bias;      // [q_width]
  std::vector<float> key_bias;        // [kv_width]
  std::vector<float> value_bias;      // [kv_width]
  // Gains of an RMSNorm over each head, before rotation.
  std::vector<float> query_norm;           // [head_dim]
  std::vector<float> key_norm;             // [head_dim]
  PackedMatrix output;                     // q_width -> hidden
  std::vector<float> attention_post_norm;  // [hidden]
  std::vector<float> mlp_norm;             // [hidden]
  PackedMatrix gate;                       // hidden -> mlp
  PackedMatrix up;                         // hidden -> mlp
  PackedMatrix down;                       // mlp -> hidden
  std::vector<float> mlp_post_norm;        // [hidden]
};

struct ModelWeights {
  PackedMatrix embedding;  // row t is that of token t; hidden -> vocabulary
  std::vector<ModelLayer> layers;
  std::vector<float> final_norm;  // [hidden]
  // hidden -> vocabulary; without outputs if the model uses its embedding.
  PackedMatrix head;
};

class LanguageModel {
 public:
  // REQUIRES: `shape` is valid, and the weights have its dimensions.
  LanguageModel(ModelShape shape, ModelWeights weights);

  const ModelShape& shape() const { return shape_; }
  const ModelWeights& weights() const { return weights_; }
  // Returns the layer group and slot of each layer.
  const LayerGroups& groups() const { return groups_; }
  // Returns the matrix that turns a row into logits.
  const PackedMatrix& head() const {
    return weights_.head.out() == 0 ? weights_.embedding : weights_.head;
  }
  // Returns what queries times keys are multiplied by.
  float score_scale() const;
  // Returns how far a position rotates the pairs of a head in a layer,
  // [head_dim / 2].
  std::span<const double> InverseFrequencies(int32_t layer) const {
    return inverse_frequencies_[shape_.window_of(layer) > 0 ? 1 : 0];
  }
  // Unpacks W_O of consecutive query heads of a layer, from `first_q_head` on:
  // [q_heads, head_dim, hidden]. Costs as much as a product with as many rows.
  void UnpackOutput(int32_t layer, int32_t first_q_head,
                    std::span<float> rows) const;
  // Returns the embedding row of a token. A caller of the engine need not
  // check ids, so ids beyond the vocabulary wrap around. REQUIRES: token >= 0.
  int32_t EmbeddingRow(int32_t token) const {
    return token % shape_.vocabulary;
  }

 private:
  ModelShape shape_;
  LayerGroups groups_;
  ModelWeights weights_;
  // For layers without and with a window.
  std::array<std::vector<double>, 2> inverse_frequencies_;
};

// Makes a model with random weights, stored as `type` (kF32 or kBF16), and with
// an output matrix of its own unless `tied`.
//
// The weights come from a counter-based generator, so a seed gives the same
// model on every machine. They are scaled so that attention logits have a
// standard deviation of about 3. So a head attends to few tokens, and evicting
// the wrong entries changes the output. Output logits have the same deviation,
// unless `tied`. The two best differ by about 1, so greedy decoding is well
// defined. REQUIRES: `shape` is valid.
std::shared_ptr<const LanguageModel> RandomModel(
    const ModelShape& shape, uint64_t seed, TensorType type = TensorType::kF32,
    bool tied = false);

// ModelForward computes the part of a forward pass that works on rows, one row
// per token. The caller does attention and keeps the cache:
//
//   Begin
//   for each layer:
//     Project
//     <the caller appends keys() and values() to the cache, and attends with
//      queries() into attention()>
//     Finish
//   ComputeLogits, Logits
//
// The result of a row does not depend on the other rows, nor on the number of
// threads, bit for bit. Buffers are reused from pass to pass, and sines and
// cosines are kept for every position up to the greatest so far. Model and
// threads are borrowed. Thread-compatible.
class ModelForward {
 public:
  // Matrix products run on `threads`, or on the caller's if null.
  explicit ModelForward(const LanguageModel* model,
                        ThreadPool* threads = nullptr)
      : model_(*model), threads_(threads) {}

  ThreadPool* threads() const { return threads_; }

  // Begins a pass over tokens[i] at positions[i].
  void Begin(std::span<const int32_t> tokens,
             std::span<const int32_t> positions);
  void Project(int32_t layer);
  void Finish(int32_t layer);
  // Computes the logits after these rows of the pass in one product, which is
  // much faster than one by one. `rows` ascends.
  void ComputeLogits(std::span<const size_t> rows);
  // Returns the logits after one row, [vocabulary]. Computes them now if the
  // last ComputeLogits did not have the row. Valid until the next call of
  // either function.
  std::span<const float> Logits(size_t row);

  // Returns the queries of the last Project, after RoPE, [rows, q_width].
  std::span<const float> queries() const { return queries_; }
  // Returns the queries of the last Project, before RoPE, [rows, q_width].
  std::span<const float> raw_queries() const { return raw_queries_; }
  std::span<const float> keys() const { return keys_; }      // [rows, kv_width]
  std::span<const float> values() const { return values_; }  // [rows, kv_width]
  std::span<float> attention() { return attention_; }        // [rows, q_width]

 private:
  // One kind of rotary embedding.
  struct RotaryTable {
    // By position, [positions, head_dim / 2].
    std::vector<float> cosines;
    std::vector<float> sines;
    // The rows of the pass, [rows, head_dim / 2]. Empty until a layer needs
    // them.
    std::vector<float> row_cosines;
    std::vector<float> row_sines;
  };

  // Multiplies rows by a matrix and adds a bias, if there is one.
  void Multiply(const PackedMatrix& matrix, std::span<const float> bias,
                std::span<const float> input, std::span<float> output) const;
  // Adds delta_ to the residual, normalised first if there are gains.
  void AddDelta(std::span<const float> gains);
  // Returns the table of a layer, with the rows of the pass.
  const RotaryTable& TableOf(int32_t layer);

  const LanguageModel& model_;
  ThreadPool* const threads_;
  size_t num_rows_ = 0;
  std::vector<int32_t> positions_;
  std::vector<float> residual_;    // [rows, hidden]
  std::vector<float> normalized_;  // [rows, hidden]
  std::vector<float> delta_;       // [rows, hidden]
  std::vector<float> queries_;
  std::vector<float> raw_queries_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> attention_;
  std::vector<float> gate_;            // [rows, mlp]
  std::vector<float> up_;              // [rows, mlp]
  std::array<RotaryTable, 2> tables_;  // of layers without and with a window
  std::vector<size_t> logit_rows_;
  std::vector<float> logits_;  // [logit rows, vocabulary]
};

}  // namespace blockmgr

#endif  // ENGINE_REFERENCE_TINY_MODEL_H_
