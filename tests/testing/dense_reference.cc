#include "tests/testing/dense_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace blockmgr {
namespace {

using Row = std::vector<double>;

// Adds the product of rows and a matrix of so many columns. The rows of the
// matrix are taken four at once, in their order, so that results are read and
// written less often.
[[gnu::always_inline]] inline void AddProduct(const Row& row,
                                              const float* matrix, Row* sums) {
  const size_t width = sums->size();
  size_t i = 0;
  for (; i + 4 <= row.size(); i += 4) {
    const float* const m = matrix + i * width;
    for (size_t j = 0; j < width; ++j) {
      double sum = (*sums)[j] + row[i] * double{m[j]};
      sum += row[i + 1] * double{m[width + j]};
      sum += row[i + 2] * double{m[2 * width + j]};
      (*sums)[j] = sum + row[i + 3] * double{m[3 * width + j]};
    }
  }
  for (; i < row.size(); ++i) {
    for (size_t j = 0; j < width; ++j) {
      (*sums)[j] += row[i] * double{matrix[i * width + j]};
    }
  }
}

#ifdef __x86_64__
// Has wider vectors, and the same bits: nothing is fused.
[[gnu::target("avx2")]] void AddProductAvx2(const Row& row, const float* matrix,
                                            Row* sums) {
  AddProduct(row, matrix, sums);
}
#endif

Row Multiply(const Row& row, const std::vector<float>& matrix) {
  Row result(matrix.size() / row.size(), 0.0);
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) {
    AddProductAvx2(row, matrix.data(), &result);
    return result;
  }
#endif
  AddProduct(row, matrix.data(), &result);
  return result;
}

Row RmsNorm(const Row& row, const std::vector<float>& gains) {
  double squares = 0;
  for (const double x : row) squares += x * x;
  const double rms =
      std::sqrt(squares / static_cast<double>(row.size()) + 1e-5);
  Row result;
  result.reserve(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    result.push_back(row[i] / rms * double{gains[i]});
  }
  return result;
}

// Rotates the plane (x[i], x[i + d/2]) of every head by
// position * theta^(-2i/d).
void Rope(size_t head_dim, double theta, int32_t position, Row* row) {
  const size_t half = head_dim / 2;
  for (size_t head = 0; head < row->size(); head += head_dim) {
    for (size_t i = 0; i < half; ++i) {
      const double frequency = std::pow(
          theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      const double c = std::cos(position * frequency);
      const double s = std::sin(position * frequency);
      const double x = (*row)[head + i];
      const double y = (*row)[head + i + half];
      (*row)[head + i] = x * c - y * s;
      (*row)[head + i + half] = x * s + y * c;
    }
  }
}

void AddTo(Row* row, const Row& delta) {
  for (size_t i = 0; i < row->size(); ++i) (*row)[i] += delta[i];
}

double DotProduct(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::vector<float> DenseMatrix(const PackedMatrix& matrix) {
  const auto in = static_cast<size_t>(matrix.in());
  const auto out = static_cast<size_t>(matrix.out());
  std::vector<float> dense(in * out);
  std::vector<float> row(in);
  for (size_t o = 0; o < out; ++o) {
    matrix.UnpackRow(static_cast<int32_t>(o), row);
    for (size_t i = 0; i < in; ++i) dense[i * out + o] = row[i];
  }
  return dense;
}

DenseReference::DenseReference(const LanguageModel* model)
    : model_(*model), layers_(static_cast<size_t>(model->shape().num_layers)) {
  for (Layer& layer : layers_) {
    layer.evicted.resize(static_cast<size_t>(model->shape().num_heads));
    layer.sums.resize(layer.evicted.size());
  }
  const ModelWeights& weights = model->weights();
  embedding_.resize(static_cast<size_t>(model->shape().vocabulary) *
                    static_cast<size_t>(model->shape().hidden));
  for (int32_t token = 0; token < model->shape().vocabulary; ++token) {
    const auto hidden = static_cast<size_t>(model->shape().hidden);
    weights.embedding.UnpackRow(
        token, std::span(embedding_)
                   .subspan(static_cast<size_t>(token) * hidden, hidden));
  }
  for (const ModelLayer& layer : weights.layers) {
    matrices_.push_back({.query = DenseMatrix(layer.query),
                         .key = DenseMatrix(layer.key),
                         .value = DenseMatrix(layer.value),
                         .output = DenseMatrix(layer.output),
                         .gate = DenseMatrix(layer.gate),
                         .up = DenseMatrix(layer.up),
                         .down = DenseMatrix(layer.down)});
  }
  head_ = DenseMatrix(weights.head);
  const std::vector<int32_t>& windows = model->shape().windows;
  for (size_t i = 0; i < layers_.size() && !windows.empty(); ++i) {
    layers_[i].window = windows[i % windows.size()];
  }
}

std::vector<double> DenseReference::Attend(Layer* attended) const {
  const Layer& layer = *attended;
  const ModelShape& shape = model_.shape();
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto q_width = static_cast<size_t>(shape.q_width());
  const auto kv_width = static_cast<size_t>(shape.kv_width());
  Row output(q_width, 0.0);
  for (size_t q_head = 0; q_head < q_width / dim; ++q_head) {
    const size_t head =
        q_head / static_cast<size_t>(shape.num_q_heads / shape.num_heads);
    const std::span<const double> query =
        std::span(layer.queries)
            .subspan(static_cast<size_t>(length_) * q_width + q_head * dim,
                     dim);
    Row weights;
    std::vector<size_t> positions;
    weights.reserve(static_cast<size_t>(length_) + 1);
    positions.reserve(weights.capacity());
    for (size_t p = 0; p <= static_cast<size_t>(length_); ++p) {
      if (layer.evicted[head][p]) continue;
      const int32_t age = length_ - static_cast<int32_t>(p);
      if (layer.window > 0 && age >= layer.window) continue;
      positions.push_back(p);
      weights.push_back(
          DotProduct(
              query,
              std::span(layer.keys).subspan(p * kv_width + head * dim, dim)) /
          std::sqrt(static_cast<double>(dim)));
    }
    const double top = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) sum += (w = std::exp(w - top));
    for (size_t i = 0; i < positions.size(); ++i) {
      attended->sums[head][positions[i]] += weights[i] / sum;
      for (size_t d = 0; d < dim; ++d) {
        output[q_head * dim + d] +=
            weights[i] / sum *
            layer.values[positions[i] * kv_width + head * dim + d];
      }
    }
  }
  return output;
}

std::vector<double> DenseReference::Forward(int32_t token) {
  const ModelShape& shape = model_.shape();
  const ModelWeights& weights = model_.weights();
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto row = static_cast<ptrdiff_t>(token % shape.vocabulary);
  const auto first = embedding_.begin() + row * shape.hidden;
  Row x(first, first + shape.hidden);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ModelLayer& gains = weights.layers[i];
    const Matrices& w = matrices_[i];
    Layer& layer = layers_[i];
    const Row h = RmsNorm(x, gains.attention_norm);
    Row q = Multiply(h, w.query);
    Row k = Multiply(h, w.key);
    const Row v = Multiply(h, w.value);
    layer.raw_queries.insert(layer.raw_queries.end(), q.begin(), q.end());
    Rope(dim, shape.rotary.theta, length_, &q);
    Rope(dim, shape.rotary.theta, length_, &k);
    layer.queries.insert(layer.queries.end(), q.begin(), q.end());
    layer.keys.insert(layer.keys.end(), k.begin(), k.end());
    layer.values.insert(layer.values.end(), v.begin(), v.end());
    for (std::vector<bool>& head : layer.evicted) head.push_back(false);
    for (Row& head : layer.sums) head.push_back(0.0);
    AddTo(&x, Multiply(Attend(&layer), w.output));
    const Row m = RmsNorm(x, gains.mlp_norm);
    Row gate = Multiply(m, w.gate);
    const Row up = Multiply(m, w.up);
    for (size_t j = 0; j < gate.size(); ++j) {
      gate[j] *= up[j] / (1.0 + std::exp(-gate[j]));
    }
    AddTo(&x, Multiply(gate, w.down));
  }
  ++length_;
  return Multiply(RmsNorm(x, weights.final_norm), head_);
}

std::vector<double> DenseReference::Forward(std::span<const int32_t> tokens) {
  std::vector<double> logits;
  for (const int32_t token : tokens) logits = Forward(token);
  return logits;
}

void DenseReference::Keep(int32_t layer, int32_t head, int32_t cut,
                          std::span<const int32_t> kept) {
  std::vector<bool>& evicted =
      layers_[static_cast<size_t>(layer)].evicted[static_cast<size_t>(head)];
  std::fill_n(evicted.begin(), cut, true);
  for (const int32_t position : kept) {
    evicted[static_cast<size_t>(position)] = false;
  }
}

std::vector<int32_t> DenseReference::Attended(int32_t layer, int32_t head,
                                              int32_t limit,
                                              int32_t first) const {
  const std::vector<bool>& evicted =
      layers_[static_cast<size_t>(layer)].evicted[static_cast<size_t>(head)];
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(std::max(0, limit - first)));
  for (int32_t p = first; p < limit; ++p) {
    if (!evicted[static_cast<size_t>(p)]) positions.push_back(p);
  }
  return positions;
}

std::span<const double> DenseReference::HeadRow(const std::vector<double>& rows,
                                                int32_t width, int32_t head,
                                                int32_t position) const {
  const int32_t dim = model_.shape().head_dim;
  const int64_t begin = int64_t{position} * width + int64_t{head} * dim;
  return std::span(rows).subspan(static_cast<size_t>(begin),
                                 static_cast<size_t>(dim));
}

std::span<const double> DenseReference::Query(int32_t layer, int32_t q_head,
                                              int32_t position) const {
  return HeadRow(layers_[static_cast<size_t>(layer)].queries,
                 model_.shape().q_width(), q_head, position);
}

std::span<const double> DenseReference::RawQuery(int32_t layer, int32_t q_head,
                                                 int32_t position) const {
  return HeadRow(layers_[static_cast<size_t>(layer)].raw_queries,
                 model_.shape().q_width(), q_head, position);
}

std::span<const double> DenseReference::Key(int32_t layer, int32_t head,
                                            int32_t position) const {
  return HeadRow(layers_[static_cast<size_t>(layer)].keys,
                 model_.shape().kv_width(), head, position);
}

std::span<const double> DenseReference::Value(int32_t layer, int32_t head,
                                              int32_t position) const {
  return HeadRow(layers_[static_cast<size_t>(layer)].values,
                 model_.shape().kv_width(), head, position);
}

double DenseReference::AttentionSum(int32_t layer, int32_t head,
                                    int32_t position) const {
  return layers_[static_cast<size_t>(layer)]
      .sums[static_cast<size_t>(head)][static_cast<size_t>(position)];
}

int32_t Argmax(std::span<const double> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                              logits.begin());
}

}  // namespace blockmgr
