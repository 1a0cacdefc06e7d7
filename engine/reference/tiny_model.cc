#include "engine/reference/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <absl/strings/str_cat.h>

#include "engine/reference/linear.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Keeps every product of two widths far inside int32.
constexpr int32_t kMaxWidth = 1 << 14;

absl::Status CheckField(const char* field, int32_t value, int32_t multiple) {
  if (value >= multiple && value <= kMaxWidth && value % multiple == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tiny model: ", field, ": expected a multiple of ", multiple,
                   " in [", multiple, ", ", kMaxWidth, "], got ", value));
}

// Draws tensors one after the other; the n-th depends on seed and n alone.
class WeightSource {
 public:
  explicit WeightSource(uint64_t seed) : seed_(seed) {}

  // Uniform around 0 with root mean square `rms`, exact in every arithmetic:
  // 24 random bits fill a float.
  std::vector<float> Matrix(int32_t rows, int32_t columns, double rms) {
    const uint64_t key = SplitMix64(seed_ + SplitMix64(++num_tensors_));
    const auto limit = static_cast<float>(std::sqrt(3.0) * rms);
    std::vector<float> values(static_cast<size_t>(rows) *
                              static_cast<size_t>(columns));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto bits = static_cast<float>(SplitMix64(key + i) >> 40);
      values[i] = limit * (bits * 0x1p-23f - 1.0f);
    }
    return values;
  }

  // Norm gains, around 1.
  std::vector<float> Gains(int32_t size) {
    std::vector<float> gains = Matrix(1, size, 0.1);
    for (float& gain : gains) gain += 1.0f;
    return gains;
  }

 private:
  const uint64_t seed_;
  uint64_t num_tensors_ = 0;
};

float Silu(float x) { return x / (1.0f + std::exp(-x)); }

}  // namespace

absl::Status TinyShape::Validate() const {
  BM_RETURN_IF_ERROR(CheckField("num_layers", num_layers, 1));
  BM_RETURN_IF_ERROR(CheckField("num_heads", num_heads, 1));
  BM_RETURN_IF_ERROR(CheckField("num_q_heads", num_q_heads, num_heads));
  BM_RETURN_IF_ERROR(CheckField("head_dim", head_dim, kLinearMultiple));
  BM_RETURN_IF_ERROR(CheckField("hidden", hidden, kLinearMultiple));
  BM_RETURN_IF_ERROR(CheckField("mlp", mlp, kLinearMultiple));
  BM_RETURN_IF_ERROR(CheckField("vocabulary", vocabulary, kLinearMultiple));
  if (!(rope_theta > 1.0) || !std::isfinite(rope_theta)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tiny model: rope_theta: expected a number > 1, got ", rope_theta));
  }
  if (std::ssize(windows) > num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("tiny model: windows: expected at most one for each of ",
                     num_layers, " layers, got ", windows.size()));
  }
  return windows.empty() ? absl::OkStatus() : GroupLayers(windows).status();
}

LayerGroups TinyShape::Groups() const {
  std::vector<int32_t> of_layers(static_cast<size_t>(num_layers));
  for (size_t i = 0; i < of_layers.size(); ++i) {
    of_layers[i] = windows.empty() ? 0 : windows[i % windows.size()];
  }
  absl::StatusOr<LayerGroups> groups = GroupLayers(of_layers);
  BM_CHECK(groups.ok());
  return *std::move(groups);
}

ModelLayout MakeLayout(const TinyShape& shape, int32_t page_size, DType dtype,
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

TinyModel::TinyModel(const TinyShape& shape, uint64_t seed) : shape_(shape) {
  BM_CHECK(shape.Validate().ok());
  groups_ = shape.Groups();
  WeightSource source(seed);
  const int32_t hidden = shape.hidden;
  // A normalised row times a matrix of this scale has unit elements.
  const double unit = 1.0 / std::sqrt(hidden);
  // Query and key elements of variance 3: logits of standard deviation 3.
  const double peaky = std::sqrt(3.0) * unit;
  weights_.embedding = source.Matrix(shape.vocabulary, hidden, 1.0);
  for (int32_t i = 0; i < shape.num_layers; ++i) {
    TinyLayer& layer = weights_.layers.emplace_back();
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
  weights_.final_norm = source.Gains(hidden);
  weights_.head = source.Matrix(hidden, shape.vocabulary, 3.0 * unit);
}

void TinyForward::Begin(std::span<const int32_t> tokens,
                        std::span<const int32_t> positions) {
  BM_CHECK(tokens.size() == positions.size());
  const TinyShape& shape = model_.shape();
  num_rows_ = tokens.size();
  const auto hidden = static_cast<size_t>(shape.hidden);
  const auto half = static_cast<size_t>(shape.head_dim / 2);
  residual_.resize(num_rows_ * hidden);
  delta_.resize(num_rows_ * hidden);
  queries_.resize(num_rows_ * static_cast<size_t>(shape.q_width()));
  attention_.resize(queries_.size());
  keys_.resize(num_rows_ * static_cast<size_t>(shape.kv_width()));
  values_.resize(keys_.size());
  gate_.resize(num_rows_ * static_cast<size_t>(shape.mlp));
  up_.resize(gate_.size());
  cosine_.resize(num_rows_ * half);
  sine_.resize(cosine_.size());
  for (size_t row = 0; row < num_rows_; ++row) {
    const auto index = static_cast<size_t>(model_.EmbeddingRow(tokens[row]));
    std::copy_n(model_.weights().embedding.begin() +
                    static_cast<ptrdiff_t>(index * hidden),
                hidden,
                residual_.begin() + static_cast<ptrdiff_t>(row * hidden));
    for (size_t i = 0; i < half; ++i) {
      const double exponent =
          -static_cast<double>(i) / static_cast<double>(half);
      const double angle =
          positions[row] * std::pow(shape.rope_theta, exponent);
      cosine_[row * half + i] = static_cast<float>(std::cos(angle));
      sine_[row * half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void TinyForward::Project(int32_t layer) {
  const TinyShape& shape = model_.shape();
  const TinyLayer& weights =
      model_.weights().layers[static_cast<size_t>(layer)];
  Normalize(weights.attention_norm, residual_, &normalized_);
  Linear(normalized_, weights.query, shape.hidden, shape.q_width(), queries_);
  Linear(normalized_, weights.key, shape.hidden, shape.kv_width(), keys_);
  Linear(normalized_, weights.value, shape.hidden, shape.kv_width(), values_);
  raw_queries_ = queries_;
  Rotate(shape.num_q_heads, queries_);
  Rotate(shape.num_heads, keys_);
}

void TinyForward::Finish(int32_t layer) {
  const TinyShape& shape = model_.shape();
  const TinyLayer& weights =
      model_.weights().layers[static_cast<size_t>(layer)];
  const auto add = [this] {
    for (size_t i = 0; i < residual_.size(); ++i) residual_[i] += delta_[i];
  };
  Linear(attention_, weights.output, shape.q_width(), shape.hidden, delta_);
  add();
  Normalize(weights.mlp_norm, residual_, &normalized_);
  Linear(normalized_, weights.gate, shape.hidden, shape.mlp, gate_);
  Linear(normalized_, weights.up, shape.hidden, shape.mlp, up_);
  for (size_t i = 0; i < gate_.size(); ++i) gate_[i] = Silu(gate_[i]) * up_[i];
  Linear(gate_, weights.down, shape.mlp, shape.hidden, delta_);
  add();
}

std::span<const float> TinyForward::Logits(size_t row) {
  BM_CHECK(row < num_rows_);
  const TinyShape& shape = model_.shape();
  const auto hidden = static_cast<size_t>(shape.hidden);
  logits_.resize(static_cast<size_t>(shape.vocabulary));
  Normalize(model_.weights().final_norm,
            std::span(residual_).subspan(row * hidden, hidden), &normalized_);
  Linear(normalized_, model_.weights().head, shape.hidden, shape.vocabulary,
         logits_);
  return logits_;
}

void TinyForward::Normalize(std::span<const float> gains,
                            std::span<const float> rows,
                            std::vector<float>* normalized) const {
  const size_t width = gains.size();
  normalized->resize(rows.size());
  for (size_t begin = 0; begin < rows.size(); begin += width) {
    float sum = 0.0f;
    for (size_t i = 0; i < width; ++i) {
      sum += rows[begin + i] * rows[begin + i];
    }
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) +
                                         TinyModel::kNormEpsilon);
    for (size_t i = 0; i < width; ++i) {
      (*normalized)[begin + i] = rows[begin + i] * scale * gains[i];
    }
  }
}

void TinyForward::Rotate(int32_t num_heads, std::span<float> rows) const {
  const auto half = static_cast<size_t>(model_.shape().head_dim / 2);
  float* head = rows.data();
  for (size_t row = 0; row < num_rows_; ++row) {
    const float* cosine = cosine_.data() + row * half;
    const float* sine = sine_.data() + row * half;
    for (int32_t h = 0; h < num_heads; ++h, head += 2 * half) {
      for (size_t i = 0; i < half; ++i) {
        const float low = head[i];
        const float high = head[half + i];
        head[i] = low * cosine[i] - high * sine[i];
        head[half + i] = high * cosine[i] + low * sine[i];
      }
    }
  }
}

}  // namespace blockmgr
