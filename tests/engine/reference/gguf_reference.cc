#include "tests/engine/reference/gguf_reference.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "tests/testing/gguf_writer.h"

namespace blockmgr {
namespace {

using Row = std::vector<double>;

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

void AddLayer(uint32_t index, const SpecSizes& sizes, bool biases, bool gemma,
              SpecMaker* maker) {
  const std::string blk = "blk." + std::to_string(index) + ".";
  const int32_t hidden = sizes.hidden;
  const int32_t q_width = sizes.num_q_heads * sizes.head_dim;
  const int32_t kv_width = sizes.num_heads * sizes.head_dim;
  maker->Vector(blk + "attn_norm.weight", hidden, 1.0, 0.2);
  maker->Matrix(blk + "attn_q.weight", hidden, q_width, 1.5);
  maker->Matrix(blk + "attn_k.weight", hidden, kv_width, 1.5);
  maker->Matrix(blk + "attn_v.weight", hidden, kv_width, 1.0);
  maker->Matrix(blk + "attn_output.weight", q_width, hidden, 1.0);
  maker->Vector(blk + "ffn_norm.weight", hidden, 1.0, 0.2);
  maker->Matrix(blk + "ffn_gate.weight", hidden, sizes.mlp, 1.0);
  maker->Matrix(blk + "ffn_up.weight", hidden, sizes.mlp, 1.0);
  maker->Matrix(blk + "ffn_down.weight", sizes.mlp, hidden, 1.0);
  if (biases) {
    maker->Vector(blk + "attn_q.bias", q_width, 0.0, 0.5);
    maker->Vector(blk + "attn_k.bias", kv_width, 0.0, 0.5);
    maker->Vector(blk + "attn_v.bias", kv_width, 0.0, 0.5);
  }
  if (gemma) {
    maker->Vector(blk + "attn_q_norm.weight", sizes.head_dim, 1.2, 0.2);
    maker->Vector(blk + "attn_k_norm.weight", sizes.head_dim, 1.2, 0.2);
    maker->Vector(blk + "post_attention_norm.weight", hidden, 0.8, 0.2);
    maker->Vector(blk + "post_ffw_norm.weight", hidden, 0.8, 0.2);
  }
}

// The model of a file while it computes one sequence.
class Sequence {
 public:
  explicit Sequence(const GgufSpec& spec)
      : spec_(spec),
        name_(std::get<std::string>(spec.keys.at("general.architecture"))),
        hidden_(Integer("embedding_length")),
        num_q_heads_(Integer("attention.head_count")),
        num_heads_(Integer("attention.head_count_kv", num_q_heads_)),
        head_dim_(static_cast<size_t>(
            Integer("attention.key_length", hidden_ / num_q_heads_))),
        layers_(static_cast<size_t>(Integer("block_count"))) {}

  Row Logits(int32_t token) {
    const bool gemma = name_ == "gemma3";
    Row x = RowOf("token_embd.weight", token);
    if (gemma) Scale(std::sqrt(static_cast<double>(hidden_)), &x);
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
  int32_t Integer(const std::string& key, int32_t otherwise) const {
    return spec_.keys.contains(name_ + "." + key) ? Integer(key) : otherwise;
  }
  double Number(const std::string& key) const {
    return double{std::get<float>(spec_.keys.at(name_ + "." + key))};
  }
  double Number(const std::string& key, double otherwise) const {
    return spec_.keys.contains(name_ + "." + key) ? Number(key) : otherwise;
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
    for (size_t begin = 0; begin < all.size(); begin += head_dim_) {
      const auto first = all.begin() + static_cast<ptrdiff_t>(begin);
      heads.emplace_back(first, first + static_cast<ptrdiff_t>(head_dim_));
      if (part == "attn_v") continue;
      if (name_ == "gemma3") {
        heads.back() = Norm(name + "_norm.weight", heads.back());
      }
      Rotate(layer, &heads.back());
    }
    return heads;
  }

  void Rotate(size_t layer, Row* head) const {
    const double base = HasWindow(layer) ? Number("rope.freq_base_swa", 10000.0)
                                         : Number("rope.freq_base");
    const double stretch =
        HasWindow(layer) ? 1.0 : Number("rope.scaling.factor", 1.0);
    for (size_t i = 0; i < head_dim_ / 2; ++i) {
      double angle = position_ / stretch *
                     std::pow(base, -2.0 * static_cast<double>(i) /
                                        static_cast<double>(head_dim_));
      if (const auto divisors = spec_.tensors.find("rope_freqs.weight");
          divisors != spec_.tensors.end()) {
        angle /= double{divisors->second.values[i]};
      }
      const bool is_interleaved = name_ == "llama";
      double& a = (*head)[is_interleaved ? 2 * i : i];
      double& b = (*head)[is_interleaved ? 2 * i + 1 : i + head_dim_ / 2];
      const double rotated = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = rotated;
    }
  }

  // Gemma 3 27B, of 62 layers, scales by its hidden size of a head.
  double ScoreScale() const {
    const bool is_27b = name_ == "gemma3" && layers_.size() == 62;
    return 1.0 / std::sqrt(is_27b ? static_cast<double>(hidden_) / num_q_heads_
                                  : static_cast<double>(head_dim_));
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
      const auto num_heads = static_cast<size_t>(num_heads_);
      const size_t head = q / (queries.size() / num_heads);
      Row sum(head_dim_);
      double total = 0;
      for (int32_t p = first; p <= position_; ++p) {
        const size_t entry = static_cast<size_t>(p) * num_heads + head;
        double logit = 0;
        for (size_t d = 0; d < head_dim_; ++d) {
          logit += queries[q][d] * cache.keys[entry][d];
        }
        const double weight = std::exp(logit * ScoreScale());
        total += weight;
        for (size_t d = 0; d < head_dim_; ++d) {
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
  const int32_t hidden_;
  const int32_t num_q_heads_;
  const int32_t num_heads_;
  const size_t head_dim_;
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

SpecSizes SizesOf(const std::string& architecture) {
  return architecture == "gemma3" ? SpecSizes{.num_layers = 7, .num_q_heads = 8}
                                  : SpecSizes();
}

GgufSpec RandomSpec(const std::string& architecture, TensorType type,
                    uint64_t seed, const SpecSizes& sizes) {
  const bool llama = architecture == "llama";
  const bool gemma = architecture == "gemma3";
  const auto key = [](int32_t size) { return static_cast<uint32_t>(size); };
  GgufSpec spec;
  const std::string prefix = architecture + ".";
  spec.keys = {{"general.architecture", architecture},
               {prefix + "block_count", key(sizes.num_layers)},
               {prefix + "context_length", uint32_t{512}},
               {prefix + "embedding_length", key(sizes.hidden)},
               {prefix + "feed_forward_length", key(sizes.mlp)},
               {prefix + "attention.head_count", key(sizes.num_q_heads)},
               {prefix + "attention.head_count_kv", key(sizes.num_heads)},
               {prefix + "attention.layer_norm_rms_epsilon", 1e-5f},
               {prefix + "rope.freq_base", gemma ? 1e6f : 500.0f}};
  if (gemma) {
    spec.keys[prefix + "attention.sliding_window"] = uint32_t{20};
  }
  if (gemma || sizes.num_q_heads * sizes.head_dim != sizes.hidden) {
    spec.keys[prefix + "attention.key_length"] = key(sizes.head_dim);
    spec.keys[prefix + "attention.value_length"] = key(sizes.head_dim);
  }
  SpecMaker maker(&spec, type, seed);
  maker.Matrix("token_embd.weight", sizes.hidden, sizes.vocabulary,
               gemma ? 1.0 : 16.0);
  for (uint32_t i = 0; i < key(sizes.num_layers); ++i) {
    AddLayer(i, sizes, architecture == "qwen2", gemma, &maker);
  }
  maker.Vector("output_norm.weight", sizes.hidden, 1.0, 0.2);
  if (llama) {
    maker.Matrix("output.weight", sizes.hidden, sizes.vocabulary, 2.0);
    maker.Vector("rope_freqs.weight", sizes.head_dim / 2, 4.0, 0.8);
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
