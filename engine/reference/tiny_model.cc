#include "engine/reference/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/reference/row_ops.h"

namespace blockmgr {
namespace {

constexpr int32_t kMaxWidth = 1 << 18;
constexpr int32_t kMaxVocabulary = 1 << 20;

absl::Status CheckField(const char* field, int32_t value, int32_t multiple,
                        int32_t max = kMaxWidth) {
  if (value >= multiple && value <= max && value % multiple == 0) {
    return absl::OkStatus();
  }
  return Invalid("model shape: ", field, ": expected a multiple of ", multiple,
                 " in [", multiple, ", ", max, "], got ", value);
}

absl::Status CheckRotary(const char* field, const Rotary& rotary,
                         int32_t head_dim) {
  if (!(rotary.theta > 1.0) || !std::isfinite(rotary.theta)) {
    return Invalid("model shape: ", field,
                   ".theta: expected a number > 1, got ", rotary.theta);
  }
  if (!rotary.divisors.empty() && std::ssize(rotary.divisors) != head_dim / 2) {
    return Invalid("model shape: ", field, ".divisors: expected none or ",
                   head_dim / 2, ", one for each pair of a head, got ",
                   rotary.divisors.size());
  }
  for (const float divisor : rotary.divisors) {
    if (divisor > 0.0f && std::isfinite(divisor)) continue;
    return Invalid("model shape: ", field,
                   ".divisors: expected numbers > 0, got ", divisor);
  }
  return absl::OkStatus();
}

// Draws tensors one after the other; the n-th depends on seed and n alone.
class WeightSource {
 public:
  WeightSource(uint64_t seed, TensorType type) : seed_(seed), type_(type) {}

  // Uniform around 0 with root mean square `rms`. Elements are drawn input by
  // input.
  PackedMatrix Matrix(int32_t in, int32_t out, double rms) {
    return Draw(in, out, rms, static_cast<uint64_t>(out), 1);
  }
  // Draws an embedding. Its elements are drawn output by output, those of other
  // matrices input by input.
  PackedMatrix Embedding(int32_t in, int32_t out, double rms) {
    return Draw(in, out, rms, 1, static_cast<uint64_t>(in));
  }

  // Norm gains, around 1.
  std::vector<float> Gains(int32_t size) {
    const uint64_t key = NextKey();
    std::vector<float> gains(static_cast<size_t>(size));
    const float limit = LimitOf(0.1);
    for (size_t i = 0; i < gains.size(); ++i) {
      gains[i] = Element(key, i, limit) + 1.0f;
    }
    return gains;
  }

 private:
  uint64_t NextKey() { return SplitMix64(seed_ + SplitMix64(++num_tensors_)); }
  static float LimitOf(double rms) {
    return static_cast<float>(std::sqrt(3.0) * rms);
  }
  // Exact in every arithmetic: 24 random bits fill a float.
  static float Element(uint64_t key, uint64_t index, float limit) {
    const auto bits = static_cast<float>(SplitMix64(key + index) >> 40);
    return limit * (bits * 0x1p-23f - 1.0f);
  }

  PackedMatrix Draw(int32_t in, int32_t out, double rms, uint64_t in_stride,
                    uint64_t out_stride) {
    const uint64_t key = NextKey();
    const float limit = LimitOf(rms);
    const auto num_inputs = static_cast<uint64_t>(in);
    const auto num_outputs = static_cast<uint64_t>(out);
    std::vector<std::byte> rows(num_outputs *
                                static_cast<size_t>(RowBytes(type_, in)));
    std::byte* to = rows.data();
    for (uint64_t o = 0; o < num_outputs; ++o) {
      for (uint64_t i = 0; i < num_inputs; ++i) {
        const float value = Element(key, i * in_stride + o * out_stride, limit);
        if (type_ == TensorType::kF32) {
          std::memcpy(to, &value, sizeof value);
          to += sizeof value;
        } else {
          const uint16_t rounded = ToBFloat16(value);
          std::memcpy(to, &rounded, sizeof rounded);
          to += sizeof rounded;
        }
      }
    }
    return PackedMatrix::Pack(type_, in, out, rows, {}, &memory_);
  }

  const uint64_t seed_;
  const TensorType type_;
  WeightMemory memory_;
  uint64_t num_tensors_ = 0;
};

std::vector<double> FrequenciesOf(const Rotary& rotary, int32_t head_dim) {
  std::vector<double> frequencies;
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(std::pow(rotary.theta, -2.0 * i / head_dim));
    if (!rotary.divisors.empty()) {
      frequencies.back() /= double{rotary.divisors[static_cast<size_t>(i)]};
    }
  }
  return frequencies;
}

bool Fits(const PackedMatrix& matrix, int32_t in, int32_t out) {
  return matrix.in() == in && matrix.out() == out;
}

bool FitsOrIsEmpty(const std::vector<float>& part, int32_t size) {
  return part.empty() || std::ssize(part) == size;
}

void CheckLayer(const ModelShape& shape, const ModelLayer& layer) {
  const int32_t hidden = shape.hidden;
  BM_CHECK(std::ssize(layer.attention_norm) == hidden);
  BM_CHECK(Fits(layer.query, hidden, shape.q_width()));
  BM_CHECK(Fits(layer.key, hidden, shape.kv_width()));
  BM_CHECK(Fits(layer.value, hidden, shape.kv_width()));
  BM_CHECK(FitsOrIsEmpty(layer.query_bias, shape.q_width()));
  BM_CHECK(FitsOrIsEmpty(layer.key_bias, shape.kv_width()));
  BM_CHECK(FitsOrIsEmpty(layer.value_bias, shape.kv_width()));
  BM_CHECK(FitsOrIsEmpty(layer.query_norm, shape.head_dim));
  BM_CHECK(FitsOrIsEmpty(layer.key_norm, shape.head_dim));
  BM_CHECK(Fits(layer.output, shape.q_width(), hidden));
  BM_CHECK(FitsOrIsEmpty(layer.attention_post_norm, hidden));
  BM_CHECK(std::ssize(layer.mlp_norm) == hidden);
  BM_CHECK(Fits(layer.gate, hidden, shape.mlp));
  BM_CHECK(Fits(layer.up, hidden, shape.mlp));
  BM_CHECK(Fits(layer.down, shape.mlp, hidden));
  BM_CHECK(FitsOrIsEmpty(layer.mlp_post_norm, hidden));
}

}  // namespace

absl::Status ModelShape::Validate() const {
  BM_RETURN_IF_ERROR(CheckField("num_layers", num_layers, 1));
  BM_RETURN_IF_ERROR(CheckField("num_heads", num_heads, 1));
  BM_RETURN_IF_ERROR(CheckField("num_q_heads", num_q_heads, num_heads));
  BM_RETURN_IF_ERROR(CheckField("head_dim", head_dim, 16));
  BM_RETURN_IF_ERROR(CheckField("hidden", hidden, 16));
  BM_RETURN_IF_ERROR(CheckField("mlp", mlp, 16));
  BM_RETURN_IF_ERROR(CheckField("vocabulary", vocabulary, 1, kMaxVocabulary));
  BM_RETURN_IF_ERROR(CheckRotary("rotary", rotary, head_dim));
  BM_RETURN_IF_ERROR(CheckRotary("window_rotary", window_rotary, head_dim));
  if (std::ssize(windows) > num_layers) {
    return Invalid("model shape: windows: expected at most one for each of ",
                   num_layers, " layers, got ", windows.size());
  }
  return windows.empty() ? absl::OkStatus() : GroupLayers(windows).status();
}

LayerGroups ModelShape::Groups() const {
  std::vector<int32_t> of_layers(static_cast<size_t>(num_layers));
  for (size_t i = 0; i < of_layers.size(); ++i) {
    of_layers[i] = window_of(static_cast<int32_t>(i));
  }
  absl::StatusOr<LayerGroups> groups = GroupLayers(of_layers);
  BM_CHECK(groups.ok());
  return *std::move(groups);
}

ModelLayout MakeLayout(const ModelShape& shape, int32_t page_size, DType dtype,
                       int32_t num_blocks) {
  LayerGroups groups = shape.Groups();
  return ModelLayout{.num_layers = groups.num_layers,
                     .num_heads = shape.num_heads,
                     .num_q_heads = shape.num_q_heads,
                     .head_dim = shape.head_dim,
                     .page_size = page_size,
                     .dtype = dtype,
                     .num_blocks = num_blocks,
                     .window = groups.window,
                     .group_windows = std::move(groups.group_windows)};
}

LanguageModel::LanguageModel(ModelShape shape, ModelWeights weights)
    : shape_(std::move(shape)), weights_(std::move(weights)) {
  BM_CHECK(shape_.Validate().ok());
  groups_ = shape_.Groups();
  inverse_frequencies_ = {FrequenciesOf(shape_.rotary, shape_.head_dim),
                          FrequenciesOf(shape_.window_rotary, shape_.head_dim)};
  BM_CHECK(Fits(weights_.embedding, shape_.hidden, shape_.vocabulary));
  BM_CHECK(Fits(head(), shape_.hidden, shape_.vocabulary));
  BM_CHECK(std::ssize(weights_.final_norm) == shape_.hidden);
  BM_CHECK(std::ssize(weights_.layers) == shape_.num_layers);
  for (const ModelLayer& layer : weights_.layers) CheckLayer(shape_, layer);
}

float LanguageModel::score_scale() const {
  return shape_.score_scale != 0.0f
             ? shape_.score_scale
             : 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
}

void LanguageModel::UnpackOutput(int32_t layer, int32_t first_q_head,
                                 std::span<float> rows) const {
  const PackedMatrix& output =
      weights_.layers[static_cast<size_t>(layer)].output;
  const auto hidden = static_cast<size_t>(shape_.hidden);
  const auto first =
      static_cast<size_t>(first_q_head) * static_cast<size_t>(shape_.head_dim);
  const size_t num_rows = rows.size() / hidden;
  std::vector<float> elements(static_cast<size_t>(output.in()));
  BM_CHECK(num_rows * hidden == rows.size());
  BM_CHECK(first + num_rows <= elements.size());
  for (size_t m = 0; m < hidden; ++m) {
    output.UnpackRow(static_cast<int32_t>(m), elements);
    for (size_t row = 0; row < num_rows; ++row) {
      rows[row * hidden + m] = elements[first + row];
    }
  }
}

std::shared_ptr<const LanguageModel> RandomModel(const ModelShape& shape,
                                                 uint64_t seed, TensorType type,
                                                 bool tied) {
  BM_CHECK(type == TensorType::kF32 || type == TensorType::kBF16);
  BM_CHECK(shape.Validate().ok());
  WeightSource source(seed, type);
  const int32_t hidden = shape.hidden;
  // A normalised row times a matrix of this scale has unit elements.
  const double unit = 1.0 / std::sqrt(hidden);
  // Query and key elements of variance 3: logits of standard deviation 3.
  const double peaky = std::sqrt(3.0) * unit;
  ModelWeights weights;
  weights.embedding = source.Embedding(hidden, shape.vocabulary, 1.0);
  for (int32_t i = 0; i < shape.num_layers; ++i) {
    ModelLayer& layer = weights.layers.emplace_back();
    layer.attention_norm = source.Gains(hidden);
    layer.query = source.Matrix(hidden, shape.q_width(), peaky);
    layer.key = source.Matrix(hidden, shape.kv_width(), peaky);
    layer.value = source.Matrix(hidden, shape.kv_width(), unit);
    layer.output = source.Matrix(shape.q_width(), hidden,
                                 1.0 / std::sqrt(shape.q_width()));
    layer.mlp_norm = source.Gains(hidden);
    layer.gate = source.Matrix(hidden, shape.mlp, unit);
    layer.up = source.Matrix(hidden, shape.mlp, unit);
    layer.down = source.Matrix(shape.mlp, hidden, 1.0 / std::sqrt(shape.mlp));
  }
  weights.final_norm = source.Gains(hidden);
  if (!tied) {
    weights.head = source.Matrix(hidden, shape.vocabulary, 3.0 * unit);
  }
  return std::make_shared<LanguageModel>(shape, std::move(weights));
}

void ModelForward::Begin(std::span<const int32_t> tokens,
                         std::span<const int32_t> positions) {
  BM_CHECK(tokens.size() == positions.size());
  const ModelShape& shape = model_.shape();
  num_rows_ = tokens.size();
  rotary_.Begin(positions);
  logit_rows_.clear();
  const auto hidden = static_cast<size_t>(shape.hidden);
  residual_.resize(num_rows_ * hidden);
  normalized_.resize(residual_.size());
  delta_.resize(residual_.size());
  queries_.resize(num_rows_ * static_cast<size_t>(shape.q_width()));
  raw_queries_.resize(queries_.size());
  attention_.resize(queries_.size());
  keys_.resize(num_rows_ * static_cast<size_t>(shape.kv_width()));
  values_.resize(keys_.size());
  gate_.resize(num_rows_ * static_cast<size_t>(shape.mlp));
  up_.resize(gate_.size());
  for (size_t row = 0; row < num_rows_; ++row) {
    const std::span<float> to =
        std::span(residual_).subspan(row * hidden, hidden);
    model_.weights().embedding.UnpackRow(model_.EmbeddingRow(tokens[row]), to);
    if (shape.embedding_scale == 1.0f) continue;
    for (float& element : to) element *= shape.embedding_scale;
  }
}

void ModelForward::Project(int32_t layer) {
  const ModelShape& shape = model_.shape();
  const ModelLayer& weights =
      model_.weights().layers[static_cast<size_t>(layer)];
  const float epsilon = shape.norm_epsilon;
  NormalizeRows(residual_, weights.attention_norm, epsilon, normalized_);
  Multiply(weights.query, weights.query_bias, normalized_, raw_queries_);
  Multiply(weights.key, weights.key_bias, normalized_, keys_);
  Multiply(weights.value, weights.value_bias, normalized_, values_);
  if (!weights.query_norm.empty()) {
    NormalizeRows(raw_queries_, weights.query_norm, epsilon, raw_queries_);
  }
  if (!weights.key_norm.empty()) {
    NormalizeRows(keys_, weights.key_norm, epsilon, keys_);
  }
  queries_ = raw_queries_;
  const RotaryTables::Rows& rows = rotary_.Of(layer);
  const auto half = static_cast<size_t>(shape.head_dim / 2);
  RotateRows(rows.cosines, rows.sines, half, queries_);
  RotateRows(rows.cosines, rows.sines, half, keys_);
}

void ModelForward::Finish(int32_t layer) {
  const ModelLayer& weights =
      model_.weights().layers[static_cast<size_t>(layer)];
  weights.output.Multiply(attention_, delta_, threads_);
  AddDelta(weights.attention_post_norm);
  NormalizeRows(residual_, weights.mlp_norm, model_.shape().norm_epsilon,
                normalized_);
  weights.gate.Multiply(normalized_, gate_, threads_);
  weights.up.Multiply(normalized_, up_, threads_);
  if (model_.shape().gate == GateFunction::kSilu) {
    GateWithSilu(up_, gate_);
  } else {
    GateWithGelu(up_, gate_);
  }
  weights.down.Multiply(gate_, delta_, threads_);
  AddDelta(weights.mlp_post_norm);
}

void ModelForward::ComputeLogits(std::span<const size_t> rows) {
  const auto hidden = static_cast<size_t>(model_.shape().hidden);
  const auto vocabulary = static_cast<size_t>(model_.shape().vocabulary);
  logit_rows_.assign(rows.begin(), rows.end());
  BM_CHECK(std::ranges::is_sorted(logit_rows_));
  logits_.resize(rows.size() * vocabulary);
  delta_.resize(rows.size() * hidden);
  for (size_t i = 0; i < rows.size(); ++i) {
    BM_CHECK(rows[i] < num_rows_);
    NormalizeRows(std::span(residual_).subspan(rows[i] * hidden, hidden),
                  model_.weights().final_norm, model_.shape().norm_epsilon,
                  std::span(delta_).subspan(i * hidden, hidden));
  }
  model_.head().Multiply(delta_, logits_, threads_);
}

std::span<const float> ModelForward::Logits(size_t row) {
  auto found = std::ranges::lower_bound(logit_rows_, row);
  if (found == logit_rows_.end() || *found != row) {
    ComputeLogits({&row, 1});
    found = logit_rows_.begin();
  }
  const auto vocabulary = static_cast<size_t>(model_.shape().vocabulary);
  return std::span(logits_).subspan(
      static_cast<size_t>(found - logit_rows_.begin()) * vocabulary,
      vocabulary);
}

void ModelForward::Multiply(const PackedMatrix& matrix,
                            std::span<const float> bias,
                            std::span<const float> input,
                            std::span<float> output) const {
  matrix.Multiply(input, output, threads_);
  if (bias.empty()) return;
  for (size_t begin = 0; begin < output.size(); begin += bias.size()) {
    AddRows(bias, output.subspan(begin, bias.size()));
  }
}

void ModelForward::AddDelta(std::span<const float> gains) {
  if (!gains.empty()) {
    NormalizeRows(delta_, gains, model_.shape().norm_epsilon, delta_);
  }
  AddRows(delta_, residual_);
}

void RotaryTables::Begin(std::span<const int32_t> positions) {
  positions_.assign(positions.begin(), positions.end());
  for (Table& table : tables_) {
    table.rows.cosines.clear();
    table.rows.sines.clear();
  }
}

const RotaryTables::Rows& RotaryTables::Of(int32_t layer) {
  Table& table = tables_[model_.shape().window_of(layer) > 0 ? 1 : 0];
  Rows& rows = table.rows;
  if (!rows.cosines.empty() || positions_.empty()) return rows;
  const std::span<const double> frequencies = model_.InverseFrequencies(layer);
  const size_t half = frequencies.size();
  const auto end = static_cast<size_t>(std::ranges::max(positions_)) + 1;
  for (size_t p = table.cosines.size() / half; p < end; ++p) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(p) * frequency;
      table.cosines.push_back(static_cast<float>(std::cos(angle)));
      table.sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  for (const int32_t position : positions_) {
    const auto first =
        static_cast<ptrdiff_t>(position) * static_cast<ptrdiff_t>(half);
    const auto last = first + static_cast<ptrdiff_t>(half);
    rows.cosines.insert(rows.cosines.end(), table.cosines.begin() + first,
                        table.cosines.begin() + last);
    rows.sines.insert(rows.sines.end(), table.sines.begin() + first,
                      table.sines.begin() + last);
  }
  return rows;
}

}  // namespace blockmgr
