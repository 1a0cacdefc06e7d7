// Q, K, V and W_O of some layers of one sequence, as researchers have them.
#ifndef BENCH_EVICT_TENSORS_H_
#define BENCH_EVICT_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

namespace blockmgr {

// An index into a vector, from the signed numbers that count everywhere else.
inline size_t Unsigned(int64_t value) { return static_cast<size_t>(value); }

// One layer, row-major float32. What a policy does not read may be empty.
struct LayerTensors {
  std::vector<float> queries;  // [num_q_heads, length, head_dim], after RoPE
  std::vector<float> raw_queries;  // the same before RoPE; empty: `queries`
  std::vector<float> keys;         // [num_heads, length, head_dim], after RoPE
  std::vector<float> values;       // [num_heads, length, head_dim]
  // W_O by query head: [num_q_heads, head_dim, model_dim]
  std::vector<float> output_projection;
  std::vector<float> scores;  // [num_heads, length]: a caller's own
};

struct Tensors {
  int32_t num_q_heads = 0;
  int32_t num_heads = 0;
  int32_t length = 0;
  int32_t head_dim = 0;
  int32_t model_dim = 0;  // 0 without output_projection
  double rope_theta = 10000.0;
  // The angle per position by which each pair of a head is rotated, [head_dim /
  // 2]. If empty, the angles follow from rope_theta.
  std::vector<double> inverse_frequencies;
  // The products of queries and keys are multiplied by this. 0 stands for 1 /
  // sqrt(head_dim).
  float score_scale = 0.0f;
  std::vector<LayerTensors> layers;

  // Returns score_scale, or what 0 stands for.
  float AttentionScale() const;

  int32_t num_layers() const { return static_cast<int32_t>(layers.size()); }
};

// Paths of .npy files (float32 or float16; leading layer dimension optional);
// empty: not given.
struct TensorPaths {
  std::string queries;
  std::string raw_queries;
  std::string keys;
  std::string values;
  std::string output_projection;
  std::string scores;
};

// Reads what is given and checks that shapes fit each other. Errors name the
// file, the dimension, expected and got.
absl::StatusOr<Tensors> LoadTensors(const TensorPaths& paths);

// Made-up tensors with the traits eviction lives on: some heads that attend
// sharply, some evenly, a strong first token, queries that resemble some keys.
// Equal for equal arguments.
struct SyntheticShape {
  int32_t num_layers = 4;
  int32_t num_q_heads = 8;
  int32_t num_heads = 2;
  int32_t length = 1024;
  int32_t head_dim = 64;
  int32_t model_dim = 256;
};
Tensors MakeSyntheticTensors(const SyntheticShape& shape, uint64_t seed);

}  // namespace blockmgr

#endif  // BENCH_EVICT_TENSORS_H_
