#include "tests/engine/reference/gguf_reference.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "tests/testing/gguf_writer.h"

namespace blockmgr {
namespace {

using Row = std::vector<double>;

constexpr int32_t kVocabulary = 96;
constexpr int32_t kHidden = 256;
constexpr int32_t kMlp = 256;
constexpr int32_t kHeads = 2;
constexpr int32_t kHeadDim = 64;

class SpecMaker {
 public:
  SpecMaker(GgufSpec* spec, TensorType type, uint64_t seed)
      : spec_(*spec), type_(type), random_(seed) {}

  void Vector(const std::string& name, int32_t size, double mean,
              double spread) {
    SpecTensor& tensor = spec_.tensors[name];
    tensor.shape = {size};
    AddRow(TensorType::kF32, size, mean, spread, &tensor);
  }

  void Matrix(const std::string& name, int32_t in, int32_t out, double scale) {
    SpecTensor& tensor = spec_.tensors[name];
    tensor.type = type_;
    tensor.shape = {in, out};
    for (int32_t row = 0; row < out; ++row) {
      AddRow(type_, in, 0.0, scale / std::sqrt(in), &tensor);
    }
  }

 private:
  void AddRow(TensorType type, int32_t size, double mean, double spread,
              SpecTensor* tensor) {
    std::normal_distribution<double> normal(mean, spread);
    std::vector<float> row(static_cast<size_t>(size));
    for (float& value : row) value = static_cast<float>(normal(random_));
    const auto bytes = QuantizeRow(type, row);
    tensor->bytes.insert(tensor->bytes.end(), bytes.begin(), bytes.end());
    // The reference takes the elements as read. Tests of the format check the
    // reading.
    DequantizeRow(type, bytes, row);
    tensor->values.insert(tensor->values.end(), row.begin(), row.end());
  }

  GgufSpec& spec_;
  const TensorType type_;
  std::mt19937_64 random_;
};

void AddLayer(int32_t index, int32_t q_width, bool biases, bool gemma,
              SpecMaker* maker) {
  const std::string blk = "blk." + std::to_string(index) + ".";
  const int32_t kv_width = kHeads * kHeadDim;
  maker->Vector(blk + "attn_norm.weight", kHidden, 1.0, 0.2);
  maker->Matrix(blk + "attn_q.weight", kHidden, q_width, 1.5);
  maker->Matrix(blk + "attn_k.weight", kHidden, kv_width, 1.5);
  maker->Matrix(blk + "attn_v.weight", kHidden, kv_width, 1.0);
  maker->Matrix(blk + "attn_output.weight", q_width, kHidden, 1.0);
  maker->Vector(blk + "ffn_norm.weight", kHidden, 1.0, 0.2);
  maker->Matrix(blk + "ffn_gate.weight", kHidden, kMlp, 1.0);
  maker->Matrix(blk + "ffn_up.weight", kHidden, kMlp, 1.0);
  maker->Matrix(blk + "ffn_down.weight", kMlp, kHidden, 1.0);
  if (biases) {
    maker->Vector(blk + "attn_q.bias", q_width, 0.0, 0.5);
    maker->Vector(blk + "attn_k.bias", kv_width, 0.0, 0.5);
    maker->Vector(blk + "attn_v.bias", kv_width, 0.0, 0.5);
  }
  if (gemma) {
    maker->Vector(blk + "attn_q_norm.weight", kHeadDim, 1.2, 0.2);
    maker->Vector(blk + "attn_k_norm.weight", kHeadDim, 1.2, 0.2);
    maker->Vector(blk + "post_attention_norm.weight", kHidden, 0.8, 0.2);
    maker->Vector(blk + "post_ffw_norm.weight", kHidden, 0.8, 0.2);
  }
}

// The model of a file while it computes one sequence.
class Sequence {
 public:
  explicit Sequence(const GgufSpec& spec)
      : spec_(spec),
        name_(std::get<std::string>(spec.keys.at("general.architecture"))),
        layers_(static_cast<size_t>(Integer("block_count"))) {}

  Row Logits(int32_t token) {
    const bool gemma = name_ == "gemma3";
    Row x = RowOf("token_embd.weight", token);
    if (gemma) Scale(std::sqrt(double{kHidden}), &x);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const std::string blk = "blk." + std::to_string(i) + ".";
      Row delta = Multiply(blk + "attn_output.weight",
                           Attend(i, Norm(blk + "attn_norm.weight", x)));
      if (gemma) delta = Norm(blk + "post_attention_norm.weight", delta);
      Add(delta, &x);
      const Row h = Norm(blk + "ffn_norm.weight", x);
      Row gate = Multiply(blk + "ffn_gate.weight", h);
      const Row up = Multiply(blk + "ffn_up.weight", h);
      for (size_t j = 0; j < gate.size(); ++j) {
        gate[j] = (gemma ? GeluTanh(gate[j]) : Silu(gate[j])) * up[j];
      }
      delta = Multiply(blk + "ffn_down.weight", gate);
      if (gemma) delta = Norm(blk + "post_ffw_norm.weight", delta);
      Add(delta, &x);
    }
    ++position_;
    return Multiply(spec_.tensors.contains("output.weight")
                        ? "output.weight"
                        : "token_embd.weight",
                    Norm("output_norm.weight", x));
  }

 private:
  struct Cache {
    std::vector<Row> keys, values;
  };

  int32_t Integer(const std::string& key) const {
    return static_cast<int32_t>(
        std::get<uint32_t>(spec_.keys.at(name_ + "." + key)));
  }
  double Number(const std::string& key) const {
    return double{std::get<float>(spec_.keys.at(name_ + "." + key))};
  }
  static double Silu(double x) { return x / (1.0 + std::exp(-x)); }
  static double GeluTanh(double x) {
    const double inner = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + std::tanh(inner));
  }
  static void Scale(double factor, Row* row) {
    for (double& x : *row) x *= factor;
  }
  static void Add(const Row& delta, Row* row) {
    for (size_t i = 0; i < delta.size(); ++i) (*row)[i] += delta[i];
  }
  Row RowOf(const std::string& name, int32_t index) const {
    const SpecTensor& tensor = spec_.tensors.at(name);
    const auto first = tensor.values.begin() + tensor.shape[0] * index;
    return Row(first, first + tensor.shape[0]);
  }
  Row Multiply(const std::string& name, const Row& row) const {
    const SpecTensor& tensor = spec_.tensors.at(name);
    const float* weight = tensor.values.data();
    Row result;
    for (int64_t o = 0; o < tensor.shape[1]; ++o) {
      // Each sum takes every fourth element, so that additions need not wait
      // for one another.
      double sums[4] = {};
      for (size_t i = 0; i < row.size(); i += 4, weight += 4) {
        for (size_t j = 0; j < 4; ++j) {
          sums[j] += row[i + j] * double{weight[j]};
        }
      }
      result.push_back(sums[0] + sums[1] + sums[2] + sums[3]);
    }
    return result;
  }
  Row Norm(const std::string& name, const Row& row) const {
    double squares = 0;
    for (const double x : row) squares += x * x;
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(row.size()) +
                        Number("attention.layer_norm_rms_epsilon"));
    Row result = RowOf(name, 0);
    for (size_t i = 0; i < row.size(); ++i) result[i] *= row[i] * scale;
    return result;
  }
  bool HasWindow(size_t layer) const {
    return name_ == "gemma3" && (layer + 1) % 6 != 0;
  }

  // Heads of queries or keys at the current position.
  std::vector<Row> Heads(size_t layer, const std::string& part, const Row& h) {
    const std::string name = "blk." + std::to_string(layer) + "." + part;
    Row all = Multiply(name + ".weight", h);
    if (name_ == "qwen2") Add(RowOf(name + ".bias", 0), &all);
    std::vector<Row> heads;
    for (size_t begin = 0; begin < all.size(); begin += kHeadDim) {
      const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
      heads.emplace_back(first, first + kHeadDim);
      if (part == "attn_v") continue;
      if (name_ == "gemma3") {
        heads.back() = Norm(name + "_norm.weight", heads.back());
      }
      Rotate(layer, &heads.back());
    }
    return heads;
  }

  void Rotate(size_t layer, Row* head) const {
    const double base = HasWindow(layer) ? 10000.0 : Number("rope.freq_base");
    for (size_t i = 0; i < kHeadDim / 2; ++i) {
      double angle =
          position_ * std::pow(base, -2.0 * static_cast<double>(i) / kHeadDim);
      if (const auto divisors = spec_.tensors.find("rope_freqs.weight");
          divisors != spec_.tensors.end()) {
        angle /= double{divisors->second.values[i]};
      }
      const bool is_interleaved = name_ == "llama";
      double& a = (*head)[is_interleaved ? 2 * i : i];
      double& b = (*head)[is_interleaved ? 2 * i + 1 : i + kHeadDim / 2];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = rotated;
    }
  }

  Row Attend(size_t layer, const Row& h) {
    Cache& cache = layers_[layer];
    const std::vector<Row> queries = Heads(layer, "attn_q", h);
    for (Row& key : Heads(layer, "attn_k", h)) {
      cache.keys.push_back(std::move(key));
    }
    for (Row& value : Heads(layer, "attn_v", h)) {
      cache.values.push_back(std::move(value));
    }
    const int32_t first =
        HasWindow(layer)
            ? std::max(0, position_ + 1 - Integer("attention.sliding_window"))
            : 0;
    Row output;
    for (size_t q = 0; q < queries.size(); ++q) {
      const size_t head = q / (queries.size() / kHeads);
      Row sum(kHeadDim);
      double total = 0;
      for (int32_t p = first; p <= position_; ++p) {
        const size_t entry = static_cast<size_t>(p) * kHeads + head;
        double logit = 0;
        for (size_t d = 0; d < kHeadDim; ++d) {
          logit += queries[q][d] * cache.keys[entry][d];
        }
        const double weight = std::exp(logit / std::sqrt(double{kHeadDim}));
        total += weight;
        for (size_t d = 0; d < kHeadDim; ++d) {
          sum[d] += weight * cache.values[entry][d];
        }
      }
      Scale(1.0 / total, &sum);
      output.insert(output.end(), sum.begin(), sum.end());
    }
    return output;
  }

  const GgufSpec& spec_;
  const std::string name_;
  std::vector<Cache> layers_;
  int32_t position_ = 0;
};

}  // namespace

std::string GgufSpec::Write() const {
  GgufWriter writer;
  for (const auto& [key, value] : keys) {
    const std::string& name = key;
    std::visit([&](const auto& v) { writer.Add(name, v); }, value);
  }
  for (const auto& [name, tensor] : tensors) {
    writer.AddTensor(name, tensor.type, tensor.shape, tensor.bytes);
  }
  return writer.Finish();
}

GgufSpec RandomSpec(const std::string& architecture, TensorType type,
                    uint64_t seed) {
  const bool llama = architecture == "llama";
  const bool gemma = architecture == "gemma3";
  const uint32_t num_layers = gemma ? 7 : 2;
  const uint32_t num_q_heads = gemma ? 8 : 4;
  GgufSpec spec;
  const std::string prefix = architecture + ".";
  spec.keys = {{"general.architecture", architecture},
               {prefix + "block_count", num_layers},
               {prefix + "context_length", uint32_t{512}},
               {prefix + "embedding_length", uint32_t{kHidden}},
               {prefix + "feed_forward_length", uint32_t{kMlp}},
               {prefix + "attention.head_count", num_q_heads},
               {prefix + "attention.head_count_kv", uint32_t{kHeads}},
               {prefix + "attention.layer_norm_rms_epsilon", 1e-5f},
               {prefix + "rope.freq_base", gemma ? 1e6f : 500.0f}};
  if (gemma) {
    spec.keys[prefix + "attention.sliding_window"] = uint32_t{20};
    spec.keys[prefix + "attention.key_length"] = uint32_t{kHeadDim};
    spec.keys[prefix + "attention.value_length"] = uint32_t{kHeadDim};
  }
  SpecMaker maker(&spec, type, seed);
  maker.Matrix("token_embd.weight", kHidden, kVocabulary, gemma ? 1.0 : 16.0);
  for (uint32_t i = 0; i < num_layers; ++i) {
    AddLayer(static_cast<int32_t>(i),
             static_cast<int32_t>(num_q_heads) * kHeadDim,
             architecture == "qwen2", gemma, &maker);
  }
  maker.Vector("output_norm.weight", kHidden, 1.0, 0.2);
  if (llama) {
    maker.Matrix("output.weight", kHidden, kVocabulary, 2.0);
    maker.Vector("rope_freqs.weight", kHeadDim / 2, 4.0, 0.8);
  }
  return spec;
}

std::vector<std::vector<double>> ReferenceLogits(
    const GgufSpec& spec, std::span<const int32_t> tokens) {
  Sequence sequence(spec);
  std::vector<std::vector<double>> logits;
  for (const int32_t token : tokens) logits.push_back(sequence.Logits(token));
  return logits;
}

}  // namespace blockmgr
