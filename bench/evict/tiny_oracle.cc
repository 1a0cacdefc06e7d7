#include "bench/evict/tiny_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

float Dot(std::span<const float> a, std::span<const float> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0f);
}

// One sequence through the model, with plain attention over all it has seen.
// Queries append to it and are taken off again.
class TinyRun {
 public:
  TinyRun(const LanguageModel& model, int32_t context_tokens)
      : model_(model),
        shape_(model.shape()),
        forward_(&model),
        context_(context_tokens),
        caches_(Unsigned(shape_.num_layers)) {}

  // Appends tokens; returns the best next one.
  int32_t Extend(std::span<const int32_t> tokens) {
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), num_tokens_);
    forward_.Begin(tokens, positions);
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      forward_.Project(layer);
      Cache& cache = caches_[Unsigned(layer)];
      Append(forward_.keys(), &cache.keys);
      Append(forward_.values(), &cache.values);
      if (num_tokens_ < context_) {
        Append(forward_.queries(), &cache.queries);
        Append(forward_.raw_queries(), &cache.raw_queries);
      }
      for (size_t row = 0; row < tokens.size(); ++row) Attend(layer, row);
      forward_.Finish(layer);
    }
    num_tokens_ += static_cast<int32_t>(tokens.size());
    const std::span<const float> logits = forward_.Logits(tokens.size() - 1);
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                                logits.begin());
  }

  // The context is complete: measures its values, once, and forgets what
  // follows it.
  void StartQuery() {
    num_tokens_ = context_;
    const size_t kept = Unsigned(context_) * Unsigned(shape_.kv_width());
    for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      Cache& cache = caches_[Unsigned(layer)];
      cache.keys.resize(kept);
      cache.values.resize(kept);
      if (cache.sizes.empty()) MeasureValues(layer);
      cache.importances.assign(Unsigned(shape_.num_heads) * Unsigned(context_),
                               0.0f);
    }
  }

  // Of the query since StartQuery: [layers, KV heads, context].
  void AppendImportances(std::vector<float>* all) const {
    for (const Cache& cache : caches_) {
      const double sum = std::accumulate(cache.importances.begin(),
                                         cache.importances.end(), 0.0);
      for (const float importance : cache.importances) {
        all->push_back(static_cast<float>(importance / sum));
      }
    }
  }

  Tensors ContextTensors() const;

 private:
  // One layer; rows by token unless said otherwise.
  struct Cache {
    std::vector<float> keys;         // [tokens, kv_width]
    std::vector<float> values;       // [tokens, kv_width]
    std::vector<float> queries;      // [context, q_width], after RoPE
    std::vector<float> raw_queries;  // [context, q_width]
    std::vector<float> sizes;        // || v W_O ||_2, [q_heads, context]
    std::vector<float> importances;  // [KV heads, context]
  };

  static void Append(std::span<const float> rows, std::vector<float>* all) {
    all->insert(all->end(), rows.begin(), rows.end());
  }
  // The part of row `token` that is of `head`.
  std::span<const float> HeadRow(std::span<const float> rows, int32_t num_heads,
                                 int64_t token, int32_t head) const {
    const size_t size = Unsigned(shape_.head_dim);
    return rows.subspan(
        (Unsigned(token) * Unsigned(num_heads) + Unsigned(head)) * size, size);
  }
  int32_t HeadOf(int32_t q_head) const {
    return q_head / (shape_.num_q_heads / shape_.num_heads);
  }

  // [q_heads, head_dim, hidden]
  std::vector<float> OutputProjection(int32_t layer) const {
    std::vector<float> rows(Unsigned(shape_.q_width()) *
                            Unsigned(shape_.hidden));
    model_.UnpackOutput(layer, 0, rows);
    return rows;
  }
  void Attend(int32_t layer, size_t row);
  void MeasureValues(int32_t layer);

  const LanguageModel& model_;
  const ModelShape shape_;
  ModelForward forward_;
  const int32_t context_;
  int32_t num_tokens_ = 0;
  std::vector<Cache> caches_;
  std::vector<float> weights_;  // of attention, scratch
};

// Row `row` of the pass attends to itself and all before it.
void TinyRun::Attend(int32_t layer, size_t row) {
  Cache& cache = caches_[Unsigned(layer)];
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  const int64_t num_seen = num_tokens_ + static_cast<int64_t>(row) + 1;
  weights_.resize(Unsigned(num_seen));
  const auto output = forward_.attention().subspan(
      row * Unsigned(shape_.q_width()), Unsigned(shape_.q_width()));
  std::fill(output.begin(), output.end(), 0.0f);
  for (int32_t q_head = 0; q_head < shape_.num_q_heads; ++q_head) {
    const int32_t head = HeadOf(q_head);
    const auto query = HeadRow(forward_.queries(), shape_.num_q_heads,
                               static_cast<int64_t>(row), q_head);
    for (int64_t j = 0; j < num_seen; ++j) {
      weights_[Unsigned(j)] =
          scale * Dot(query, HeadRow(cache.keys, shape_.num_heads, j, head));
    }
    const float largest = *std::max_element(weights_.begin(), weights_.end());
    float sum = 0.0f;
    for (float& weight : weights_) {
      weight = std::exp(weight - largest);
      sum += weight;
    }
    const auto mean =
        output.subspan(Unsigned(q_head) * Unsigned(shape_.head_dim),
                       Unsigned(shape_.head_dim));
    for (int64_t j = 0; j < num_seen; ++j) {
      const float weight = weights_[Unsigned(j)] /= sum;
      const auto value = HeadRow(cache.values, shape_.num_heads, j, head);
      for (size_t d = 0; d < mean.size(); ++d) mean[d] += weight * value[d];
    }
    if (cache.importances.empty()) continue;
    const size_t context = Unsigned(context_);
    for (size_t j = 0; j < context; ++j) {
      float& best = cache.importances[Unsigned(head) * context + j];
      best = std::max(
          best, weights_[j] * cache.sizes[Unsigned(q_head) * context + j]);
    }
  }
}

void TinyRun::MeasureValues(int32_t layer) {
  Cache& cache = caches_[Unsigned(layer)];
  const std::vector<float> output = OutputProjection(layer);
  const size_t hidden = Unsigned(shape_.hidden);
  std::vector<float> projected(hidden);
  for (int32_t q_head = 0; q_head < shape_.num_q_heads; ++q_head) {
    const auto rows = std::span(output).subspan(
        Unsigned(q_head) * Unsigned(shape_.head_dim) * hidden);
    for (int32_t j = 0; j < context_; ++j) {
      const auto value =
          HeadRow(cache.values, shape_.num_heads, j, HeadOf(q_head));
      std::fill(projected.begin(), projected.end(), 0.0f);
      for (size_t d = 0; d < value.size(); ++d) {
        for (size_t m = 0; m < hidden; ++m) {
          projected[m] += value[d] * rows[d * hidden + m];
        }
      }
      cache.sizes.push_back(std::sqrt(Dot(projected, projected)));
    }
  }
}

Tensors TinyRun::ContextTensors() const {
  Tensors tensors;
  tensors.num_q_heads = shape_.num_q_heads;
  tensors.num_heads = shape_.num_heads;
  tensors.length = context_;
  tensors.head_dim = shape_.head_dim;
  tensors.model_dim = shape_.hidden;
  tensors.rope_theta = shape_.rotary.theta;
  // [tokens, heads, head_dim] -> [heads, tokens, head_dim]
  const auto by_head = [&](std::span<const float> rows, int32_t num_heads) {
    std::vector<float> transposed;
    for (int32_t head = 0; head < num_heads; ++head) {
      for (int32_t token = 0; token < context_; ++token) {
        Append(HeadRow(rows, num_heads, token, head), &transposed);
      }
    }
    return transposed;
  };
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    const Cache& cache = caches_[Unsigned(layer)];
    LayerTensors& to = tensors.layers.emplace_back();
    to.queries = by_head(cache.queries, shape_.num_q_heads);
    to.raw_queries = by_head(cache.raw_queries, shape_.num_q_heads);
    to.keys = by_head(cache.keys, shape_.num_heads);
    to.values = by_head(cache.values, shape_.num_heads);
    to.output_projection = OutputProjection(layer);
  }
  return tensors;
}

}  // namespace

TinyOracle MeasureTinyOracle(const ModelShape& shape,
                             const TinyOracleOptions& options) {
  BM_CHECK(options.context >= 0);
  BM_CHECK(options.context_tokens > 0);
  BM_CHECK(options.num_queries > 0);
  BM_CHECK(options.query_tokens > 0);
  const std::shared_ptr<const LanguageModel> model =
      RandomModel(shape, options.seed);
  TinyRun run(*model, options.context_tokens);
  uint64_t counter =
      SplitMix64(options.seed) + (static_cast<uint64_t>(options.context) << 32);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(SplitMix64(++counter) %
                                static_cast<uint64_t>(n));
  };
  TinyOracle oracle;
  for (int32_t i = 0; i < options.context_tokens; ++i) {
    oracle.context.push_back(below(shape.vocabulary));
  }
  run.Extend(oracle.context);
  const int32_t question_tokens =
      std::min(CeilDiv(options.query_tokens, 2), options.context_tokens);
  for (int32_t i = 0; i < options.num_queries; ++i) {
    run.StartQuery();
    const auto question = oracle.context.begin() +
                          below(options.context_tokens - question_tokens + 1);
    std::vector<int32_t> query(question, question + question_tokens);
    int32_t next = run.Extend(query);
    while (std::ssize(query) < options.query_tokens) {
      query.push_back(next);
      next = run.Extend(std::span(query).last(1));
    }
    run.AppendImportances(&oracle.importances);
    oracle.queries.push_back(std::move(query));
  }
  oracle.tensors = run.ContextTensors();
  return oracle;
}

}  // namespace blockmgr
